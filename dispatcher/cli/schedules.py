"""`pointsman schedule …`"""

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="Schedules: what starts by the clock.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The schedule's name.", show_default=False)]

_COLUMNS: Final = ("name", "workflow", "rule", "owner", "state", "next", "last", "skipped", "problem")


@commands.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many to list.")] = 50,
    after: Annotated[str | None, typer.Option(help="The `next` of the page before.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """List schedules, with the next occurrence and the one that started last."""
    query = {"limit": limit, "after": after}
    text = Client(url, api_key, namespace, o).call("GET", "/v1/schedules", query=query)
    output.show(text, o, _list)


@commands.command("show")
def show(
    name: Name,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Show a schedule, its next five occurrences and the run it started last."""
    text = Client(url, api_key, namespace, o).call("GET", _path(name))
    output.show(text, o, _shown)


@commands.command("run-now")
def run_now(
    name: Name,
    request_id: Annotated[str | None, typer.Option(help="Makes a repeat harmless.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Start a run of a schedule now, beside its occurrences."""
    text = Client(url, api_key, namespace, o).call("POST", f"{_path(name)}/run-now", {"requestId": request_id})
    columns = ("id", "workflow", "version", "status")
    output.show(text, o, lambda data: output.rows(columns, [[data["run"][column] for column in columns]]))


@commands.command("pause")
def pause(
    name: Name,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Start nothing until it is resumed; occurrences meanwhile are not made up for."""
    text = Client(url, api_key, namespace, o).call("POST", f"{_path(name)}/pause", {})
    output.show(text, o, lambda data: _table([data["schedule"]]))


@commands.command("resume")
def resume(
    name: Name,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Go on with the next occurrence from now."""
    text = Client(url, api_key, namespace, o).call("POST", f"{_path(name)}/resume", {})
    output.show(text, o, lambda data: _table([data["schedule"]]))


@commands.command("backfill")
def backfill(
    name: Name,
    *,
    begin: Annotated[str, typer.Option("--from", help="The first moment: 2026-12-01T00:00:00Z.", show_default=False)],
    end: Annotated[str, typer.Option("--to", help="The moment behind the last.", show_default=False)],
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Start what was due from one moment to another; an occurrence that started before is not started again."""
    body = {"from": begin, "to": end}
    text = Client(url, api_key, namespace, o).call("POST", f"{_path(name)}/backfill", body)
    output.show(text, o, _backfilled)


def _list(data: Any) -> None:
    _table(data["items"])
    if data["next"] is not None:
        output.say(f"More: --after {data['next']}")


def _table(items: list[dict[str, Any]]) -> None:
    output.rows(_COLUMNS, ([_cell(item, column) for column in _COLUMNS] for item in items))


def _cell(item: dict[str, Any], column: str) -> object:
    if column == "rule":
        return _rule(item)
    if column == "next":
        return item["next"][0] if item["next"] else None
    if column == "last":
        return item["last"] and item["last"]["scheduledFor"]
    return item[column]


def _rule(item: dict[str, Any]) -> str:
    if item["cron"] is None:
        return f"every {item['everyMs'] / 1_000:g} s"
    return str(item["cron"]) if item["timezone"] == "UTC" else f"{item['cron']} {item['timezone']}"


def _shown(data: Any) -> None:
    item, last = data["schedule"], data["schedule"]["last"]
    ran = last and f"{last['scheduledFor']}  {last['runId']}  {last['status'] or 'gone'}"
    occurrences = [("next", moment) for moment in item["next"]]
    output.facts([*{**item, "last": ran, "next": None}.items(), *occurrences])


def _backfilled(data: Any) -> None:
    columns = ("scheduledFor", "runId", "created")
    output.rows(columns, ([item[column] for column in columns] for item in data["runs"]))


def _path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"
