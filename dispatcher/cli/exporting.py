"""`pointsman run export`: a run, all of its records and its children's results, as the test kit replays them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import typer
from msgspec import Raw

from dispatcher.cli.client import Client

_PAGE: Final = 500


class _Run(msgspec.Struct):
    run: Raw


class _Page(msgspec.Struct):
    items: list[Raw]
    next: int | str | None = None


class _Kind(msgspec.Struct):
    kind: str = ""


class _Child(msgspec.Struct, rename="camel"):
    """A child as a list of them shows it."""

    id: str
    status: str
    kind: str | None
    name: str | None
    args_hash: str | None
    ordinal: int | None
    index: int | None


class _Result(msgspec.Struct):
    result: Raw = Raw(b"null")


class _Outcome(msgspec.Struct):
    """What a child of a call of many came to; *call* is the call, "kind:argsHash:ordinal:name"."""

    call: str
    index: int
    id: str
    status: str
    result: Raw


class _Export(msgspec.Struct):
    """Payloads keep their bytes: nothing in them is read here."""

    run: Raw
    records: list[Raw]
    children: list[_Outcome]


def export(client: Client, path: str, to: Path | None) -> None:
    """Writes {run, records, children} of the run at *path* to the file *to*, or to stdout.

    Records first: whatever the run does meanwhile, its view is no older than they are. The record of a call of many
    children does not hold their results: *children* does.
    """
    records = list(_pages(client, f"{path}/records"))
    run = msgspec.json.decode(client.call("GET", path), type=_Run).run
    many = any(msgspec.json.decode(record, type=_Kind).kind == "children" for record in records)
    children = list(_children(client, path)) if many else []
    text = msgspec.json.encode(_Export(run, records, children)).decode()
    if to is None:
        print(text)
        return
    try:
        to.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{to} cannot be written: {error.strerror}") from None


def _pages(client: Client, path: str) -> Iterator[Raw]:
    after: int | str | None = None
    while True:
        query = {"limit": _PAGE, "after": after}
        page = msgspec.json.decode(client.call("GET", path, query=query), type=_Page)
        yield from page.items
        after = page.next
        if after is None:
            return


def _children(client: Client, path: str) -> Iterator[_Outcome]:
    for item in _pages(client, f"{path}/children"):
        child = msgspec.json.decode(item, type=_Child)
        if child.kind != "children" or child.status != "completed" or child.index is None:
            continue
        found = client.call("GET", f"/v1/runs/{quote(child.id, safe='')}/result")
        call = f"{child.kind}:{child.args_hash}:{child.ordinal}:{child.name}"
        result = msgspec.json.decode(found, type=_Result).result
        yield _Outcome(call, child.index, child.id, child.status, result)
