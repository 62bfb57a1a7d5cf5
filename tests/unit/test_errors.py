"""Every refusal the dispatcher makes has one code of one class, and every code is used."""

import ast
from collections.abc import Iterator
from pathlib import Path

from dispatcher import errors
from dispatcher.api import errors as api_errors

ROOT = Path(errors.__file__).parent
REFUSALS = {
    name: item for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, errors.Refusal)
}


def raised() -> Iterator[tuple[str, str, str]]:
    """(class, code, place) of every refusal made with a literal code in the dispatcher."""
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            code = node.args[0]
            if name in REFUSALS and isinstance(code, ast.Constant):
                yield name, str(code.value), f"{file.name}:{node.lineno}"


def test_every_code_is_raised() -> None:
    """A code that nothing raises is a promise nobody keeps."""
    assert errors.CODES.keys() - {code for _, code, _ in raised()} == set()


def test_every_refusal_has_a_known_code_of_its_class() -> None:
    """A refusal's status never depends on where it is raised: a code belongs to one class."""
    wrong = [(name, code, place) for name, code, place in raised() if errors.CODES.get(code) is not REFUSALS[name]]

    assert wrong == []


def test_every_class_has_a_status_and_is_answered() -> None:
    """Each class of refusal has its own HTTP status and becomes an error object with it."""
    classes = [item for item in REFUSALS.values() if item is not errors.Refusal]

    assert len({item.status for item in classes}) == len(classes)
    for item in classes:
        answer = api_errors.refused(item("code", "message", hint="hint", retry_after=3), "req_1")
        assert answer.status == item.status
        assert b'"requestId":"req_1"' in answer.body
        assert (b"retry-after", b"3") in answer.headers


def test_the_tree_in_the_docstring_names_every_class() -> None:
    """The drawn tree is the tree."""
    assert errors.__doc__ is not None
    for name, item in REFUSALS.items():
        assert name in errors.__doc__
        assert item.__bases__ == (errors.DispatcherError,) if name == "Refusal" else item.__bases__ == (errors.Refusal,)
