"""What the served code declares of its workflows, as submits, failures and schedules find it."""

import time

import pytest

from dispatcher import declarations
from dispatcher.declarations import Declarations
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow, WorkflowRef
from tests.integration.world import World

REPORT = ServedWorkflow("report", "2", accepts=["1"], schedule=Schedule(cron="0 5 * * *"), timeout_ms=1_000)


async def test_a_declaration_is_found_again(world: World) -> None:
    """What was put is found by name and version, whole, and by a version it accepts; nothing else is found."""
    declared = Declarations(world.store)
    await declared.put("default", [REPORT])
    assert await declared.get("default", "report", "2") == REPORT
    assert await declared.get("default", "report", "1") == REPORT
    for key in (("default", "report", "3"), ("default", "other", "2"), ("elsewhere", "report", "2")):
        assert await declared.get(*key) is None
    found = world.store.transact_blocking(lambda session: declarations.find(session, "default", "report", "1"))
    assert found == REPORT
    assert [(item.namespace, item.workflow) for item in await declared.every()] == [("default", REPORT)]


async def test_a_version_of_its_own_and_a_namespace_of_its_own_come_first(world: World) -> None:
    """A version's own declaration beats one that accepts it; a namespace's beats that of an endpoint of every one."""
    declared = Declarations(world.store)
    first, own = ServedWorkflow("report", "1", timeout_ms=5), ServedWorkflow("report", "2", timeout_ms=6)
    await declared.put("*", [REPORT, first])
    await declared.put("default", [own])
    assert await declared.get("default", "report", "1") == first
    assert await declared.get("default", "report", "2") == own
    assert await declared.get("elsewhere", "report", "2") == REPORT


async def test_what_changed_is_written_and_announced_once(world: World) -> None:
    """A changed declaration replaces the one before and is announced; one said again costs nothing."""
    heard: list[str] = []
    world.store.listen("declared", heard.append)
    declared, other = Declarations(world.store), Declarations(world.store)
    await declared.put("default", [REPORT])
    await other.put("default", [REPORT])
    before = world.store.statements
    await declared.put("default", [REPORT])
    assert (world.store.statements - before, heard) == (0, ["default"])
    changed = ServedWorkflow("report", "2", on_failure=WorkflowRef("mend", "1"))
    await declared.put("default", [changed])
    assert heard == ["default", "default"]
    assert await declared.get("default", "report", "2") == changed


async def test_another_dispatchers_change_is_seen_within_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declaration is remembered for a second, after which another dispatcher's is found."""
    declared, other = Declarations(world.store), Declarations(world.store)
    assert await declared.get("default", "report", "2") is None
    await other.put("default", [REPORT])
    assert await declared.get("default", "report", "2") is None
    later = time.monotonic() + 1.5
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert await declared.get("default", "report", "2") == REPORT
