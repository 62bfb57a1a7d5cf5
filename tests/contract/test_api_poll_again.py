"""Asking again about a poll whose answer was lost, or which was cut off, on both databases."""

from tests.contract.api import World
from tests.contract.test_api_polling import claims, ids, poll


async def test_a_limit_of_zero_learns_what_the_request_holds(world: World) -> None:
    """I6: under the id of an earlier poll it answers the claims still held, as they were granted, and takes no more."""
    runs = [(await world.submit())["id"] for _ in range(3)]
    caller = await world.caller("execute")
    body = poll(limit=2)
    before = await claims(caller, body)
    again = await claims(caller, {**body, "limit": 0})
    assert (await world.progress(before[0], {"kind": "complete", "result": 1})).status_code == 200
    after = await claims(caller, {**body, "limit": 0})

    assert ids(again) == ids(before)
    assert [(each["claimId"], each["token"]) for each in again] == [(each["claimId"], each["token"]) for each in before]
    assert ids(after) == ids(before[1:])
    assert len(ids(await claims(caller, poll()))) == len(runs) - 2
