"""The tree of commands."""

from typing import Annotated

import typer

from dispatcher.cli import (
    children,
    config,
    dev,
    doctor,
    endpoints,
    keys,
    operating,
    publishers,
    queues,
    runs,
    schedules,
    server,
    worker,
)
from dispatcher.cli.output import Format, Output, show

application = typer.Typer(
    name="pointsman",
    help="Dispatcher for durable workflow runs.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.command("dev")(dev.dev)
application.command("serve")(server.serve)
application.command("migrate")(server.migrate)
application.command("doctor")(doctor.doctor)
application.command("worker")(worker.worker)
runs.commands.command("children")(children.children)
application.add_typer(config.commands, name="config")
application.add_typer(operating.commands, name="run")
application.add_typer(endpoints.commands, name="endpoint")
application.add_typer(publishers.commands, name="publisher")
application.add_typer(schedules.commands, name="schedule")
application.add_typer(keys.commands, name="key")
application.add_typer(queues.commands, name="queue")
application.add_typer(queues.executors, name="executor")


@application.command()
def version(output: Output = Format.TABLE) -> None:
    """Print the version."""
    from endpoint_sdk._version import __version__

    show(f'{{"version":"{__version__}"}}', output, lambda data: print(f"pointsman {data['version']}"))


@application.command()
def demo(
    runs: Annotated[int, typer.Option(help="Orders to place.", min=1, max=10_000)] = 200,
    postgres: Annotated[bool, typer.Option("--postgres", help="PostgreSQL and two dispatchers.")] = False,
) -> None:
    """Show that a run outlives its executor; the last line is one JSON object with the figures."""
    from dispatcher.cli import demo as stage

    raise typer.Exit(stage.run(runs=runs, use_postgres=postgres))
