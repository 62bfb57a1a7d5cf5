"""`pointsman config …`, and reading the configuration for every command that needs it."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatcher.cli import output
from dispatcher.cli.output import Format, Output

if TYPE_CHECKING:
    from dispatcher.settings_load import ConfigInvalid, Loaded
    from dispatcher.settings_yaml import Problem

commands = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="Default: POINTSMAN_CONFIG, else ./pointsman.yaml if it exists.")
]
Listen = Annotated[str | None, typer.Option(help="host:port; port 0 takes a free one.")]
DatabaseUrl = Annotated[str | None, typer.Option("--database", help="sqlite:///file.db or postgresql://…")]
PublicUrl = Annotated[str | None, typer.Option(help="The URL executors reach this dispatcher at.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]


@commands.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="Default: as for serve.", show_default=False)] = None,
    config: ConfigFile = None,
    o: Output = Format.TABLE,
) -> None:
    """Say everything that is wrong with the configuration; exit code 1 if anything is."""
    from dispatcher import settings_load

    try:
        found = settings_load.load(file or config, os.environ)
    except settings_load.ConfigInvalid as invalid:
        _problems(invalid, o)
        raise typer.Exit(output.FAILED) from None
    if o is Format.JSON:
        print('{"problems":[]}')
    output.say(f"ok: {found.path or 'no file; defaults and the environment'}")


@commands.command("show")
def show(
    config: ConfigFile = None,
    listen: Listen = None,
    database: DatabaseUrl = None,
    public_url: PublicUrl = None,
    log_level: LogLevel = None,
    o: Output = Format.TABLE,
) -> None:
    """Show the settings in force and where each comes from; secrets by their last four characters."""
    from dispatcher import settings_show

    loaded = load(config, flags(listen, database, public_url, log_level), o)
    entries = settings_show.entries(loaded)
    text = json.dumps({"items": [{"path": path, "value": value, "origin": origin} for path, value, origin in entries]})
    output.show(text, o, lambda _: output.rows(("setting", "value", "from"), entries))


def flags(
    listen: str | None = None, database: str | None = None, public_url: str | None = None, log_level: str | None = None
) -> dict[str, Any]:
    """Command-line options by the path of the setting they override."""
    return {
        "server.listen": listen,
        "server.publicUrl": public_url,
        "database.url": database,
        "logLevel": log_level,
    }


def load(config: Path | None, given: dict[str, Any], shown: Format) -> "Loaded":
    """The settings; every fault is told and the process exits with 1."""
    from dispatcher import settings_load

    try:
        return settings_load.load(config, os.environ, given)
    except settings_load.ConfigInvalid as invalid:
        if shown is Format.TABLE:
            for problem in invalid.problems:
                output.say(line(problem))
        details = {"problems": json.loads(_json(invalid))["problems"]}
        error = {"code": invalid.code, "message": invalid.message, "hint": "Try: pointsman config check"}
        output.fail(output.FAILED, error if shown is Format.TABLE else {**error, "details": details}, shown)


def _problems(invalid: "ConfigInvalid", shown: Format) -> None:
    if shown is Format.JSON:
        print(_json(invalid))
    elif shown is Format.JSONL:
        for problem in json.loads(_json(invalid))["problems"]:
            print(json.dumps(problem, ensure_ascii=False))
    else:
        for problem in invalid.problems:
            print(line(problem))
    output.say(invalid.message)


def line(problem: "Problem") -> str:
    """*problem* in one line, its place first."""
    where = f"{problem.line}:{problem.column}: " if problem.line else ""
    path = f"{problem.path}: " if problem.path else ""
    return f"{where}{path}{problem.message} {problem.hint or ''}".rstrip() + f" [{problem.code}]"


def _json(invalid: "ConfigInvalid") -> str:
    import msgspec

    return msgspec.json.encode({"problems": invalid.problems}).decode()
