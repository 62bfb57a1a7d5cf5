"""How commands speak: tables and JSON to stdout, words and errors to stderr, one exit code per kind of failure."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn

import typer

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNREACHABLE: Final = 5


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Output = Annotated[Format, typer.Option("-o", "--output", help="What to print.", case_sensitive=False)]


def say(words: str) -> None:
    """*words* for a person, on stderr."""
    print(words, file=sys.stderr)


def fail(code: int, error: dict[str, Any], output: Format) -> NoReturn:
    """Tells the error object on stderr, as JSON or in words, and exits with *code*."""
    if output is Format.TABLE:
        say(f"error: {error.get('message', '')} ({error.get('code', 'unknown')})")
        if error.get("hint"):
            say(f"hint: {error['hint']}")
    else:
        say(json.dumps({"error": error}, ensure_ascii=False))
    raise typer.Exit(code)


def show(text: str, output: Format, table: Callable[[Any], None]) -> None:
    """Prints the API's answer *text*: unchanged as JSON, an item a line as JSONL, or by *table*."""
    if output is Format.JSON:
        print(text)
        return
    data = json.loads(text)
    if output is Format.TABLE:
        table(data)
        return
    for item in data["items"] if isinstance(data.get("items"), list) else [data]:
        print(json.dumps(item, ensure_ascii=False, separators=(",", ":")))


def rows(columns: Sequence[str], items: Iterable[Sequence[object]]) -> None:
    """A table on stdout, as wide as a terminal or, into a pipe, as its content; the first column is never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [[_cell(value) for value in item] for item in items]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        width = max([len(column), *(len(line[place]) for line in lines)])
        table.add_column(column, no_wrap=True, min_width=width if place == 0 else None)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    Console(width=None if sys.stdout.isatty() else 100_000, highlight=False).print(table)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value not in (None, "", {}, [])]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {_cell(value)}")


def printable(text: str) -> str:
    """*text* without what could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
