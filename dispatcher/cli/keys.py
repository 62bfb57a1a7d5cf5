"""`pointsman key …`"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dispatcher.cli import output
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Url
from dispatcher.cli.output import Format, Output

commands = typer.Typer(help="API keys.", no_args_is_help=True)

Scopes = Annotated[list[str], typer.Option("--scope", help="admin, operate, submit, read or execute; repeatable.")]


@commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Shown in histories.", show_default=False)],
    scope: Scopes,
    namespace: Annotated[str, typer.Option(help="Where the key works.")] = "default",
    database: Annotated[
        str | None, typer.Option(help="Write to this database directly, for the first key of all.")
    ] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Create a key; it is shown once."""
    body = {"name": name, "scopes": scope, "namespace": namespace}
    text = _directly(database, body, o) if database else Client(url, api_key, None, o).call("POST", "/v1/keys", body)

    def table(data: Any) -> None:
        print(data["key"])
        output.say(f"{data['id']}: {', '.join(data['scopes'])} in {data['namespace']}. It is not shown again.")

    output.show(text, o, table)


@commands.command("list")
def list_(o: Output = Format.TABLE, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """List keys, without their secrets."""
    text = Client(url, api_key, None, o).call("GET", "/v1/keys")
    columns = ("id", "name", "scopes", "namespace", "createdAt", "revokedAt")
    output.show(
        text, o, lambda data: output.rows(columns, ([item[name] for name in columns] for item in data["items"]))
    )


@commands.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Revoke a key; it stops working within seconds everywhere."""
    text = Client(url, api_key, None, o).call("DELETE", f"/v1/keys/{quote(key_id, safe='')}")
    output.show(text, o, lambda data: output.facts(list(data["key"].items())))


def _directly(database: str, body: dict[str, Any], shown: Format) -> str:
    import msgspec

    from dispatcher import access, app, errors
    from endpoint_sdk.wire.operating import CreateKey

    try:
        request = msgspec.convert(body, CreateKey)
        store = app.open_store(database)
        try:
            return msgspec.json.encode(access.create_blocking(store, request)).decode()
        finally:
            store.close()
    except msgspec.ValidationError as error:
        output.fail(output.USAGE, {"code": "malformed", "message": f"{error}."}, shown)
    except errors.Unavailable as error:
        output.fail(output.UNREACHABLE, {"code": error.code, "message": error.message}, shown)
    except (errors.StartUpError, errors.BadRequest) as error:
        output.fail(output.FAILED, {"code": error.code, "message": error.message, "hint": error.hint}, shown)
