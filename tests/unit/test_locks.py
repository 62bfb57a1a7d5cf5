"""infra/requirements: every lock is complete, hashed, free of addresses, and agrees with pyproject.toml."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    "build": ([], ["build"]),
    "demo": (["server"], ["demo", "build"]),
    "sdk": ([], ["sdk-test", "build"]),
    "server": (["server", "sqs", "redis"], []),
    "test": (["server", "sqs", "redis"], ["test", "build"]),
}


def lock(name: str) -> str:
    return (ROOT / f"infra/requirements/{name}.txt").read_text()


def declared(extras: list[str], groups: list[str]) -> list[Requirement]:
    """What pyproject.toml asks for, groups within groups included."""
    found = [] if groups == ["build"] else list(PROJECT["project"]["dependencies"])
    for extra in extras:
        found += PROJECT["project"]["optional-dependencies"][extra]
    waiting = list(groups)
    while waiting:
        for item in PROJECT["dependency-groups"][waiting.pop()]:
            if isinstance(item, dict):
                waiting.append(item["include-group"])
            else:
                found.append(item)
    return [Requirement(text) for text in found]


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_lock_pins_what_is_declared(name: str) -> None:
    """Each declared requirement is pinned to a release it allows; a stale lock says which one it misses."""
    pinned = {canonicalize_name(found): version for found, version in re.findall(r"(?m)^([\w.-]+)==(\S+)", lock(name))}
    wrong = [
        str(requirement)
        for requirement in declared(*LOCKS[name])
        if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"), prereleases=True)
    ]

    assert wrong == [], "run infra/lock"


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_every_release_is_hashed(name: str) -> None:
    """No release can be exchanged for another file."""
    entries = re.split(r"(?m)^(?=[\w.-]+==)", lock(name))[1:]

    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_no_address_is_written_down(name: str) -> None:
    """Where releases come from is the machine's configuration, not the project's."""
    assert "://" not in lock(name)
    assert re.findall(r"(?m)^\s*--?(?!hash=)\w.*", lock(name)) == []


def test_every_lock_is_looked_at() -> None:
    """A lock that nobody declares is a lock that nobody refreshes."""
    assert sorted(path.stem for path in (ROOT / "infra/requirements").glob("*")) == sorted(LOCKS)
