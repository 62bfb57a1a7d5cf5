"""WorkflowTester.replay: a run that was exported, against the code of today."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from endpoint_sdk import ConfigurationError, OutcomeUnknown, Run, SyncRun, task, workflow
from endpoint_sdk.envelope import Envelope
from endpoint_sdk.testing import ReplayDiverged, WorkflowTester

AT = "2026-12-01T10:00:0{}.000Z"
RUN = {"id": "run_1", "namespace": "default", "workflow": "order", "version": "1", "attempt": 1, "laterField": 1}
RUN |= {"createdAt": AT.format(0), "updatedAt": AT.format(9), "input": "o1", "status": "completed", "tags": {}}


class Backwards:
    """A codec as simple as can be."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


@task(name="charge")
def charge(name: str) -> str:
    raise AssertionError("a body ran")


@task(name="pay", at_most_once=True)
def pay(name: str) -> str:
    raise AssertionError("a body ran")


def _record(name: str, value: Any, seq: int = 1, **more: Any) -> dict[str, Any]:
    call = {"name": name, "argsHash": "", "ordinal": 0, "attempt": 1, "seq": seq}
    return {**call, "phase": "ended", "state": "completed", "value": value, "finishedAt": AT.format(seq), **more}


def _file(path: Path, *records: dict[str, Any], **run: Any) -> Path:
    path.write_bytes(msgspec.json.encode({"run": RUN | run, "records": records}))
    return path


@workflow("order")
async def order(run: Run, name: str) -> list[Any]:
    first, second = await asyncio.gather(run.wait_event("e"), run.sleep("s", timedelta(days=1)))
    return [name, first, second, run.now().isoformat()]


SLEPT = _record("s", None, 1, kind="sleep")
SENT = _record("e", {"by": "ana"}, 2, kind="event")


def test_a_history_leads_to_its_end_or_to_where_it_goes_on(tmp_path: Path) -> None:
    """The recorded times are what the code sees; what is not recorded is not waited for."""
    t = WorkflowTester()

    whole = t.replay(order, _file(tmp_path / "1", SLEPT, SENT))
    part = t.replay(order, str(_file(tmp_path / "2", SLEPT)))

    assert (whole.status, whole.result) == ("completed", ["o1", {"by": "ana"}, None, "2026-12-01T10:00:02+00:00"])
    assert (part.status, part.result, part.error) == ("goes on", None, None)


def test_a_cancel_is_raised_where_it_was(tmp_path: Path) -> None:
    """At the call its record names, whatever the run was asked since."""
    cancelled = _record("e", {"kind": "event", "phase": "ended"}, 1, kind="cancel")

    assert WorkflowTester().replay(order, _file(tmp_path / "1", cancelled)).status == "cancelled"


def test_a_task_that_is_not_recorded_does_not_run(tmp_path: Path) -> None:
    """Neither one that was never started nor one that was, whose outcome nobody knows."""

    @workflow("order")
    def handler(run: SyncRun, name: str) -> str:
        try:
            return run.task(pay, name)
        except OutcomeUnknown:
            return run.task(charge, name)

    t = WorkflowTester()
    assert t.replay(handler, _file(tmp_path / "1")).status == "goes on"


def test_recorded_calls_that_are_not_made_diverge(tmp_path: Path) -> None:
    """Where the code asks for something else instead; where it just leaves one out, it goes through."""

    @workflow("order")
    async def other(run: Run, name: str) -> None:
        await run.sleep("another", timedelta(days=1))

    @workflow("order")
    async def fewer(run: Run, name: str) -> str:
        return name

    t = WorkflowTester()
    with pytest.raises(ReplayDiverged, match="recorded sleep s was never asked for, sleep another is new"):
        t.replay(other, _file(tmp_path / "1", SLEPT))
    assert t.replay(fewer, _file(tmp_path / "2", SLEPT)).result == "o1"


def test_sealed_payloads_are_opened_by_the_codec(tmp_path: Path) -> None:
    """Without it they cannot be read, and nothing is said about the code."""
    sealed = Envelope(Backwards())
    path = _file(
        tmp_path / "1",
        SLEPT | {"value": sealed.seal(b"null")},
        SENT | {"value": sealed.seal(b"5")},
        input=sealed.seal(b'"o1"'),
    )
    t = WorkflowTester()

    assert t.replay(order, path, codec=Backwards()).result[:2] == ["o1", 5]
    path.write_bytes(path.read_bytes().replace(b'{"$enc":"', b'{"$enc":"!'))
    with pytest.raises(ConfigurationError, match="does replay\\(\\) need codec="):
        t.replay(order, path, codec=Backwards())


@pytest.mark.parametrize("content", [None, "", "[]", '{"run": {}}', '{"run": {}, "records": [5]}'])
def test_what_is_no_export_is_refused(tmp_path: Path, content: str | None) -> None:
    """A missing file, text that is no JSON, JSON of another shape."""
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigurationError, match="no run that `pointsman run export` wrote"):
        WorkflowTester().replay(order, path)


def test_a_run_of_another_workflow_or_version_is_refused(tmp_path: Path) -> None:
    """Versions the code accepts are its own."""

    @workflow("order", version="2", accepts=["1"])
    async def newer(run: Run, name: str) -> str:
        return name

    t = WorkflowTester()
    assert t.replay(newer, _file(tmp_path / "1")).result == "o1"
    for changes in ({"version": "3"}, {"workflow": "invoice"}):
        with pytest.raises(ConfigurationError, match="does not continue"):
            t.replay(newer, _file(tmp_path / "2", **changes))
