"""`pointsman publisher …`"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="Publishers that deliver runs: endpoints, SQS queues, Redis.", no_args_is_help=True)

_COLUMNS = ("name", "type", "url", "state", "reason", "owner")


@commands.command("list")
def list_(o: Output = Format.TABLE, url: Url = DEFAULT_URL, api_key: ApiKey = "", namespace: Namespace = None) -> None:
    """List publishers with their states."""
    text = Client(url, api_key, namespace, o).call("GET", "/v1/publishers")
    output.show(text, o, _table)


@commands.command("show")
def show(
    name: Annotated[str, typer.Argument(help="The publisher's name.", show_default=False)],
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Show a publisher, its state and what to do about it."""
    text = Client(url, api_key, namespace, o).call("GET", f"/v1/publishers/{quote(name, safe='')}")
    output.show(text, o, lambda data: output.facts(list(data["publisher"].items())))


def _table(data: Any) -> None:
    output.rows(_COLUMNS, ([item[name] for name in _COLUMNS] for item in data["items"]))
    for item in data["items"]:
        if item["advice"]:
            output.say(f"{item['name']}: {item['advice']} ({item['reason']})")
