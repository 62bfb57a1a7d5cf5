"""An in-memory dispatcher for many runs, and a transport-free subscriber: what a worker's tests are made of."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from endpoint_sdk import executor
from endpoint_sdk.subscribers.base import Claim, Message, Setup, SubscriberFailed
from endpoint_sdk.transport import Answer
from endpoint_sdk.wire import messages, signature
from endpoint_sdk.worker import Worker
from tests.unit.sdk.dispatcher_double import BlockingDouble, DispatcherDouble, Fault, passed

SECRET = signature.new_secret()
KEY = signature.parse_secret(SECRET)
URL = "http://dispatcher.test"
API_KEY = "pmk_key"

Item = Message | Claim


class Fleet(DispatcherDouble):
    """Many runs, each a double of its own; it is the transport of every executor made while it is installed."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, DispatcherDouble] = {}
        self.polls: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.held: dict[str, list[str]] = {}
        self.hidden: set[str] = set()
        self.asked: dict[str, Any] = {}
        self.waiting = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "Fleet":
        """Executors made from now on talk to this fleet."""
        monkeypatch.setattr(executor, "AsyncTransport", lambda: self)
        monkeypatch.setattr(executor, "BlockingTransport", lambda: BlockingDouble(self))
        return self

    def queue(self, workflow: str = "order", version: str = "1", *, silently: bool = False) -> DispatcherDouble:
        """A fresh queued run; *silently* one that polls do not find."""
        run_id = f"run_{len(self.runs):026d}"
        run = self.runs[run_id] = DispatcherDouble(workflow, version, run_id=run_id)
        if silently:
            self.hidden.add(run_id)
        return run

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        path = url.removeprefix(URL).partition("?")[0]
        if path == "/v1/claims":
            self.headers.append(headers)
            self.polls.append(msgspec.json.decode(body))
            fault: Fault = self.faults["claims"].popleft() if self.faults["claims"] else passed
            return fault(lambda: self._poll(msgspec.json.decode(body, type=messages.ClaimMany)))
        if path == "/v1/claims/refresh":
            return self._refreshed(msgspec.json.decode(body, type=messages.Refresh))
        return self.runs[path.split("/")[3]].answer(method, url, headers, body)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        connect_timeout: float = 5.0,
        timeout: float = 30.0,
        max_body: int = 0,
    ) -> Answer:
        if url.endswith("/v1/claims"):
            self.asked = msgspec.json.decode(body)
            await self._waited(self.asked["waitMs"] if not self.faults["claims"] else 0)
        return await super().request(method, url, headers, body)

    async def _waited(self, wait_ms: int) -> None:
        deadline = time.monotonic() + wait_ms / 1000
        while time.monotonic() < deadline and not self._queued():
            self.waiting = True
            await asyncio.sleep(0.005)
        self.waiting = False

    def _queued(self) -> list[DispatcherDouble]:
        return [run for run in self.runs.values() if run.state == "queued" and run.run_id not in self.hidden]

    def _poll(self, wanted: messages.ClaimMany) -> Answer:
        held = [self.runs[run_id] for run_id in self.held.get(wanted.request_id, ())]
        found = [run for run in held if run.state == "running" and run.claim_id.startswith(wanted.request_id)]
        if not found:
            found = self._queued()[: wanted.limit]
            for run in found:
                run.state, run.revision = "running", run.revision + 1
                run.claim_id = f"{wanted.request_id}_{run.run_id}"
            self.held[wanted.request_id] = [run.run_id for run in found]
        return Answer(200, {}, msgspec.json.encode(messages.Claimed([run._grant() for run in found])))

    def _refreshed(self, call: messages.Refresh) -> Answer:
        self.requests.append(("refresh", msgspec.to_builtins(call)))
        held = [messages.Held(claim.run_id, claim.expected_revision) for claim in call.claims]
        return Answer(200, {}, msgspec.json.encode(messages.Refreshed(held, [])))


class MemorySubscriber:
    """Hands out what the test puts in; `done` and `back` are noted. Fails while `failing` names a reason."""

    def __init__(self, pools: Sequence[str] = ("default",)) -> None:
        self.pools = pools
        self.items: deque[Item] = deque()
        self.settled: list[Item] = []
        self.returned: list[tuple[Item, float]] = []
        self.limits: list[int] = []
        self.opened = 0
        self.closed = 0
        self.failing: Exception | None = None
        self.excess = 0
        self._changed = asyncio.Event()

    def put(self, *items: Item) -> None:
        self.items.extend(items)
        self._changed.set()

    async def open(self, setup: Setup) -> None:
        self.opened += 1
        self.setup = setup
        self._check()

    async def receive(self, limit: int) -> Sequence[Item]:
        self.limits.append(limit)
        self._check()
        self._changed.clear()
        while not self.items:
            await self._changed.wait()
            self._check()
            self._changed.clear()
        return [self.items.popleft() for _ in range(min(limit + self.excess, len(self.items)))]

    async def done(self, item: Item) -> None:
        self.settled.append(item)

    async def back(self, item: Item, delay: float = 0) -> None:
        self.returned.append((item, delay))

    def held_for(self, item: Item) -> float | None:
        return 0.5

    async def close(self, timeout: float) -> None:
        self.closed += 1

    def fail(self, error: Exception | None) -> None:
        """Receiving fails with *error* from now on, or works again."""
        self.failing = error
        self._changed.set()

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing


def message(run: DispatcherDouble, *, age: int = 0, key: bytes = KEY, **changes: Any) -> Message:
    """A signed delivery of *run*, made *age* seconds ago; *changes* are fields of the message."""
    body = msgspec.json.encode(run.delivery(**changes.pop("delivery", {})))
    headers = signature.sign([key], f"{run.run_id}_{run.revision}", int(time.time()) - age, body)
    return Message(headers, body, **{"sent_at": time.time(), **changes})


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """The worker serves inside the block, and has drained after it."""
    task = asyncio.create_task(worker.serve())
    try:
        yield task
    finally:
        worker.stop()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20)


async def until(check: Any, what: str = "the condition", seconds: float = 20) -> None:
    """Returns once *check* answers something truthy."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.005)


FAILED = SubscriberFailed("the broker is away")
