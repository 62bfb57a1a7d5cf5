"""The heartbeat of SQS messages: what is extended, when, for how long, and what a failure changes."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from endpoint_sdk.subscribers.sqs_visibility import (
    LET_GO,
    LONGEST_HOLD,
    Heartbeat,
    Hold,
    Receipt,
    Verdict,
    allowed,
)

WINDOW = 60


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Queue:
    """Answers what a test wants and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[Hold]] = []
        self.verdict: Callable[[str], Verdict] = lambda _: "held"
        self.error: Exception | None = None

    def __call__(self, holds: Sequence[Hold]) -> Mapping[str, Verdict]:
        self.calls.append(list(holds))
        if self.error is not None:
            raise self.error
        return {hold.handle: self.verdict(hold.handle) for hold in holds}


class Rig:
    """A heartbeat by hand: its thread ends before the first beat, `once` is called by the test."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.queue = Queue()
        self.heart = Heartbeat(self.queue, WINDOW, now=self.clock, jitter=lambda low, high: (low + high) / 2)
        self.heart._thread = threading.current_thread()  # none is started

    def hold(self, *handles: str, asked_at: float | None = None) -> list[Receipt]:
        now = self.clock.now
        receipts = [Receipt(handle, now if asked_at is None else asked_at, now) for handle in handles]
        self.heart.hold(receipts)
        return receipts

    def beat(self, after: float) -> int:
        self.clock.now += after
        return self.heart.once()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_extended_before_a_third_of_the_window(rig: Rig) -> None:
    """A message that was just received is hidden already."""
    rig.hold("a")

    assert rig.beat(WINDOW / 3 - 1) == 0
    assert rig.queue.calls == []


def test_a_hold_is_extended_to_the_whole_window(rig: Rig) -> None:
    """A third of the window later it is extended by a full one, and again a third later."""
    rig.hold("a")

    assert [rig.beat(WINDOW / 3), rig.beat(WINDOW / 3)] == [1, 1]
    assert rig.queue.calls == [[Hold("a", WINDOW)], [Hold("a", WINDOW)]]


def test_ten_go_along_in_one_call(rig: Rig) -> None:
    """C50: all that were received are extended, ten to a call."""
    rig.hold(*(f"m{number}" for number in range(25)))

    assert rig.beat(WINDOW / 3) == 25
    assert sorted(len(call) for call in rig.queue.calls) == [5, 10, 10]


def test_what_is_due_soon_goes_along(rig: Rig) -> None:
    """A message received a little later does not need a call of its own."""
    rig.hold("a")
    rig.clock.now += 5
    rig.hold("b")

    assert rig.beat(WINDOW / 3 - 5) == 2
    assert [[hold.handle for hold in call] for call in rig.queue.calls] == [["a", "b"]]


def test_a_dropped_receipt_is_not_extended(rig: Rig) -> None:
    """Once it is said what became of a message, its hold is left alone."""
    [one, _] = rig.hold("a", "b")
    rig.heart.drop(one)
    rig.beat(WINDOW / 3)

    assert [[hold.handle for hold in call] for call in rig.queue.calls] == [["b"]]


def test_a_failed_entry_is_tried_again_soon(rig: Rig) -> None:
    """An answer of 200 can name entries that failed: only those are tried again, before the window is over."""
    [good, bad] = rig.hold("good", "bad")
    rig.queue.verdict = lambda handle: "failed" if handle == "bad" else "held"
    rig.beat(WINDOW / 3)
    rig.queue.verdict = lambda _: "held"
    rig.beat(WINDOW / 9)

    assert [[hold.handle for hold in call] for call in rig.queue.calls] == [["good", "bad"], ["bad"]]
    assert good.confirmed_at == 1000 + WINDOW / 3
    assert bad.confirmed_at == pytest.approx(1000 + WINDOW / 3 + WINDOW / 9)


def test_a_failed_call_is_tried_again_soon(rig: Rig) -> None:
    """A call that failed as a whole loses no hold."""
    [receipt] = rig.hold("a")
    rig.queue.error = OSError("no route")

    assert rig.beat(WINDOW / 3) == 0
    rig.queue.error = None
    assert rig.beat(WINDOW / 9) == 1
    assert rig.heart.held() == [receipt]


def test_a_lost_hold_is_not_extended_again(rig: Rig) -> None:
    """A stale handle is somebody else's message: there is nothing left to extend."""
    rig.hold("a")
    rig.queue.verdict = lambda _: "lost"
    rig.beat(WINDOW / 3)

    assert rig.heart.held() == []
    assert rig.beat(WINDOW) == 0
    assert len(rig.queue.calls) == 1


@pytest.mark.parametrize(
    ("elapsed", "asked", "expected"),
    [
        (0, 60, 60),
        (0, LONGEST_HOLD, LONGEST_HOLD - 5),
        (LET_GO - 1, 3600, 1796),
        (LONGEST_HOLD - 10, 60, 5),
        (LONGEST_HOLD + 10, 60, 0),
        (0, 0, 0),
        (0, 0.2, 1),
    ],
)
def test_no_hold_is_asked_for_beyond_twelve_hours(elapsed: float, asked: float, expected: int) -> None:
    """SQS refuses more than is left of 12 hours since the receive instead of giving less."""
    receipt = Receipt("a", 1000.0, 1000.0)

    assert allowed(receipt, asked, 1000.0 + elapsed) == expected


def test_a_message_is_let_go_after_eleven_and_a_half_hours(rig: Rig) -> None:
    """From then on it is not extended: its claim alone says who owns the run."""
    rig.hold("old", asked_at=rig.clock.now - LET_GO + 1)
    rig.hold("young")
    rig.beat(WINDOW / 3)

    assert [[hold.handle for hold in call] for call in rig.queue.calls] == [["young"]]
    assert [receipt.handle for receipt in rig.heart.held()] == ["young"]


def test_settle_waits_for_a_call_under_way() -> None:
    """What is given back must not be hidden again by an extension that was sent before."""
    entered, leave = threading.Event(), threading.Event()
    clock = Clock()

    def change(holds: Sequence[Hold]) -> Mapping[str, Verdict]:
        entered.set()
        leave.wait(30)
        return {hold.handle: "held" for hold in holds}

    heart = Heartbeat(change, WINDOW, now=clock)
    receipt = Receipt("a", clock.now, clock.now - WINDOW)
    heart.hold([receipt])  # overdue: the thread sends it at once
    assert entered.wait(30)
    heart.drop(receipt)
    heart.settle(receipt, 0.01)
    before = receipt.beating
    leave.set()
    heart.settle(receipt, 30)

    assert (before, receipt.beating) == (True, False)
    heart.close()


def test_the_thread_beats_by_itself_and_ends() -> None:
    """Nobody has to call anything: the heartbeat is a thread of its own, and `close` ends it."""
    beats = threading.Semaphore(0)

    def change(holds: Sequence[Hold]) -> Mapping[str, Verdict]:
        beats.release()
        return {hold.handle: "held" for hold in holds}

    heart = Heartbeat(change, 1, jitter=lambda _low, _high: 0.01)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    heart.hold([Receipt("a", now, now)])
    assert all(beats.acquire(timeout=30) for _ in range(3))
    thread = heart._thread
    heart.close()

    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
