"""YAML with positions: text to plain data, where every value remembers its line and column.

Nothing is raised for a faulty document; each fault becomes a `Problem`, so that a user sees them all at once.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml
from msgspec import Struct
from yaml.constructor import ConstructorError, SafeConstructor

Path = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = _TAG + "merge"
# A brace would end a plain scalar inside `{ url: ${URL} }`, so braces of variables travel through the YAML scanner as
# two private characters; every position stays as it was.
_BRACED: Final = re.compile(r"""\$\{([^{}\n"']*)\}""")
_OPEN, _CLOSE = "\ue000", "\ue001"
_BRACES: Final = str.maketrans(_OPEN + _CLOSE, "{}")
_VARIABLE: Final = re.compile(rf"\$(?:(\$)|{_OPEN}([A-Za-z_][A-Za-z0-9_]*)(?::-([^{_CLOSE}]*))?{_CLOSE}|([{{{_OPEN}]))")
_MAX_NODES: Final = 20_000


class Problem(Struct, frozen=True, rename="camel"):
    """One fault of a configuration, and where it stands; `line` and `column` count from 1."""

    line: int | None
    column: int | None
    path: str
    code: str
    message: str
    hint: str | None = None


class Position(Struct, frozen=True):
    line: int
    column: int


class FromText(str):
    """Text that came from the environment, so numbers and booleans arrive as text too."""

    __slots__ = ()


class Document(Struct):
    """Plain data of a YAML text, the position of each key and value by path, and what is wrong with it."""

    data: dict[str, Any]
    keys: dict[Path, Position]
    values: dict[Path, Position]
    problems: list[Problem]

    def problem(self, path: Path, code: str, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """A problem at *path*, positioned at its value (or key), else at the nearest section that was written."""
        position = (self.keys if key else self.values).get(path)
        outer = path
        while position is None and outer:
            outer = outer[:-1]
            position = self.keys.get(outer) or self.values.get(outer)
        line, column = (position.line, position.column) if position else (None, None)
        return Problem(line, column, written(path), code, message, hint)


def written(path: Path) -> str:
    """*path* as a person writes it: `routes[0].publish`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def parse(text: str, environ: Mapping[str, str]) -> Document:
    """The document in *text* with `${VAR}` and `${VAR:-default}` replaced from *environ* (`$$` is a dollar sign)."""
    document = Document({}, {}, {}, [])
    try:
        loader = yaml.SafeLoader(_BRACED.sub(rf"${_OPEN}\1{_CLOSE}", text))
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        document.problems.append(_syntax(error))
        return document
    if root is not None:
        _Reader(document, environ).read_root(root)
    return document


def _syntax(error: Exception) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Problem(line, column, "", "yaml_syntax", f"This is not YAML: {what}.")


class _Reader:
    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self._nodes = 0
        self._open: set[int] = set()

    def read_root(self, root: yaml.Node) -> None:
        self._document.values[()] = _position(root)
        if isinstance(root, yaml.MappingNode):
            self._document.data = self._mapping(root, ())
        elif not (isinstance(root, yaml.ScalarNode) and root.tag == _TAG + "null"):
            self._fault((), "wrong_type", "A configuration is a mapping of sections such as server and publishers.")

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._document.values.setdefault(path, _position(node))
        self._nodes += 1
        if self._nodes > _MAX_NODES or id(node) in self._open or len(path) > 20:
            if self._nodes <= _MAX_NODES + 1:
                self._fault(path, "too_deep", "This anchor repeats itself, or the file is nested too deeply.")
            return None
        if not isinstance(node, yaml.ScalarNode) and node.tag not in {_TAG + "map", _TAG + "seq"}:
            self._fault(path, "wrong_type", f"The YAML tag {node.tag!r} is not understood here.")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif not isinstance(key_node, yaml.ScalarNode):
                self._fault(path, "wrong_type", "A key is plain text.")
            elif (key := _key(key_node)) in data:
                self._duplicate(key_node, (*path, key))
            else:
                self._document.keys[*path, key] = _position(key_node)
                data[key] = self._value(value_node, (*path, key))
        for source in merged:
            self._merge(source, path, data)
        return data

    def _merge(self, source: yaml.Node, path: Path, data: dict[str, Any]) -> None:
        if not isinstance(source, yaml.MappingNode) or id(source) in self._open:
            self._fault(path, "wrong_type", "Only a mapping can be merged with <<.")
            return
        below: dict[str, Any] = {}
        for key_node, value_node in source.value:
            if (key := _key(key_node)) not in data:
                self._document.keys.setdefault((*path, key), _position(key_node))
                below[key] = self._value(value_node, (*path, key))
        data.update(below)

    def _duplicate(self, key_node: yaml.Node, path: Path) -> None:
        position = _position(key_node)
        message, hint = f"The key {path[-1]!r} is written twice; only one can hold.", "Remove one of them."
        problem = Problem(position.line, position.column, written(path), "duplicate_key", message, hint)
        self._document.problems.append(problem)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return None
        kind = node.tag.removeprefix(_TAG)
        if kind in {"str", "timestamp"}:
            return self._substitute(str(node.value), path)
        if kind not in {"int", "float", "bool", "null"}:
            self._fault(path, "wrong_type", f"The YAML tag {node.tag!r} is not understood here.")
            return None
        try:
            return SafeConstructor().construct_object(node)
        except (ConstructorError, ValueError):
            return str(node.value)

    def _substitute(self, text: str, path: Path) -> str:
        if "$" not in text:
            return text

        def replaced(match: re.Match[str]) -> str:
            dollar, name, default, broken = match.groups()
            if dollar:
                return "$"
            if broken:
                self._fault(path, "variable_malformed", "A variable is written ${NAME} or ${NAME:-default}.")
                return ""
            value: str | None = self._environ.get(name, default)
            if value is None:
                hint = f"Set {name}, or write ${{{name}:-default}}."
                self._fault(path, "variable_unset", f"The environment variable {name} is not set.", hint)
            return value or ""

        return FromText(_VARIABLE.sub(replaced, text).translate(_BRACES))

    def _fault(self, path: Path, code: str, message: str, hint: str | None = None) -> None:
        self._document.problems.append(self._document.problem(path, code, message, hint))


def _key(node: yaml.Node) -> str:
    return str(node.value).translate(_BRACES)


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
