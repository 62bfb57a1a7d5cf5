"""What `pointsman dev` was pointed at: a file or a module, and perhaps a name in it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class NoSuchTarget(Exception):
    """There is no such file or module; the message says what to write."""


@dataclass(frozen=True)
class Target:
    """A module by its dotted name, importable with *root* on the path; *name* in it, None for what is found."""

    root: Path
    module: str
    name: str | None
    shown: str


def parse(text: str, folder: Path) -> Target:
    """The target that *text* names in *folder*: `app.py`, `app:endpoint`, `src/shop/app.py`, `shop.app`.

    A file inside packages becomes their submodule. Raises NoSuchTarget.
    """
    place, _, name = text.partition(":")
    if name and not name.isidentifier():
        raise NoSuchTarget(f"{name!r} is no name; write app.py, app.py:name or package.module:name.")
    file = folder / place
    if place.endswith(".py") or file.is_dir():
        return _of_file(file, name or None, place)
    if not _MODULE.fullmatch(place):
        raise NoSuchTarget(f"{place!r} is neither a Python file nor a module; write app.py or package.module.")
    below = folder.joinpath(*place.split("."))
    if below.with_suffix(".py").is_file() or below.is_dir():
        return Target(folder, place, name or None, place)
    raise NoSuchTarget(f"There is no module {place} in {folder}; write the path of a file, such as app.py.")


def _of_file(file: Path, name: str | None, shown: str) -> Target:
    file = file.resolve()
    if file.is_dir():
        parts, root = [file.name], file.parent
        file = file / "__init__.py"
    else:
        parts, root = [file.stem], file.parent
    if not file.is_file():
        raise NoSuchTarget(f"There is no file {file}.")
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    module = ".".join(part for part in parts if part != "__init__")
    if not _MODULE.fullmatch(module):
        raise NoSuchTarget(f"{file.name} cannot be imported by that name: use letters, digits and underscores.")
    return Target(root, module, name, shown)
