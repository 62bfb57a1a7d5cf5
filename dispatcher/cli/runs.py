"""`pointsman run …`"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dispatcher.cli import exporting, following, output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="Start runs, look at them, move them on.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="ID", help="A run id (run_…).", show_default=False)]
Reason = Annotated[str, typer.Option(help="Kept in the run's history.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="May be repeated.")]


@commands.command("start")
def start(
    workflow: Annotated[str, typer.Argument(show_default=False)],
    payload: Annotated[
        str, typer.Argument(metavar="[INPUT]", help="JSON, @file, or - for stdin.", show_default=False)
    ] = "null",
    *,
    version: Annotated[str | None, typer.Option(help="Default: the one discovered last.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="One run per key.")] = None,
    priority: Annotated[int, typer.Option(min=0, max=9)] = 5,
    pool: Annotated[str, typer.Option()] = "default",
    tag: Tags = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until the run is due.", min=0)] = None,
    due_at: Annotated[str | None, typer.Option(help="When the run is due: 2026-12-24T18:00:00Z.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the result.", min=0)] = 0,
    watch: Annotated[bool, typer.Option("--watch", help="Tell what happens until the run has ended.")] = False,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Submit a run."""
    client = Client(url, api_key, namespace, o)
    body = {
        "workflow": workflow,
        "version": version,
        "input": _input(payload),
        "idempotencyKey": idempotency_key,
        "priority": priority,
        "pool": pool,
        "tags": tags_of(tag),
        "delayMs": None if delay is None else round(delay * 1_000),
        "dueAt": due_at,
    }
    text = client.call("POST", "/v1/runs", body)
    run_id = json.loads(text)["run"]["id"]
    if watch:
        output.say(f"{run_id} submitted")
        following.follow(client, path_of(run_id), o)
        return
    if not wait:
        output.show(text, o, lambda data: summary([data["run"]]))
        return
    output.say(f"{run_id} submitted; waiting")
    _wait(client, run_id, wait, o)


@commands.command("list")
def list_(
    *,
    status: Annotated[str | None, typer.Option()] = None,
    reason: Annotated[str | None, typer.Option(help="Why they are in their status.")] = None,
    workflow: Annotated[str | None, typer.Option()] = None,
    version: Annotated[str | None, typer.Option()] = None,
    idempotency_key: Annotated[str | None, typer.Option()] = None,
    tag: Tags = None,
    stuck_for_ms: Annotated[int | None, typer.Option(help="Unfinished and unmoved for so long.", min=0)] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    after: Annotated[str | None, typer.Option(help="The `next` of the page before.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """List runs, the newest first."""
    query: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "workflow": workflow,
        "version": version,
        "idempotencyKey": idempotency_key,
        "stuckForMs": stuck_for_ms,
        "limit": limit,
        "after": after,
    }
    query.update({f"tag.{key}": value for key, value in tags_of(tag).items()})
    text = Client(url, api_key, namespace, o).call("GET", "/v1/runs", query=query)
    output.show(text, o, _list)


@commands.command("show")
def show(
    run_id: RunId,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Show a run and its history."""
    client = Client(url, api_key, namespace, o)
    text = client.call("GET", path_of(run_id))

    def table(data: Any) -> None:
        output.facts(list(data["run"].items()))
        history = json.loads(client.call("GET", f"{path_of(run_id)}/transitions", query={"limit": 500}))
        print()
        columns = ("revision", "from", "to", "reason", "actor", "at")
        output.rows(columns, ([item[name] for name in columns] for item in history["items"]))

    output.show(text, o, table)


@commands.command("why")
def why(
    run_id: RunId,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Say in one sentence why a run is not moving, and the command to type next."""
    text = Client(url, api_key, namespace, o).call("GET", f"{path_of(run_id)}/why")

    def table(data: Any) -> None:
        print(output.printable(data["sentence"]))
        if data["next"]:
            print(f"next: {data['next']}")

    output.show(text, o, table)


@commands.command("watch")
def watch(
    run_id: RunId,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Tell what happens to a run until it has ended; exit code 1 unless it completed.

    With -o jsonl one object a happening: {"type": "transition" | "record" | "end", …}.
    """
    following.follow(Client(url, api_key, namespace, o), path_of(run_id), o)


@commands.command("export")
def export(
    run_id: RunId,
    to: Annotated[Path | None, typer.Option(help="The file to write. Default: stdout.", show_default=False)] = None,
    o: Output = Format.JSON,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Write a run and its records as JSON, for the test kit to replay: WorkflowTester().replay(workflow, FILE)."""
    exporting.export(Client(url, api_key, namespace, o), path_of(run_id), to)


@commands.command("send")
def send(
    run_id: RunId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.", show_default=False)],
    value: Annotated[
        str, typer.Argument(metavar="[VALUE]", help="JSON, @file, or - for stdin.", show_default=False)
    ] = "null",
    event_id: Annotated[str | None, typer.Option(help="A run takes one event of a name and an id.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Send an event to a run."""
    client = Client(url, api_key, namespace, o)
    body = {"name": event, "value": _input(value), "eventId": event_id}
    text = client.call("POST", f"{path_of(run_id)}/events", body)
    output.show(text, o, lambda data: output.facts(list(data.items())))


def _wait(client: Client, run_id: str, seconds: float, shown: Format) -> None:
    import time

    deadline = time.monotonic() + seconds
    while True:
        left_ms = max(0, round((deadline - time.monotonic()) * 1_000))
        text = client.call("GET", f"{path_of(run_id)}/result", query={"waitMs": min(left_ms, 20_000)}, wait=20)
        status = json.loads(text)["status"]
        ended = status in {"completed", "failed", "cancelled"}
        if ended or left_ms == 0:
            output.show(text, shown, lambda data: output.facts(list(data.items())))
            if status != "completed":
                raise typer.Exit(output.FAILED)
            return


def _list(data: Any) -> None:
    summary(data["items"])
    if data["next"]:
        output.say(f"more: --after {data['next']}")


def summary(items: list[dict[str, Any]]) -> None:
    """Runs, a line each."""
    columns = ("id", "workflow", "version", "status", "reason", "revision", "attempt", "updatedAt")
    output.rows(columns, ([item[name] for name in columns] for item in items))


def path_of(run_id: str) -> str:
    """The path of a run in the API."""
    return f"/v1/runs/{quote(run_id, safe='')}"


def _input(text: str) -> Any:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"{text} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}; text needs quotes of its own") from None


def tags_of(given: list[str] | None) -> dict[str, str]:
    """What was given as KEY=VALUE; anything else is wrong usage."""
    tags = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"--tag {item}: write KEY=VALUE")
        tags[key] = value
    return tags
