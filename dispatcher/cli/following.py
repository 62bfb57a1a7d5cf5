"""`pointsman run watch`: what happens to a run, told as it happens, until the run has ended."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import typer

from dispatcher.cli import output
from dispatcher.cli.client import Client
from dispatcher.cli.output import Format

_PAUSE: Final = 0.25
_ENDED: Final = ("completed", "failed", "cancelled", "stalled")
_PAGE: Final = 500
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def follow(client: Client, path: str, shown: Format) -> None:
    """Prints every transition and record of the run at *path* as it comes, then its end.

    As JSONL each is one object with its `type`: transition, record, end. As JSON only the end is printed. Exits with 1
    unless the run completed.
    """
    begun: datetime | None = None
    for happening in _happenings(client, path):
        if shown is Format.JSONL:
            print(json.dumps(happening, ensure_ascii=False, separators=(",", ":")), flush=True)
        elif shown is Format.JSON:
            if happening["type"] == "end":
                print(json.dumps(happening, ensure_ascii=False), flush=True)
        else:
            at = _moment(happening)
            begun = begun or at
            print(f"{_since(begun, at)}  {_sentence(happening)}", flush=True)
    if happening["status"] != "completed":
        raise typer.Exit(output.FAILED)


def _happenings(client: Client, path: str) -> Iterator[dict[str, Any]]:
    revision, seq = None, 0
    while True:
        # Asked for first: what led to an end is then among the pages that follow.
        result = json.loads(client.call("GET", f"{path}/result"))
        moves = _pages(client, f"{path}/transitions", revision)
        records = _pages(client, f"{path}/records", seq)
        found = [{"type": "transition", **item} for item in moves] + [{"type": "record", **item} for item in records]
        yield from sorted(found, key=_place)
        revision = moves[-1]["revision"] if moves else revision
        seq = records[-1]["seq"] if records else seq
        if result["status"] in _ENDED:
            why = json.loads(client.call("GET", f"{path}/why")) if result["status"] == "stalled" else {}
            yield {"type": "end", **result, **{name: why[name] for name in ("sentence", "next") if name in why}}
            return
        time.sleep(_PAUSE)


def _pages(client: Client, path: str, after: int | None) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    while True:
        page = json.loads(client.call("GET", path, query={"limit": _PAGE, "after": after}))
        items += page["items"]
        after = page["next"]
        if after is None:
            return items


def _place(happening: dict[str, Any]) -> tuple[datetime, bool]:
    # A run's last record and its end may carry the same time; the move comes after.
    return _moment(happening) or _LAST, happening["type"] == "transition" and happening["from"] == "running"


def _moment(happening: dict[str, Any]) -> datetime | None:
    text = happening.get("at") or happening.get("finishedAt") or happening.get("startedAt")
    return datetime.fromisoformat(text) if text else None


def _since(begun: datetime | None, at: datetime | None) -> str:
    if begun is None or at is None:
        return " " * 11
    return f"{(at - begun).total_seconds():+9.3f} s"


def _sentence(happening: dict[str, Any]) -> str:
    match happening["type"]:
        case "transition":
            return _move(happening)
        case "record":
            return _record(happening)
        case _:
            return _end(happening)


def _move(move: dict[str, Any]) -> str:
    steps = move["to"] if move["from"] is None else f"{move['from']} -> {move['to']}"
    reason = f"  ({move['reason']})" if move["reason"] else ""
    return output.printable(f"{steps}{reason}  by {move['actor']}")


def _record(record: dict[str, Any]) -> str:
    attempt = f", attempt {record['attempt']}" if record["attempt"] > 1 else ""
    waits = f", again at {record['nextAttemptAt']}" if record.get("nextAttemptAt") else ""
    error = record.get("error")
    said = f": {error.get('type') or error.get('code') or ''} {error.get('message', '')}".rstrip() if error else ""
    call = f"{record['name']} {record.get('preview') or ''}".rstrip()
    return "  " + output.printable(f"{record['kind']} {call} {record['state']}{attempt}{said}{waits}")


def _end(end: dict[str, Any]) -> str:
    error = end.get("error")
    if error:
        said = f"{error.get('type') or error.get('code') or ''}: {error.get('message', '')}"
    elif "sentence" in end:
        said = end["sentence"]
    else:
        said = json.dumps(end["result"], ensure_ascii=False) if "result" in end else ""
    then = f"\nnext: {end['next']}" if end.get("next") else ""
    return f"{end['status']}  {output.printable(said)}".rstrip() + then
