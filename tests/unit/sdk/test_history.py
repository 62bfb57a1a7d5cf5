"""What earlier claims left for the calls of an execution, and what arrives while it goes on."""

import msgspec

from endpoint_sdk.history import History, key_of
from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.replay_lab import GRANTED, LATER, answered, stored


def test_what_arrives_counts_once() -> None:
    """An outcome that is known already changes nothing, whatever it says now."""
    [first] = stored([answered("event", "e", "first")])
    history = History([first])
    key = key_of(first)
    assert history.number(key.address) == key
    history.consume(key)

    history.add(msgspec.structs.replace(first, value=msgspec.Raw(b'"second"')))

    assert not history.unconsumed
    found = history.meet(key)
    assert found is not None
    assert found.value == msgspec.Raw(b'"first"')


def test_only_ends_are_outcomes() -> None:
    """A record of a wait that goes on asks for nothing."""
    [record] = stored([answered("sleep", "s")])
    history = History([])
    key = history.add(msgspec.structs.replace(record, phase="started", state="started"))

    assert history.meet(key) is None
    assert not history.unconsumed


def test_the_deadline_of_the_last_park_stands() -> None:
    """What the grant says is armed overrules what was noted before, and a wait without an end has none."""
    armed = messages.WaitFor("sleep", "s", 0, "", LATER)
    noted = messages.RecordIn("sleep", "s", "", 0, "started", "started", 1, next_attempt_at=GRANTED)
    endless = messages.WaitFor("event", "e", 0)
    [record] = stored([noted])
    [event] = stored([answered("event", "e")])

    assert History([record]).deadline(key_of(record)) == clock.from_wire(GRANTED)
    assert History([record], [armed, endless]).deadline(key_of(record)) == clock.from_wire(LATER)
    assert History([], [endless]).deadline(key_of(event)) is None
