"""`pointsman endpoint …`"""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="Endpoints that runs are pushed to.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The endpoint's name.", show_default=False)]


@commands.command("add")
def add(
    name: Name,
    address: Annotated[str, typer.Argument(metavar="URL", help="Where it is served.", show_default=False)],
    *,
    platform: Annotated[
        str, typer.Option(help="generic, lambda-url, api-gateway, alb, cloud-run or web-function.")
    ] = "generic",
    secret: Annotated[
        str | None,
        typer.Option(help="whsec_…; made for you when left out.", envvar="POINTSMAN_SIGNING_SECRET", show_envvar=False),
    ] = None,
    max_in_flight: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    allow_http: Annotated[bool, typer.Option("--allow-http", help="Plain HTTP, for your own network.")] = False,
    allow_address: Annotated[list[str] | None, typer.Option(help="A private address or network; repeatable.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Register an endpoint and probe it; its secret is shown once."""
    body = {
        "name": name,
        "url": address,
        "platform": platform,
        "secret": secret,
        "maxInFlight": max_in_flight,
        "allowHttp": allow_http,
        "allowAddresses": allow_address or [],
    }
    text = Client(url, api_key, namespace, o).call("POST", "/v1/endpoints", body)
    output.show(text, o, _added)
    tested = json.loads(text)["test"]
    if tested and not tested["ok"]:
        output.say(f"warning: stored, but the probe failed: {tested['message']} ({tested['code']})")


@commands.command("list")
def list_(o: Output = Format.TABLE, url: Url = DEFAULT_URL, api_key: ApiKey = "", namespace: Namespace = None) -> None:
    """List endpoints."""
    text = Client(url, api_key, namespace, o).call("GET", "/v1/endpoints")
    output.show(text, o, lambda data: _table(data["items"]))


@commands.command("show")
def show(
    name: Name,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Show an endpoint, what it serves and its keys."""
    text = Client(url, api_key, namespace, o).call("GET", _path(name))
    output.show(text, o, lambda data: output.facts(list(data["endpoint"].items())))


@commands.command("test")
def probe(
    name: Name,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Send a signed probe and say what came of it; exit code 1 when it failed."""
    text = Client(url, api_key, namespace, o).call("POST", f"{_path(name)}/test", {})
    output.show(text, o, lambda data: output.facts(list(data.items())))
    if not json.loads(text)["ok"]:
        raise typer.Exit(output.FAILED)


def _added(data: Any) -> None:
    _table([data["endpoint"]])
    if data["secret"]:
        print(f"\nPOINTSMAN_SIGNING_SECRET={data['secret']}")
        output.say("This secret is not shown again.")


def _table(items: list[dict[str, Any]]) -> None:
    columns = ("name", "url", "platform", "state", "reason", "owner", "maxInFlight")
    output.rows(
        (*columns, "workflows"),
        ([*(item[name] for name in columns), ", ".join(_served(item))] for item in items),
    )


def _served(item: dict[str, Any]) -> list[str]:
    return [f"{workflow['name']} {workflow['version']}" for workflow in item["workflows"]]


def _path(name: str) -> str:
    return f"/v1/endpoints/{quote(name, safe='')}"
