"""Keeps the claims of this process alive from a thread of its own, since user code may block the event loop.

One thread and one request for all claims held (infra/docs/protocol.md, I3): only an answer that lists (run, revision)
as lost is a loss; silence and every other status are unknown, and the refresher keeps trying.
"""

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from endpoint_sdk import calls, monotonic
from endpoint_sdk.transport import Answer
from endpoint_sdk.wire import limits, messages

_log: Final = logging.getLogger(__name__)

_JITTER: Final = 0.1
_LONGEST_WAIT: Final = 3600.0
# Connecting cannot be cut off from another thread, so it must not take long.
_CONNECT_TIMEOUT: Final = 2.0
_TIMEOUT: Final = 10.0
_SHORTEST_TIMEOUT: Final = 1.0
# After an unknown outcome the next try comes in a fraction of the interval: the claim is ageing meanwhile.
_HURRY: Final = 0.25

Jitter = Callable[[float, float], float]


class Transport(Protocol):
    """What the refresher needs of a blocking transport; `close` may come from another thread."""

    def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        *,
        connect_timeout: float,
        timeout: float,
        max_body: int,
    ) -> Answer: ...

    def close(self) -> None: ...


class Hold:
    """One claim being kept alive.

    `sent_at` is when the last accepted call for it was *sent*, `lost` the code of its loss. *on_lost* and *on_stop* are
    called from the refresher's thread and must hand over to wherever they belong. So is *step*, which tells the task
    the run is in.
    """

    def __init__(
        self,
        url: str,
        claim: messages.HeldClaim,
        interval: float,
        sent_at: float,
        on_lost: Callable[[str], None],
        on_stop: Callable[[messages.Stop], None],
        step: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.url = url
        self.claim = claim
        self.interval = interval
        self.sent_at = sent_at
        self.due = sent_at + interval
        self.on_lost = on_lost
        self.on_stop = on_stop
        self.step = step
        self.lost: str | None = None

    @property
    def fence(self) -> calls.Fence:
        return self.claim.run_id, self.claim.expected_revision

    def accepted(self, sent_at: float, jitter: float = 1.0) -> None:
        """Notes that a call sent at *sent_at* was accepted: any accepted write counts as a refresh."""
        if sent_at >= self.sent_at:
            self.sent_at = sent_at
            self.due = sent_at + self.interval * jitter


class Refresher:
    """All claims held by this process and the thread that refreshes them, from the first claim until `close`."""

    def __init__(
        self,
        connect: Callable[[], Transport],
        *,
        now: monotonic.Clock = monotonic.now,
        jitter: Jitter = random.uniform,
    ) -> None:
        self._connect = connect
        self._now = now
        self._jitter = jitter
        self._holds: dict[calls.Fence, Hold] = {}
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._wakes_at = math.inf

    def hold(self, hold: Hold) -> None:
        """Refreshes *hold* from now on, the first time one interval after its claim was sent."""
        hold.due = hold.sent_at + hold.interval * self._spread()
        with self._changed:
            self._holds[hold.fence] = hold
            if self._worker is None:
                self._start()
            elif hold.due < self._wakes_at:
                # Only then: waking the thread for every run would cost more than its refreshes.
                self._changed.notify_all()

    def drop(self, hold: Hold) -> None:
        """Refreshes *hold* no longer; a verdict still under way is ignored."""
        with self._changed:
            if self._holds.get(hold.fence) is hold:
                del self._holds[hold.fence]

    def close(self, timeout: float = 1.0) -> bool:
        """Stops the thread, cutting off a request under way, and waits at most *timeout* seconds for its end.

        Says whether it ended. Holding another claim later starts a new one.
        """
        with self._changed:
            worker, self._worker = self._worker, None
            if worker is not None:
                worker.stopped = True
            self._changed.notify_all()
        return worker is None or worker.end(timeout)

    def wait(self, worker: "_Worker") -> bool:
        """Blocks until a refresh is due; False when *worker* was stopped."""
        with self._changed:
            while not worker.stopped:
                pause = self._pause()
                if pause is not None and pause <= 0:
                    return True
                self._wakes_at = math.inf if pause is None else self._now() + pause
                self._changed.wait(pause)
            return False

    def once(self, transport: Transport, stopped: Callable[[], bool] = bool) -> int:
        """Refreshes every claim held, in one call for each dispatcher; returns how many are known to be held."""
        with self._changed:
            holds = list(self._holds.values())
        held = 0
        for url in dict.fromkeys(hold.url for hold in holds):
            held += self._refresh(transport, url, [hold for hold in holds if hold.url == url], stopped)
        return held

    def _start(self) -> None:
        worker = self._worker = _Worker(self, self._connect())
        try:
            worker.start()
        except BaseException:
            # No thread to be had: the next claim tries again.
            self._worker = None
            raise

    def _pause(self) -> float | None:
        if not self._holds:
            return None
        return min(min(hold.due for hold in self._holds.values()) - self._now(), _LONGEST_WAIT)

    def _spread(self) -> float:
        return self._jitter(1 - _JITTER, 1 + _JITTER)

    def _refresh(self, transport: Transport, url: str, holds: list[Hold], stopped: Callable[[], bool]) -> int:
        sent_at = self._now()
        call = calls.refresh([msgspec.structs.replace(hold.claim, step=hold.step()) for hold in holds])
        outcome = _send(transport, url, call, min(hold.interval for hold in holds))
        if stopped():
            return 0
        verdicts: dict[calls.Fence, calls.Accepted[messages.Stop | None] | calls.Loss] = {}
        if isinstance(outcome, calls.Accepted):
            verdicts = calls.verdicts(outcome.value)
        else:
            _log.warning("refreshing claims: outcome unknown", extra={"claims": len(holds), "outcome": repr(outcome)})
        return sum(self._judge(hold, verdicts.get(hold.fence), sent_at) for hold in self._still_held(holds))

    def _still_held(self, holds: Iterable[Hold]) -> list[Hold]:
        with self._changed:
            return [hold for hold in holds if self._holds.get(hold.fence) is hold]

    def _judge(
        self, hold: Hold, verdict: calls.Accepted[messages.Stop | None] | calls.Loss | None, sent_at: float
    ) -> bool:
        """Whether *hold* is known to be held; without a verdict the next try comes soon."""
        if verdict is None:
            hold.due = self._now() + hold.interval * _HURRY * self._spread()
        elif isinstance(verdict, calls.Loss):
            self.drop(hold)
            hold.lost = verdict.code
            hold.on_lost(verdict.code)
        else:
            hold.accepted(sent_at, self._spread())
            if verdict.value is not None:
                hold.on_stop(verdict.value)
            return True
        return False


class _Worker(threading.Thread):
    """The thread; one that did not end in time is left behind, `stopped`, and does nothing more."""

    def __init__(self, refresher: Refresher, transport: Transport) -> None:
        super().__init__(name="pointsman-refresher", daemon=True)
        self._refresher = refresher
        self._transport = transport
        self.stopped = False

    def run(self) -> None:
        while self._refresher.wait(self):
            self._refresher.once(self._transport, lambda: self.stopped)
        self._transport.close()

    def end(self, timeout: float) -> bool:
        if self is threading.current_thread():
            return True
        self._transport.close()
        self.join(timeout)
        return not self.is_alive()


def interval(grant: messages.Grant, upper_bound_ms: int, remaining: float | None) -> float:
    """Seconds between refreshes of *grant*: the smallest of both bounds, a third of its idle timeout, and a third of
    the *remaining* seconds of the host."""
    bounds = [upper_bound_ms, grant.claim_refresh_interval_ms, grant.idle_timeout_ms / 3]
    if remaining is not None:
        bounds.append(max(remaining * 1000 / 3, 100))
    return max(min(bounds), 1) / 1000


def _send(
    transport: Transport, url: str, call: calls.Call[messages.Refreshed], patience: float
) -> calls.Outcome[messages.Refreshed]:
    timeout = min(max(patience, _SHORTEST_TIMEOUT), _TIMEOUT)
    try:
        answer = transport.request(
            call.method,
            url + call.path,
            call.headers,
            call.body,
            connect_timeout=min(timeout, _CONNECT_TIMEOUT),
            timeout=timeout,
            max_body=limits.MAX_BODY,
        )
    except Exception as error:
        # Not only TransportError: whatever broke, the claim is still ours and the thread goes on.
        return calls.Unknown(type(error).__name__)
    return call.outcome(answer.status, answer.body)
