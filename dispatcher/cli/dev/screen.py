"""What `pointsman dev` says on the terminal."""

import shlex
from collections.abc import Iterable

from dispatcher.cli.dev.findings import Described, Found
from endpoint_sdk._version import __version__
from endpoint_sdk.wire.operating import EndpointTested

_HOW = {"lambda": "Lambda function URL", "asgi": "ASGI application", "worker": "worker process"}


def welcome(url: str, database: str) -> None:
    """Where the dispatcher is and where it keeps its data."""
    say(f"pointsman {__version__} · dev mode: no sign-in, 127.0.0.1 only")
    row("dispatcher", url, f"database  {database} (kept; --fresh to start over)")


def found(report: Found, shown: str) -> None:
    """What was found, a workflow a line."""
    first, *rest = [_workflow(each) for each in report.workflows] or [""]
    row("found", f"{report.what} in {shown}", first)
    for line in rest:
        row("", "", line)
    if report.others:
        row("not served", ", ".join(report.others), f"to serve it instead: pointsman dev {shown}:{report.others[0]}")


def served(report: Found, url: str, probe: EndpointTested | None) -> None:
    """How it is served, and what came of the signed probe; None where there is nothing to probe."""
    if probe is None:
        row("served as", _HOW[report.kind], "takes runs by itself")
    elif probe.ok:
        row("served as", _HOW[report.kind], f"{url}   signed probe ok, {probe.ms} ms")
    else:
        row("served as", _HOW[report.kind], f"{url}   signed probe failed: {probe.message} ({probe.code})")
        if probe.code == "signature_mismatch":
            row("", "", "leave secret= out of the program: dev hands it over as POINTSMAN_SIGNING_SECRET")


def next_step(report: Found, option: str) -> None:
    """A command that starts a run; *option* names this dispatcher unless it is where every command looks."""
    sample = next((each for each in report.workflows if each.sample is not None), None)
    if sample is not None:
        given = "" if sample.sample == "null" else f" {shlex.quote(sample.sample or '')}"
        say(f"$ pointsman run start {shlex.quote(sample.name)}{given} --watch{option}")


def failed(text: str, consequence: str) -> None:
    """Why the program cannot be served, and what happens now."""
    say(text)
    say(f"  error      {consequence}")


def row(title: str, *cells: str) -> None:
    """A line of the table."""
    say(f"  {title:<10} {'  '.join(_padded(cells))}".rstrip())


def say(line: str) -> None:
    """*line*, at once even into a pipe."""
    print(line, flush=True)


def _padded(cells: Iterable[str]) -> list[str]:
    *first, last = cells
    return [*(f"{cell:<26}" for cell in first), last]


def _workflow(each: Described) -> str:
    types = "" if each.takes == each.gives == "?" else f"  ({each.takes} -> {each.gives})"
    return f"{each.name} {each.version}{types}   {', '.join(each.tasks)}".rstrip()
