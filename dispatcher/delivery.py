"""The relay: due entries are leased to a publisher, handed to it, and what became of them is written back.

Leasing sets `published` with the next push number and a deadline by which the claim must have arrived; an outcome is a
compare-and-set on (revision, push number, not claimed), so a late one changes nothing (I8). The connection of a push is
held to the end of the handler by a task that holds nothing else; that of a push nobody claims is held to its deadline,
or an endpoint that hangs would take a socket of ours for every run it is sent. Brokers are handed whole batches
(`dispatcher.handover`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from dispatcher import errors, handover, leasing, outcomes
from dispatcher.endpoints import RelayTarget
from dispatcher.handover import Handovers
from dispatcher.leasing import Leased
from dispatcher.outcomes import Answered
from dispatcher.queues import Queue
from dispatcher.registry import Registry
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Publishing, Route, Settings, Stalling
from dispatcher.store import Session, Store, backlog, entries
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Due, Outcome, Publisher

_AGAIN_SECONDS: Final = 0.5
_RAISED: Final = Outcome("failed", "publisher-error")
_MISSING: Final = Outcome("failed", "missing")

log = logging.getLogger(__name__)


class PublishPendingOutboxEntries:
    """The daemon behind `daemons.publishPendingOutboxEntries`: push and poll share the backlog it reads."""

    name: Final = "publishPendingOutboxEntries"

    def __init__(
        self,
        store: Store,
        keys: ServerKeys,
        registry: Registry,
        *,
        publishing: Publishing,
        stalling: Stalling,
        routes: Sequence[Route],
        publisher_for: Callable[[RelayTarget], Publisher],
        public_url: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keys = keys
        self._registry = registry
        self._publishing = publishing
        self._stalling = stalling
        self._routes = routes
        self._publisher_for = publisher_for
        self._public_url = public_url
        # The entry each push was leased with, and when to look whether it was claimed: the soonest first.
        self._pushes: dict[asyncio.Task[None], tuple[Entry, float]] = {}
        self._handovers = Handovers(store, self._publish, self._write_back, self._has_room, clock)
        self._cursors = leasing.Cursors()
        self.on_room: Callable[[], None] = lambda: None

    async def once(self) -> dict[str, int]:
        """What one tick did: {leased, more}; the pushes and handovers it began go on by themselves.

        Raises Unavailable when a lease could not be had in time, all the other publishers having been served.
        """
        await self._let_go()
        targets = await self._registry.targets()
        keys = await self._store.transact(backlog.queues) if targets else []
        plans = leasing.plans(keys, self._routes, targets)
        room: dict[str, int] = {}
        leased: list[int] = []
        failures: list[errors.Unavailable] = []
        for plan in plans:
            try:
                leased.append(await self._lease(plan.target, plan.own, room))
            except errors.Unavailable as error:
                failures.append(error)
        full = {endpoint_id for endpoint_id, left in room.items() if not left}
        for plan in plans:
            spare = [turn for turn in plan.others if turn.owner in full]
            if spare and room.get(plan.target.endpoint_id):
                leased.append(await self._lease(plan.target, spare, room))
        if failures:
            raise failures[0]
        return {"leased": sum(leased), "more": int(leasing.BATCH in leased)}

    def reload(self, settings: Settings) -> None:
        """From the next lease on *settings* hold."""
        self._publishing = settings.publishing
        self._stalling = settings.stalling
        self._routes = settings.routes

    async def stop(self) -> None:
        """No push and no handover is under way; executors keep running, their claims decide."""
        await self._handovers.stop()
        pushes = list(self._pushes)
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    @property
    def in_flight(self) -> int:
        """Pushes whose connection this server holds."""
        return len(self._pushes)

    async def _lease(self, target: RelayTarget, turns: Sequence[leasing.Turn], room: dict[str, int]) -> int:
        """How many entries were leased to *target*, their delivery begun; *room* learns what is left there."""
        is_push = target.type == "push"
        free = None if is_push else self._handovers.room(target.endpoint_id)
        hold_ms = self._publishing.claim_deadline_ms if is_push else handover.HOLD_MS
        in_turn = self._cursors.in_turn(target, turns)
        lease = partial(leasing.lease, target=target, turns=in_turn, hold_ms=hold_ms, room=free)
        due, room[target.endpoint_id] = ([], 0) if free == 0 else await self._store.transact(lease)
        self._cursors.note(target, in_turn, due)
        if is_push:
            self._begin(target, due)
        elif due:
            self._handovers.begin(target, due)
        return len(due)

    def _begin(self, target: RelayTarget, due: Sequence[Leased]) -> None:
        for leased in due:
            task = asyncio.ensure_future(self._push(target, leased))
            self._pushes[task] = leased.entry, self._deadline()
            task.add_done_callback(self._ended)

    def _deadline(self) -> float:
        return time.monotonic() + self._publishing.claim_deadline_ms / 1_000

    async def _let_go(self) -> None:
        """No connection is held for a push that was not claimed by its deadline, or whose claim has ended since."""
        now = time.monotonic()
        late = [(task, entry) for task, (entry, at) in takewhile(lambda item: item[1][1] <= now, self._pushes.items())]
        if not late:
            return
        held = await self._store.transact(lambda session: [_is_claimed(session, entry) for _, entry in late])
        for (task, entry), claimed in zip(late, held, strict=True):
            if self._pushes.pop(task, None) is None:
                continue
            if claimed:
                self._pushes[task] = entry, self._deadline()
            else:
                task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._pushes.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("push ended unexpectedly", exc_info=task.exception())
        self._has_room()

    def _has_room(self) -> None:
        self.on_room()

    async def _push(self, target: RelayTarget, leased: Leased) -> None:
        [outcome] = await self._publish(target, [leased])
        entry = leased.entry
        log.debug(
            "push answered",
            extra={"run_id": entry.run_id, "revision": entry.revision, "endpoint": target.name, "row": outcome.row},
        )
        if outcome.kind != "published":
            await self._write_back(target, [Answered(leased, outcome)])

    async def _write_back(self, target: RelayTarget, answered: Sequence[Answered]) -> None:
        """The outcomes are stored; while the database is away it is tried again, until the deadline would decide.

        Raises Unavailable then. An outcome lost would be counted as an ending, even where no executor was reached.
        """
        write = partial(
            outcomes.write, publishing=self._publishing, stalling=self._stalling, target=target, answered=answered
        )
        deadline = self._deadline()
        while True:
            try:
                return await self._store.transact(write)
            except errors.Unavailable:
                if time.monotonic() + _AGAIN_SECONDS > deadline:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _publish(self, target: RelayTarget, batch: Sequence[Leased]) -> list[Outcome]:
        """One outcome for each of *batch*, whatever the publisher does: a missing one, or none at all, has failed."""
        try:
            due = [self._due(target, leased.entry) for leased in batch]
            found = list(await self._publisher_for(target).publish(due))[: len(batch)]
        except Exception:
            log.exception("publisher raised", extra={"publisher": target.name, "deliveries": len(batch)})
            return [_RAISED] * len(batch)
        return found + [_MISSING] * (len(batch) - len(found))

    def _due(self, target: RelayTarget, entry: Entry) -> Due:
        queue = Queue.from_key(entry.queue)
        return Due(self._delivery(target, entry, queue), entry.rank, entry.queued_at, queue.pool)

    def _delivery(self, target: RelayTarget, entry: Entry, queue: Queue) -> Delivery:
        return Delivery(
            run_id=entry.run_id,
            namespace=queue.namespace,
            workflow=queue.workflow,
            version=queue.version,
            revision=entry.revision,
            attempt=entry.attempt,
            audience=target.name,
            url=self._public_url(),
            token=self._keys.claim_token(entry.run_id, entry.revision),
            push_number=entry.push_number if target.type == "push" else None,
        )


def _is_claimed(session: Session, leased: Entry) -> bool:
    """Whether the claim made of this delivery's revision still holds the run."""
    entry = entries.get(session, leased.run_id)
    return entry is not None and entry.status == "claimed" and entry.revision == leased.revision + 1
