"""What a claim holder may not write: too much, or what no database can hold."""

import msgspec
import pytest
from msgspec import Raw

from dispatcher import progress
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import Complete, ErrorObject, Fail, Progress, Stall
from tests.integration.world import World, failed, refused, task


async def test_oversized_payloads_are_refused_whole(world: World) -> None:
    """A record or a result over 1 MiB is payload_too_large, and nothing of its call is stored."""
    claim = await world.claim(await world.submit())
    big = b'"' + b"x" * limits.MAX_PAYLOAD + b'"'
    with refused("payload_too_large"):
        await world.write(claim, task("a"), task("b", value=big))
    with refused("payload_too_large"):
        await world.write(claim, task("a"), ending=Complete(Raw(big)))
    with refused("payload_too_large"):
        await world.write(claim, failed(message="x" * limits.MAX_PAYLOAD))
    assert world.records(claim.run_id) == []
    await world.write(claim, task("a", value=b'"' + b"x" * (limits.MAX_PAYLOAD - 2) + b'"'))


async def test_a_failed_runs_error_is_bounded(world: World) -> None:
    """The error a run fails with is held to the same limit as its result."""
    claim = await world.claim(await world.submit())
    with refused("payload_too_large"):
        await world.write(claim, ending=Fail(ErrorObject("E", "x" * limits.MAX_PAYLOAD)))
    assert world.status(claim.run_id) == ("running", 1)


async def test_history_limit(world: World) -> None:
    """The record beyond the limit is refused; the run can still end."""
    claim = await world.claim(await world.submit())
    for start in range(0, limits.MAX_RECORDS, 1_000):
        await world.write(claim, *(task("s", number) for number in range(start, start + 1_000)))
    with refused("history_limit"):
        await world.write(claim, task("one more"))
    assert len(world.records(claim.run_id)) == limits.MAX_RECORDS
    await world.write(claim, task("s", 0), ending=Complete(Raw(b"1")))


async def test_a_time_that_is_none_is_malformed(world: World) -> None:
    """A record's time without an offset, or no time at all, is refused with a code."""
    claim = await world.claim(await world.submit())
    for text in ("yesterday", "2026-12-01T10:00:00", ""):
        with refused("malformed"):
            await world.write(claim, task(started_at=text))


async def test_strange_text_is_stored_or_refused(world: World) -> None:
    """I13: text no database can hold is refused by the wire or stored without it, never an unnamed error."""
    claim = await world.claim(await world.submit())
    fence = {"expectedRevision": 1, "claimId": claim.id, "requestId": "req_1"}
    record = {
        "kind": "task", "name": "a", "argsHash": "h", "ordinal": 0, "phase": "ended", "state": "completed", "attempt": 1
    }  # fmt: skip
    bodies = [
        {**fence, "requestId": "a\0b"},
        {**fence, "claimId": "a\0b"},
        {**fence, "note": "a\0b"},
        {**fence, "records": [{**record, "argsHash": "a\0b"}]},
        {**fence, "records": [{**record, "preview": "a\0b"}]},
    ]
    for body in bodies:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(body), type=Progress)
    failing = {**fence, "ending": {"kind": "fail", "error": {"type": "a\0b", "message": "a\0b"}}}
    request = msgspec.json.decode(msgspec.json.encode(failing), type=Progress)
    await progress.apply(world.store, world.keys, world.settings, claim.run_id, request, claim.token)
    assert world.status(claim.run_id) == ("failed", 2)


async def test_a_stalls_details_are_bounded(world: World) -> None:
    """The details of a divergence are held to the same limit."""
    claim = await world.claim(await world.submit())
    with refused("payload_too_large"):
        await world.write(claim, ending=Stall("divergence", {"new": "x" * limits.MAX_PAYLOAD}))
    assert world.status(claim.run_id) == ("running", 1)
