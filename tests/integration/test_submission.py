"""Submitting: born whole, once, and repeats are harmless."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dispatcher import errors, submission
from dispatcher.store import listing
from dispatcher.store.listing import RunFilter
from dispatcher.submission import Submission
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Complete
from endpoint_sdk.wire.operating import SubmitRun
from tests.integration.world import NAMESPACE, World, refused


async def _submit(world: World, namespace: str = NAMESPACE, **fields: Any) -> Submission:
    body = msgspec.json.encode({"workflow": "order", "version": "1", **fields})
    request = msgspec.json.decode(body, type=SubmitRun)
    return await submission.submit(world.store, namespace, request, "tester", None)


async def test_run_is_born_queued_with_history_and_entry(world: World) -> None:
    """A submit stores the run at revision 0, its transition from nothing with the request id, and its entry."""
    born = await _submit(world, requestId="req_1", tags={"b": "2", "a": "1"}, priority=7, pool="gpu")
    run_id = born.run.id
    [row] = world.history(run_id)
    entry = world.entry(run_id)
    assert (born.created, born.existed) == (True, False)
    assert world.status(run_id) == ("queued", 0)
    assert (row.revision, row.from_status, row.status, row.request_id, row.actor) == (
        0,
        None,
        "queued",
        "req_1",
        "tester",
    )
    assert (entry.status, entry.revision, entry.push_number, entry.endings, entry.kills) == ("pending", 0, 0, 0, 0)
    assert entry.queue == "default:order:1:gpu"
    assert (born.run.attempt, born.run.tags, born.run.pool) == (1, '{"a":"1","b":"2"}', "gpu")
    assert born.run.input == b"null"


async def test_rank_is_due_time_less_priority(world: World) -> None:
    """rank = due time − priority × 10 s: a higher priority is as if due that much earlier."""
    low, high = (await _submit(world, priority=0)).run, (await _submit(world, priority=9)).run
    assert low.due_at is not None
    assert high.due_at is not None
    assert world.entry(low.id).rank == low.due_at
    assert world.entry(high.id).rank == high.due_at - 90_000


async def test_repeat_by_request_id_answers_the_same_run(world: World) -> None:
    """I6: a submit whose reply was lost, sent again, is the same run; with another input it is a conflict."""
    first = await _submit(world, requestId="req_1", input={"a": 1, "b": 2})
    again = await _submit(world, requestId="req_1", input={"b": 2, "a": 1})
    assert (again.run.id, again.created, again.existed) == (first.run.id, True, True)
    with refused("idempotency_conflict"):
        await _submit(world, requestId="req_1", input={"a": 2})
    with refused("idempotency_conflict"):
        await _submit(world, requestId="req_1", workflow="other", input={"a": 1, "b": 2})


async def test_idempotency_key_names_one_run_per_workflow(world: World) -> None:
    """The same key and input is the run there is, whatever became of it; another workflow or namespace is free."""
    first = await _submit(world, idempotencyKey="k", input=[1])
    again = await _submit(world, idempotencyKey="k", input=[1], requestId="req_2")
    assert (again.run.id, again.created, again.existed) == (first.run.id, False, True)
    await world.write(await world.claim(first.run.id), ending=Complete(Raw(b"1")))
    assert (await _submit(world, idempotencyKey="k", input=[1])).run.status == "completed"
    assert (await _submit(world, idempotencyKey="k", input=[1], workflow="other")).created
    assert (await _submit(world, "elsewhere", idempotencyKey="k", input=[1])).created


@pytest.mark.parametrize("other", [True, 1.5, "1", [1], None])
async def test_same_key_with_another_input_is_a_conflict(world: World, other: object) -> None:
    """A key with another input is 409 and names the run it belongs to; 1 is not true."""
    first = await _submit(world, idempotencyKey="k", input=1)
    with pytest.raises(errors.Conflict) as caught:
        await _submit(world, idempotencyKey="k", input=other)
    assert caught.value.code == "idempotency_conflict"
    assert caught.value.details == {"runId": first.run.id}


async def test_copies_at_once_are_one_run(world: World) -> None:
    """Twenty copies of one submit at the same moment store one run."""
    answers = await asyncio.gather(*(_submit(world, requestId="req_1", idempotencyKey="k") for _ in range(20)))
    assert len({answer.run.id for answer in answers}) == 1
    assert sum(not answer.existed for answer in answers) == 1


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("malformed", {"dueAt": "2027-01-01T00:00:00Z", "delayMs": 0}),
        ("malformed", {"dueAt": "2027-01-01"}),
        ("tags_too_many", {"tags": {str(number): "x" for number in range(21)}}),
        ("payload_too_large", {"input": "x" * limits.MAX_PAYLOAD}),
        ("version_unknown", {"version": None}),
    ],
)
async def test_what_cannot_be_submitted_has_a_code(world: World, code: str, fields: dict[str, Any]) -> None:
    """Every refusal has its code and stores nothing."""
    with refused(code):
        await _submit(world, **fields)
    stored = world.store.transact_blocking(
        lambda session: listing.page(session, NAMESPACE, RunFilter(), limit=1, after=None)
    )
    assert stored == []


async def test_default_version_is_used(world: World) -> None:
    """Without a version, the run gets the one discovered last."""
    found = await submission.submit(world.store, NAMESPACE, SubmitRun("order"), "tester", "2.0")
    assert found.run.version == "2.0"


async def test_batch_has_an_outcome_for_each(world: World) -> None:
    """A batch stores what it can, in one transaction, and answers in the order of the requests."""
    await _submit(world, idempotencyKey="taken", input=1)
    requests = [
        SubmitRun("z", version="1", idempotency_key="z"),
        SubmitRun("order"),
        SubmitRun("order", version="1", idempotency_key="taken", input=Raw(b"2")),
        SubmitRun("order", version="1", idempotency_key="twice"),
        SubmitRun("order", version="1", idempotency_key="twice"),
        SubmitRun("a", version="1", due_at="soon"),
        SubmitRun("a", version="1", delay_ms=60_000),
    ]
    answers = await submission.submit_batch(world.store, NAMESPACE, [(request, None) for request in requests], "me")
    codes = [answer.code if isinstance(answer, errors.Refusal) else answer.run.workflow for answer in answers]
    assert codes == ["z", "version_unknown", "idempotency_conflict", "order", "order", "malformed", "a"]
    first, second = answers[3], answers[4]
    assert isinstance(first, Submission)
    assert isinstance(second, Submission)
    assert first.run.id == second.run.id
    assert (first.existed, second.existed) == (False, True)


async def test_batch_repeated_is_the_same_runs(world: World) -> None:
    """I6: a batch whose reply was lost, sent again, stores nothing new."""
    requests = [(SubmitRun("order", version="1", request_id=f"req_{number}"), None) for number in range(20)]
    first = await submission.submit_batch(world.store, NAMESPACE, requests, "me")
    again = await submission.submit_batch(world.store, NAMESPACE, requests, "me")
    assert [answer.run.id for answer in first if isinstance(answer, Submission)] == [
        answer.run.id for answer in again if isinstance(answer, Submission)
    ]
    assert all(isinstance(answer, Submission) and answer.existed for answer in again)


async def test_key_whose_run_is_going_away_is_unavailable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key taken by a run that is deleted before it can be read is 503, to be tried again."""
    await _submit(world, idempotencyKey="k", requestId="req_1")
    monkeypatch.setattr("dispatcher.store.runs.by_idempotency_key", lambda *_: None)
    monkeypatch.setattr("dispatcher.store.runs.by_request", lambda *_: None)
    with refused("unavailable"):
        await _submit(world, idempotencyKey="k")
    with refused("unavailable"):
        await _submit(world, requestId="req_1")


async def test_listeners_hear_of_the_run_after_the_commit(world: World) -> None:
    """A submit announces its run when it is stored, in the loop; a repeat announces nothing."""
    heard: list[str] = []
    world.store.listen("queued", lambda run_id: heard.append(world.run(run_id).id))
    first = await _submit(world, requestId="req_1")
    await _submit(world, requestId="req_1")
    assert heard == [first.run.id]
