"""Who is woken when something waits for several polls: one, the one that has waited longest for it."""

import pytest

from dispatcher import errors, waiting
from dispatcher.waiting import WaitingRoom


async def test_the_queue_decides_who_is_woken() -> None:
    """A wake of one queue leaves the polls of others, and no poll at all, alone."""
    room = WaitingRoom()
    with room.enter(["a"]) as first, room.enter(["b", "a"]) as second:
        room.wake("b")
        room.wake("c")

        assert not first.woken.is_set()
        assert second.woken.is_set()
        assert second.take() == ["b"]
        assert not second.woken.is_set()
        assert second.take() == []


async def test_each_wake_is_another_polls() -> None:
    """Polls of one queue are woken in turn, and the first again once all have been."""
    room = WaitingRoom()
    with room.enter(["a"]) as first, room.enter(["a"]) as second:
        room.wake("a")
        assert (first.take(), second.take()) == (["a"], [])
        room.wake("a")
        assert (first.take(), second.take()) == ([], ["a"])
        room.wake("a")
        assert (first.take(), second.take()) == (["a"], [])


async def test_a_wake_is_not_lost_with_its_poll() -> None:
    """A poll that leaves without having looked hands its wakes to the next of those queues."""
    room = WaitingRoom()
    with room.enter(["a", "b"]) as second:
        with room.enter(["a"]):
            room.wake("a")
            room.wake("a")
        assert second.take() == ["a"]
    assert room.queues == []
    room.wake("a")


async def test_the_room_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its size a poll is refused with a time to come back, and the place of one that left is free."""
    monkeypatch.setattr(waiting, "MOST_WAITING", 1)
    room = WaitingRoom()
    with room.enter(["a"]), pytest.raises(errors.TooMany) as caught, room.enter(["a"]):
        pass
    assert (caught.value.code, caught.value.retry_after) == ("rate_limited", 1)
    with room.enter(["a"]):
        assert len(room) == 1


async def test_the_places_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls for many queues take as many places; whoever asks for fewer is still let in."""
    monkeypatch.setattr(waiting, "MOST_PLACES", 3)
    room = WaitingRoom()
    with room.enter(["a", "b"]):
        with pytest.raises(errors.TooMany) as caught, room.enter(["a", "b"]):
            pass
        with room.enter(["a"]):
            assert len(room) == 2
    assert caught.value.code == "rate_limited"
    with room.enter(["a", "b", "c"]):
        assert len(room) == 1
