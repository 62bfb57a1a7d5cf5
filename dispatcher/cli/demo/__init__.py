"""`pointsman demo`: shows with real processes that a run outlives its executor, and says so in one JSON line."""

__all__ = ["run"]


def run(*, runs: int = 200, use_postgres: bool = False) -> int:
    """Plays the demo with *runs* orders and returns its exit code: 0 only if everything it shows held.

    Progress goes to stderr, the figures as one JSON object to stdout. On SQLite there is one dispatcher process, on
    PostgreSQL there are two. Processes and files of the demo are gone afterwards.
    """
    # The command line starts without the SDK and an HTTP client; only this command needs them.
    from dispatcher.cli.demo import play

    return play.run(runs=runs, use_postgres=use_postgres)
