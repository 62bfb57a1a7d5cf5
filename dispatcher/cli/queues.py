"""`pointsman queue …` and `pointsman executor …`"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="Queues: what waits for which workflow.", no_args_is_help=True)
executors = typer.Typer(help="Executors: who holds claims.", no_args_is_help=True)

Limit = Annotated[int, typer.Option(min=1, max=500, help="How many to list.")]
After = Annotated[int | None, typer.Option(min=0, help="Where the page before ended: its `next`.")]

_QUEUE: Final = ("workflow", "version", "pool", "pending", "published", "claimed", "held", "oldestAgeMs", "polledAgoMs")
_EXECUTOR: Final = ("id", "kind", "host", "sdk", "claims", "oldestRefreshAgeMs")


@commands.command("list")
def list_queues(
    limit: Limit = 50,
    after: After = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """List queues that hold runs, with their counts and who delivers from them."""
    text = Client(url, api_key, namespace, o).call("GET", "/v1/queues", query={"limit": limit, "after": after})
    output.show(text, o, _queues)


@executors.command("list")
def list_executors(
    limit: Limit = 50,
    after: After = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """List executors that hold claims, with how long ago the claim longest silent was refreshed."""
    text = Client(url, api_key, namespace, o).call("GET", "/v1/executors", query={"limit": limit, "after": after})
    output.show(text, o, lambda data: _table(_EXECUTOR, data))


def _queues(data: Any) -> None:
    items = [{**item, "publishers": ", ".join(item["publishers"]) or None} for item in data["items"]]
    _table((*_QUEUE, "publishers"), {**data, "items": items})
    for warning in filter(None, (item.get("warning") for item in data["items"])):
        output.say(f"warning: {warning['message']} ({warning['code']})\n  {warning['hint']}")


def _table(columns: Sequence[str], data: Any) -> None:
    output.rows(columns, ([item[name] for name in columns] for item in data["items"]))
    if data["next"] is not None:
        output.say(f"More: --after {data['next']}")
