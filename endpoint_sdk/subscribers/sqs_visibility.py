"""Keeps received messages invisible to other receivers, from a thread of its own: user code may block the event loop.

This hold is a matter between the subscriber and SQS, and nothing else depends on it: a claim is refreshed elsewhere,
and a message whose hold was lost is refused by its run's claim when somebody else receives it.
"""

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from endpoint_sdk import monotonic

_log: Final = logging.getLogger(__name__)

# SQS hides a message at most 12 hours from its receive, and refuses to be asked for more than is left.
LONGEST_HOLD: Final = 43_200
LET_GO: Final = 41_400
BATCH: Final = 10

_MARGIN: Final = 5
_JITTER: Final = 0.1
# After a failure the next try comes in a fraction of the time between two beats: the hold is running out meanwhile.
_HURRY: Final = 0.25
# What falls due this soon after what is due now goes along in the same call.
_TOGETHER: Final = 0.5

Verdict = Literal["held", "lost", "failed"]


class Receipt(Struct, eq=False):
    """A received message as SQS knows it.

    `asked_at` is when the receive that brought it was sent: the 12 hours run from then or later. `confirmed_at` is when
    its hold was last confirmed, `due` when it is extended next; all on the SDK's monotonic clock.
    """

    handle: str
    asked_at: float
    confirmed_at: float
    due: float = 0.0
    beating: bool = False


class Hold(Struct, frozen=True):
    """Hide the message of *handle* for *seconds* from now."""

    handle: str
    seconds: int


# The verdict on every hold, by its handle; a call that failed as a whole raises.
Change = Callable[[Sequence[Hold]], Mapping[str, Verdict]]


def allowed(receipt: Receipt, seconds: float, now: float) -> int:
    """*seconds*, rounded up, or what is left of the 12 hours."""
    return max(min(math.ceil(seconds), int(LONGEST_HOLD - (now - receipt.asked_at) - _MARGIN)), 0)


class Heartbeat:
    """Extends the hold of every receipt to *window* seconds, about three times in that time, until it is dropped."""

    def __init__(
        self,
        change: Change,
        window: int,
        *,
        now: monotonic.Clock = monotonic.now,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._change = change
        self._window = window
        self._now = now
        self._jitter = jitter
        self._receipts: dict[str, Receipt] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._failing = False

    def hold(self, receipts: Iterable[Receipt]) -> None:
        """*receipts*, just received and hidden for the window, are extended from now on. Starts the thread."""
        with self._changed:
            for receipt in receipts:
                receipt.due = receipt.confirmed_at + self._pause()
                self._receipts[receipt.handle] = receipt
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="pointsman-sqs-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drop(self, receipt: Receipt) -> None:
        """*receipt* is not extended any more; a call under way may still do so."""
        with self._changed:
            self._receipts.pop(receipt.handle, None)

    def settle(self, receipt: Receipt, timeout: float) -> None:
        """Waits at most *timeout* seconds until no call under way can still extend *receipt*."""
        with self._changed:
            self._changed.wait_for(lambda: not receipt.beating, timeout)

    def held(self) -> list[Receipt]:
        """What is being held now."""
        with self._changed:
            return list(self._receipts.values())

    def close(self) -> None:
        """Nothing is extended any more; does not wait. Can be repeated."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def once(self) -> int:
        """Extends what is due, ten to a call; returns how many holds were confirmed."""
        confirmed = 0
        while batch := self._take():
            sent_at = self._now()
            try:
                verdicts = self._change([Hold(each.handle, allowed(each, self._window, sent_at)) for each in batch])
            except Exception as error:
                # Whatever broke, the messages are still ours for a while and the thread goes on.
                self._say_failing(type(error).__name__)
                verdicts = {}
            confirmed += self._judge(batch, verdicts, sent_at)
        return confirmed

    def _run(self) -> None:
        while self._wait():
            self.once()

    def _wait(self) -> bool:
        """Blocks until something is due; False when stopped."""
        with self._changed:
            while not self._stopped:
                now = self._now()
                pause = min((each.due for each in self._receipts.values()), default=math.inf) - now
                if pause <= 0:
                    return True
                self._changed.wait(None if pause == math.inf else pause)
            return False

    def _take(self) -> list[Receipt]:
        with self._changed:
            now = self._now()
            for receipt in [each for each in self._receipts.values() if now - each.asked_at >= LET_GO]:
                self._receipts.pop(receipt.handle)
                _log.info("a message is let go after %.1f hours; its run's claim goes on", LET_GO / 3600)
            by_due = sorted(self._receipts.values(), key=lambda receipt: receipt.due)
            if self._stopped or not by_due or by_due[0].due > now:
                return []
            soon = now + self._window / 3 * _TOGETHER
            batch = [each for each in by_due[:BATCH] if each.due <= soon]
            for receipt in batch:
                receipt.beating = True
            return batch

    def _judge(self, batch: Sequence[Receipt], verdicts: Mapping[str, Verdict], sent_at: float) -> int:
        confirmed = 0
        with self._changed:
            for receipt in batch:
                receipt.beating = False
                verdict = verdicts.get(receipt.handle, "failed")
                if verdict == "held":
                    confirmed += 1
                    receipt.confirmed_at = sent_at
                    receipt.due = sent_at + self._pause()
                elif verdict == "failed":
                    receipt.due = self._now() + self._pause() * _HURRY
                elif self._receipts.pop(receipt.handle, None) is not None:
                    _log.info("the hold on a message is lost; its run's claim goes on")
            self._changed.notify_all()
        if confirmed:
            self._failing = False
        return confirmed

    def _say_failing(self, why: str) -> None:
        if not self._failing:
            _log.warning("messages cannot be kept hidden, trying again: %s", why)
        self._failing = True

    def _pause(self) -> float:
        return self._window / 3 * self._jitter(1 - _JITTER, 1 + _JITTER)
