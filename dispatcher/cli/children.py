"""`pointsman run children`."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output
from dispatcher.cli.runs import RunId

_COLUMNS = ("id", "workflow", "version", "status", "reason", "kind", "ordinal", "index", "createdAt", "finishedAt")


def children(
    run_id: RunId,
    *,
    status: Annotated[str | None, typer.Option()] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    after: Annotated[str | None, typer.Option(help="The `next` of the page before.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """List the children a run has started, the oldest first."""
    query: dict[str, Any] = {"status": status, "limit": limit, "after": after}
    text = Client(url, api_key, namespace, o).call("GET", f"/v1/runs/{quote(run_id, safe='')}/children", query=query)
    output.show(text, o, _table)


def _table(data: Any) -> None:
    output.rows(_COLUMNS, ([item[name] for name in _COLUMNS] for item in data["items"]))
    if data["next"]:
        output.say(f"more: --after {data['next']}")
