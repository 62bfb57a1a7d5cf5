"""`pointsman worker`: runs a worker of the user's program, loaded again on request whenever a file changes."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dispatcher.cli import output
from dispatcher.cli.output import Format

if TYPE_CHECKING:
    from dispatcher.cli.dev.target import Target
    from endpoint_sdk import Worker

__all__ = ["worker"]


def worker(
    program: Annotated[str, typer.Argument(help="app:worker, app.py or package.module:name.", show_default=False)],
    reload: Annotated[bool, typer.Option("--reload", help="Drain and start again whenever a *.py changes.")] = False,
    env_file: Annotated[Path | None, typer.Option(help="KEY=VALUE lines; a variable that is set stays.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a worker until SIGTERM or SIGINT, which drain it; the second signal ends it at once.

    Exits with 1 when a task outlasted the drain. Logs go to stderr as JSON.
    """
    from dispatcher import telemetry
    from dispatcher.cli.dev import target

    try:
        where = target.parse(program, Path.cwd())
    except target.NoSuchTarget as error:
        _refuse("no_such_program", str(error))
    if log_level.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        _refuse("bad_parameter", f"{log_level!r} is no log level.", "Write debug, info, warning or error.")
    if env_file is not None:
        _read(env_file)
    telemetry.configure(log_level)
    if reload:
        from dispatcher.cli import reloading

        raise typer.Exit(reloading.run(where.root, [program, "--log-level", log_level]))
    loaded = _load(where)
    loaded.run()
    if loaded.left_to_recovery:
        raise typer.Exit(output.FAILED)


def _load(where: "Target") -> "Worker":
    """The worker the program holds; every reason why there is none is told with its code."""
    from endpoint_sdk import ConfigurationError

    for root in {str(Path.cwd()): None, str(where.root): None}:
        sys.path.insert(0, root)
    try:
        module = importlib.import_module(where.module)
    except ConfigurationError as error:
        output.fail(output.FAILED, {"code": error.code, "message": str(error)}, Format.TABLE)
    except Exception as error:
        output.say(_told(error))
        message = f"{where.shown} cannot be imported: {type(error).__name__}."
        output.fail(output.FAILED, {"code": "import_failed", "message": message}, Format.TABLE)
    return _chosen(module, where)


def _chosen(module: Any, where: "Target") -> "Worker":
    from endpoint_sdk import Worker

    workers = {name: value for name, value in vars(module).items() if isinstance(value, Worker)}
    if where.name is not None:
        if where.name not in workers:
            _refuse("no_worker", f"{where.shown} has no Worker named {where.name}.", _known(workers))
        return workers[where.name]
    different = list({id(value): value for value in workers.values()}.values())
    if "worker" in workers:
        return workers["worker"]
    if len(different) != 1:
        found = "no Worker" if not different else f"{len(different)} Workers"
        _refuse("no_worker", f"{where.shown} has {found}.", _known(workers))
    return different[0]


def _known(workers: dict[str, Any]) -> str:
    if not workers:
        return "Write: worker = Worker(workflows=[…]), and name it as app:worker."
    return f"Name one of: {', '.join(sorted(workers))}."


def _told(error: Exception) -> str:
    """The traceback from the program's own first line on."""
    frames = error.__traceback__
    while frames is not None and ("importlib" in frames.tb_frame.f_code.co_filename or _ours(frames)):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _ours(frame: Any) -> bool:
    return bool(frame.tb_frame.f_code.co_filename == __file__)


def _read(env_file: Path) -> None:
    """The variables of *env_file* are set, those the environment has already excepted."""
    try:
        lines = env_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        _refuse("bad_env_file", f"{env_file} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}.")
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            _refuse("bad_env_file", f"{env_file}:{number} is not KEY=VALUE.")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        os.environ.setdefault(name, value)


def _refuse(code: str, message: str, hint: str | None = None) -> NoReturn:
    output.fail(output.USAGE, {"code": code, "message": message, "hint": hint}, Format.TABLE)
