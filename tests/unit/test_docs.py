"""The documents for maintainers name tests and files: what they name exists. Examples of the test kit run."""

import re
import types
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "infra/docs/protocol.md"


def _named_tests() -> list[tuple[str, str]]:
    found, file = [], ""
    for path, name in re.findall(r"`([\w/.]*\.py)?::(test_\w+)", PROTOCOL.read_text()):
        file = path or file
        found.append((file, name))
    return found


def test_the_protocol_names_tests() -> None:
    """Every invariant of this version is backed; the reading of the document finds them."""
    assert len(_named_tests()) > 100


@pytest.mark.parametrize(("file", "name"), _named_tests())
def test_tests_of_the_protocol_exist(file: str, name: str) -> None:
    """Every `file::test` of the protocol is a test of this tree."""
    assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "document",
    ["README.md", "infra/docs/protocol.md", "infra/docs/wire.md", "infra/docs/lambda.md", "infra/docs/testing.md"],
)
def test_files_of_the_documents_exist(document: str) -> None:
    """Every module a document names by its path from the top of the tree is there."""
    named = re.findall(
        r"`((?:dispatcher|endpoint_sdk|publishers|infra|tests)/[\w/]+\.(?:py|md|txt))`", (ROOT / document).read_text()
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def _examples_of_the_kit() -> list[Callable[[], None]]:
    """The tests in the kit's chapter; the one on a real dispatcher is left to the acceptance suite."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "infra/docs/testing.md").read_text(), re.DOTALL)
    module = types.ModuleType("testing_chapter")
    exec(compile("\n".join(blocks), "infra/docs/testing.md", "exec"), module.__dict__)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    return [test for test in tests if test.__name__ != "test_end_to_end"]


@pytest.mark.parametrize("example", _examples_of_the_kit(), ids=lambda example: example.__name__)
def test_examples_of_the_test_kit_run(example: Callable[[], None]) -> None:
    """Every test a reader finds in the chapter passes as it stands there."""
    example()
