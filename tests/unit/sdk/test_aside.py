"""endpoint_sdk.aside: calls that wait for the rest of the records."""

from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.aside import Aside
from endpoint_sdk.history import History
from endpoint_sdk.pending_call import Call
from endpoint_sdk.wait_call import EventCall


class _Pending(dict[Call, None]):
    """Counts how often it is asked for a call."""

    asked = 0

    def __contains__(self, call: object) -> bool:
        self.asked += 1
        return super().__contains__(call)


def _many(count: int) -> tuple[_Pending, Aside, list[Call]]:
    pending = _Pending()
    aside = Aside(pending, History([]))
    calls: list[Call] = [EventCall("e", None) for _ in range(count)]
    for ordinal, call in enumerate(calls):
        call.key = Key(Address("event", "e", ""), ordinal)
        pending[call] = None
        aside.add(call)
    return pending, aside, calls


def test_giving_up_many_calls_one_by_one_is_no_square() -> None:
    """A TaskGroup of thousands that fails on replay: each call given up costs the same, in either order."""
    for backwards in (False, True):
        pending, aside, calls = _many(2_000)
        for left, call in enumerate(reversed(calls) if backwards else calls, start=1):
            del pending[call]
            assert bool(aside) == (left < 2_000)
        assert pending.asked <= 3 * 2_000


def test_those_that_stay_keep_their_order() -> None:
    """What is taken and what stays are both in the order of the calls; given up ones are in neither."""
    pending, aside, calls = _many(6)
    del pending[calls[2]]

    assert aside.take(lambda call: call.key.ordinal % 2 == 1) == [calls[0], calls[4]]
    assert aside.new() == [calls[1], calls[3], calls[5]]
