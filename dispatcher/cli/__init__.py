"""The command line `pointsman`. Importing this is cheap; commands import what they need when they run."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command in `sys.argv`; exits 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable."""
    if sys.argv[1:] in (["version"], ["--version"]):
        from endpoint_sdk._version import __version__

        print(f"pointsman {__version__}")
        return
    try:
        from dispatcher.cli.application import application
    except KeyboardInterrupt:
        # Ctrl-C while the commands are loaded; from then on it is theirs.
        sys.exit(130)
    application()
