"""The executions of one process: their shared connections and refresher, how many may run, and how they drain."""

import asyncio
import logging
import os
import secrets
import socket
from typing import Final

from endpoint_sdk import refresher
from endpoint_sdk._version import __version__
from endpoint_sdk.envelope import PLAIN, Envelope
from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.execution import Conclusion, Context, Execution
from endpoint_sdk.host_time import Remaining
from endpoint_sdk.subscribers.base import Claim
from endpoint_sdk.subscribers.errand import Errand
from endpoint_sdk.transport import AsyncTransport, BlockingTransport
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Registry

_log: Final = logging.getLogger(__name__)


class Executor:
    """Runs deliveries, at most *max_concurrent_runs* at a time; *url* replaces the dispatcher a delivery names."""

    def __init__(
        self,
        registry: Registry,
        *,
        kind: str,
        url: str | None,
        refresh_interval_ms: int,
        max_concurrent_runs: int,
        envelope: Envelope = PLAIN,
        times: Times | None = None,
    ) -> None:
        self._registry = registry
        self._url = url
        self._refresh_interval_ms = refresh_interval_ms
        self._max_concurrent_runs = max_concurrent_runs
        self._envelope = envelope
        self._times = times or Times()
        self.info: Final = _info(kind)
        self._transport = AsyncTransport()
        self._refresher = refresher.Refresher(BlockingTransport, now=self._times.now, jitter=self._times.jitter)
        self._running: dict[Execution, asyncio.Task[Conclusion]] = {}
        self._draining = False

    @property
    def busy(self) -> bool:
        """Whether another delivery would be one too many: all places are taken, or the process drains."""
        return self._draining or len(self._running) >= self._max_concurrent_runs

    async def execute(self, work: messages.Delivery | Claim, remaining: Remaining) -> Conclusion:
        """Handles *work* to its settled end.

        Cancelling the caller, whose client may have gone, does not end the run: nobody else could finish it sooner.
        """
        url = work.url if isinstance(work, messages.Delivery) else ""
        execution = Execution(self._context(url), work, remaining)
        task = asyncio.create_task(execution.run(), name=f"run {run_of(work)}")
        self._running[execution] = task
        task.add_done_callback(lambda _: self._ended(execution, task))
        return await asyncio.shield(task)

    def drain(self) -> None:
        """Takes no further delivery; every run stops at its next task boundary and is released. Can be repeated."""
        if not self._draining:
            _log.info("draining", extra={"runs": len(self._running)})
        self._draining = True
        for execution in self._running:
            execution.drain()

    def expire(self) -> None:
        """The time of the drain is up: what can be cut short is, and released; see Execution.expire."""
        for execution in self._running:
            execution.expire()

    def abandon(self) -> int:
        """Stops every run that is left without a word to the dispatcher; says how many: recovery takes them over."""
        for task in self._running.values():
            task.cancel()
        return len(self._running)

    def refreshed(self) -> list[tuple[messages.Delivery | Claim, float]]:
        """What is claimed now, with the seconds since the last accepted call for its claim was sent."""
        now = self._times.now()
        held = [(execution.work, execution.refreshed_at) for execution in list(self._running)]
        return [(work, now - sent_at) for work, sent_at in held if sent_at is not None]

    def exchange(self) -> Exchange:
        """Calls to the dispatcher this executor was given, over the connections the runs use."""
        return self._exchange("")

    def resume(self) -> None:
        """Takes deliveries again after a drain."""
        self._draining = False

    async def drained(self) -> None:
        """Returns once no run is left."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def end(self) -> None:
        """Drains, and closes everything once no run is left."""
        self.drain()
        await self.drained()
        await self.close()

    async def close(self) -> None:
        """Ends the refresher and closes every connection; the executor can be used again."""
        # In a thread of its own: bodies may occupy all of the loop's.
        await Errand("pointsman-close", self._refresher.close).result()
        await self._transport.close()

    def stop_refreshing(self, timeout: float = 1.0) -> bool:
        """Ends the refresher's thread, waiting at most *timeout* seconds for it; says whether it ended."""
        return self._refresher.close(timeout)

    def _ended(self, execution: Execution, task: asyncio.Task[Conclusion]) -> None:
        self._running.pop(execution, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever asked may have gone; this is the one place that always hears it.
            _log.error("a run ended in a fault of the SDK; its claim is left to recovery", exc_info=error)

    def _exchange(self, url: str) -> Exchange:
        return Exchange(self._transport, self._url or url, self._times)

    def _context(self, url: str) -> Context:
        return Context(
            self._exchange(url),
            self._refresher,
            self._registry,
            self.info,
            self._refresh_interval_ms,
            self._envelope,
        )


def run_of(work: messages.Delivery | Claim) -> str:
    """The id of the run *work* is about."""
    return work.grant.run.id if isinstance(work, Claim) else work.run_id


def _info(kind: str) -> messages.ExecutorInfo:
    host = socket.gethostname()[:100]
    return messages.ExecutorInfo(f"{host}-{os.getpid()}-{secrets.token_hex(4)}", kind, host, f"python/{__version__}")
