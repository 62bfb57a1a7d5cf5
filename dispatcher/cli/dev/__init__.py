"""`pointsman dev`: a dispatcher and the developer's program side by side, on this machine only."""

from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli import output
from dispatcher.cli.output import Format

__all__ = ["dev"]


def dev(
    program: Annotated[str, typer.Argument(help="app.py, app.py:name or package.module:name.", show_default=False)],
    port: Annotated[int, typer.Option(help="The dispatcher's; the next free one if it is taken.", min=1)] = 8400,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget all runs of the sessions before.")] = False,
) -> None:
    """Run a dispatcher and serve a program beside it, loaded again whenever a *.py changes, until Ctrl-C.

    Nobody signs in, and only this machine is answered. Data is kept in .pointsman/ of the current directory.
    """
    # The command line starts without the dispatcher; only this command needs it.
    from dispatcher import errors
    from dispatcher.cli.dev import playground, target

    try:
        where = target.parse(program, Path.cwd())
    except target.NoSuchTarget as error:
        output.fail(output.USAGE, {"code": "no_such_program", "message": str(error)}, Format.TABLE)
    try:
        playground.run(where, port, fresh=fresh)
    except (errors.StartUpError, errors.Refusal) as error:
        output.fail(output.FAILED, {"code": error.code, "message": error.message, "hint": error.hint}, Format.TABLE)
