"""Executes workflows against records in memory, with every completion, acknowledgement and crash decided by the test.

A body of a lab task does not end by itself: `Lab.bodies` holds those that run, and the test ends one. A record is on
its way until the test stores it, and unknown to the workflow until the test acknowledges it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from endpoint_sdk import Workflow, task_context
from endpoint_sdk.exchange import Abandoned
from endpoint_sdk.replay import Ended, Engine
from endpoint_sdk.wire import child_messages, messages
from tests.unit.sdk.nursery import Nursery

CREATED = "2026-12-01T10:00:00.000Z"
GRANTED = "2026-12-01T10:00:01.000Z"
LATER = "2026-12-01T12:00:00.000Z"
IDLE_SECONDS = 0.02


def stored(records: Sequence[messages.RecordIn], claim_id: str = "clm_before") -> list[messages.Record]:
    """*records* as the dispatcher numbers them."""
    fields = messages.RecordIn.__struct_fields__
    return [
        messages.Record(seq=seq, claim_id=claim_id, **{name: getattr(record, name) for name in fields})
        for seq, record in enumerate(records, start=1)
    ]


def grant(
    records: Sequence[messages.RecordIn] = (),
    value: object = None,
    waits: Sequence[messages.WaitFor] = (),
    now: str = GRANTED,
) -> messages.Grant:
    """A claim of run_1, granted at *now*, that found *records*, and *waits* armed."""
    run = messages.GrantedRun(
        "run_1", "default", "lab", "1", 1, msgspec.Raw(msgspec.json.encode(value)), CREATED, {"team": "lab"}
    )
    return messages.Grant(run, 3, "clm_now", "pmw_x", 90_000, 30_000, now, records=stored(records), waits=list(waits))


def answered(
    kind: str, name: str, value: object = None, *, ordinal: int = 0, error: str | None = None
) -> messages.RecordIn:
    """What the dispatcher records of a wait."""
    return messages.RecordIn(
        kind,  # type: ignore[arg-type]
        name,
        "",
        ordinal,
        "ended",
        "completed" if error is None else "failed",
        1,
        msgspec.UNSET if error is not None else msgspec.Raw(msgspec.json.encode(value)),
        None if error is None else messages.ErrorObject(error, "no", retryable=False),
        finished_at=LATER,
    )


class MemoryPort:
    """Acknowledges every record at once, and keeps it."""

    def __init__(self) -> None:
        self.records: list[messages.RecordIn] = []
        self.nursery = Nursery(self.records)
        self.fetched: list[str] = []
        self.parks: list[list[messages.WaitFor]] = []
        self.refusals: list[list[messages.Record]] = []
        self.left: timedelta | None = None
        self.is_leaving = False
        self.on_write: Callable[[messages.RecordIn], Awaitable[None]] | None = None
        self.on_fence: Callable[[], Awaitable[None]] | None = None
        self.on_park: Callable[[], Awaitable[None]] | None = None

    async def write(self, record: messages.RecordIn) -> None:
        """Stores *record* unless `on_write` raises."""
        if self.on_write is not None:
            await self.on_write(record)
        self.records.append(record)

    async def fence(self) -> None:
        """Lets every body start."""
        if self.on_fence is not None:
            await self.on_fence()

    async def start_children(
        self, starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """Starts them."""
        return self.nursery.start(starts)

    async def child_outcomes(self, parent_call: str) -> Sequence[child_messages.ChildOutcome]:
        """What they came to."""
        self.fetched.append(parent_call)
        return self.nursery.page(parent_call).items

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """Parks, after a refusal for each of `refusals`, unless `on_park` raises."""
        self.parks.append(list(waits))
        if self.on_park is not None:
            await self.on_park()
        return self.refusals.pop(0) if self.refusals else None

    def remaining(self) -> timedelta | None:
        """As the test set it."""
        return self.left

    def leaving(self) -> bool:
        """As the test set it."""
        return self.is_leaving


async def execute(
    workflow: Workflow[Any, Any],
    records: Sequence[messages.RecordIn] = (),
    value: object = None,
    port: MemoryPort | None = None,
    waits: Sequence[messages.WaitFor] = (),
) -> tuple[Ended, list[messages.RecordIn]]:
    """How one execution over *records* ended, and what it recorded beyond them."""
    port = port or MemoryPort()
    engine = Engine(workflow, grant(records, value, waits), port, idle_seconds=IDLE_SECONDS)
    async with asyncio.timeout(5):
        ended = await engine.run()
    return ended, port.records


def plain(ended: Ended) -> Any:
    """The value of a result, the type of an error, or the end itself."""
    match ended:
        case _ if hasattr(ended, "result"):
            return msgspec.json.decode(ended.result)
        case _ if hasattr(ended, "error"):
            return ended.error.type
        case _:
            return ended


# A record, or children to start.
Sent = messages.RecordIn | Sequence[child_messages.ChildStart]


class _Body:
    def __init__(self, task_id: str, name: str) -> None:
        self.task_id = task_id
        self.name = name
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Lab(MemoryPort):
    """One run over several executions; *records* is what the dispatcher has."""

    def __init__(self, workflow: Workflow[Any, Any]) -> None:
        super().__init__()
        self._workflow = workflow
        self.bodies: list[_Body] = []
        self.started: list[str] = []
        self._sent: list[tuple[Sent, asyncio.Future[Any]]] = []
        self._answered = 0
        self._running: asyncio.Task[Ended] | None = None
        self._engine: Engine | None = None

    async def write(self, record: messages.RecordIn) -> None:
        """Returns when the test acknowledges."""
        await self._send(record)

    async def start_children(
        self, starts: Sequence[child_messages.ChildStart]
    ) -> Sequence[child_messages.StartedChild]:
        """Returns when the test acknowledges."""
        children: Sequence[child_messages.StartedChild] = await self._send(starts)
        return children

    async def _send(self, sent: Sent) -> Any:
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._sent.append((sent, acknowledged))
        return await acknowledged

    async def body(self, name: str) -> None:
        """What every lab task awaits: the test's leave to end."""
        body = _Body(task_context().task_id, name)
        recorded = {
            f"{record.name}:{record.args_hash}:{record.ordinal}"
            for record in self.records
            if record.kind == "task" and record.next_attempt_at is None
        }
        assert body.task_id not in recorded, f"{body.task_id} is recorded and runs again"
        self.started.append(body.task_id)
        self.bodies.append(body)
        try:
            await body.end
        finally:
            self.bodies.remove(body)

    # --- what the test decides ---------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Claims the run and lets it come to rest."""
        self._engine = Engine(self._workflow, self._grant(), self, idle_seconds=IDLE_SECONDS)
        self._running = asyncio.create_task(self._engine.run())
        await self.rest()

    def _grant(self) -> messages.Grant:
        return grant(self.records)

    async def finish(self, index: int) -> None:
        """Ends the body at *index* of those running; its record is then on its way."""
        self.bodies[index].end.set_result(None)
        await self.rest()

    def cancel(self, reason: str | None = None) -> None:
        """The executor hears that the run is to be cancelled."""
        assert self._engine is not None
        self._engine.cancel(reason)

    def hear(self, signals: Sequence[messages.Record]) -> None:
        """The executor hears of outcomes."""
        assert self._engine is not None
        self._engine.hear(signals)

    @property
    def sent(self) -> list[messages.RecordIn]:
        """The records that are not acknowledged."""
        return [each for each, _ in self._sent if isinstance(each, messages.RecordIn)]

    @property
    def on_the_way(self) -> int:
        """How many records are not acknowledged."""
        return len(self._sent)

    async def store(self, count: int) -> None:
        """The first *count* records on their way reach the dispatcher and are acknowledged in one answer."""
        sent, self._sent = self._sent[:count], self._sent[count:]
        for each, acknowledged in sent:
            acknowledged.set_result(self._keep(each))
        await self.rest()

    def _keep(self, sent: Sent) -> list[child_messages.StartedChild] | None:
        """The dispatcher has *sent*; its answer."""
        if not isinstance(sent, messages.RecordIn):
            return self.nursery.start(sent)
        self.records.append(sent)
        return None

    async def crash(self, stored_unheard: int = 0) -> None:
        """The executor dies; *stored_unheard* records on their way were stored, their answers lost."""
        assert self._engine is not None
        assert self._running is not None
        for sent, _ in self._sent[:stored_unheard]:
            self._keep(sent)
        self._engine.lose()
        for _, acknowledged in self._sent:
            acknowledged.set_exception(Abandoned())
        self._sent.clear()
        await self._running
        assert not self.bodies, "a body outlived its execution"

    @property
    def done(self) -> bool:
        """Whether this execution has ended."""
        return self._running is not None and self._running.done()

    async def ended(self) -> Ended:
        """How this execution ended, once no more than time is missing."""
        assert self._running is not None
        async with asyncio.timeout(5):
            return await self._running

    async def rest(self) -> None:
        """Returns when nothing but the test can move the run on."""
        assert self._engine is not None
        ready: deque[object] = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        # A timer due at once: unlike sleep(0) it leaves the loop's ready queue empty for the engine to see.
        await asyncio.sleep(1e-9)
        while ready or self._engine._hand_out.active:  # noqa: ASYNC110 - rest has no event, it is the lack of any
            await asyncio.sleep(1e-9)
