"""The relay: due entries are leased to a publisher, pushed, and what became of the push is written back.

Leasing sets `published` with the next push number and a deadline by which the claim must have arrived; an outcome is a
compare-and-set on (revision, push number, not claimed), so a late one changes nothing (I8). The connection of a push is
held to the end of the handler by a task that holds nothing else; that of a push nobody claims is held to its deadline,
or an endpoint that hangs would take a socket of ours for every run it is sent.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from dispatcher import endings, errors, leasing
from dispatcher.endpoints import RelayTarget
from dispatcher.queues import Queue
from dispatcher.registry import Registry
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Publishing, Route, Stalling
from dispatcher.store import Session, Store, backlog, entries
from dispatcher.store.entries import Entry
from endpoint_sdk.wire.messages import Delivery
from publishers.base import Due, Outcome, Publisher

_AGAIN_SECONDS: Final = 0.5

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
        self._turn = 0
        self.on_room: Callable[[], None] = lambda: None

    async def once(self) -> dict[str, int]:
        """What one tick did: {leased, more}; the pushes it began go on by themselves."""
        await self._let_go()
        targets = await self._registry.targets()
        keys = await self._store.transact(backlog.queues) if targets else []
        plans = leasing.plans(self._in_turn(keys), self._routes, targets)
        room: dict[str, int] = {}
        leased = [await self._lease(plan.target, plan.own, room) for plan in plans]
        full = {endpoint_id for endpoint_id, left in room.items() if not left}
        for plan in plans:
            spare = [turn for turn in plan.others if turn.owner in full]
            if spare and room[plan.target.endpoint_id]:
                leased.append(await self._lease(plan.target, spare, room))
        return {"leased": sum(leased), "more": int(leasing.BATCH in leased)}

    async def stop(self) -> None:
        """No push is under way; executors keep running, their claims decide."""
        pushes = list(self._pushes)
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    @property
    def in_flight(self) -> int:
        """Pushes whose connection this server holds."""
        return len(self._pushes)

    def _in_turn(self, keys: Sequence[str]) -> list[str]:
        """The queues in another order each tick, so that none is always served last."""
        self._turn += 1
        start = self._turn % len(keys) if keys else 0
        return [*keys[start:], *keys[:start]]

    async def _lease(self, target: RelayTarget, turns: Sequence[leasing.Turn], room: dict[str, int]) -> int:
        """How many entries were leased to *target*, their pushes begun; *room* learns what is left there."""
        due, room[target.endpoint_id] = await self._store.transact(
            partial(
                leasing.lease, endpoint_id=target.endpoint_id, turns=turns, hold_ms=self._publishing.claim_deadline_ms
            )
        )
        for entry in due:
            self._begin(target, entry)
        return len(due)

    def _begin(self, target: RelayTarget, entry: Entry) -> None:
        task = asyncio.ensure_future(self._push(target, entry))
        self._pushes[task] = entry, self._deadline()
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
        self.on_room()

    async def _push(self, target: RelayTarget, entry: Entry) -> None:
        outcome = await self._publish(target, entry)
        log.debug(
            "push answered",
            extra={"run_id": entry.run_id, "revision": entry.revision, "endpoint": target.name, "row": outcome.row},
        )
        if outcome.kind != "published":
            await self._write_back(entry, outcome)

    async def _write_back(self, entry: Entry, outcome: Outcome) -> None:
        """The outcome is stored; while the database is away it is tried again, until the deadline would decide anyway.

        Raises Unavailable then. An outcome lost would be counted as an ending, even where no executor was reached.
        """
        deadline = self._deadline()
        while True:
            try:
                return await self._store.transact(lambda session: self._unpublish(session, entry, outcome))
            except errors.Unavailable:
                if time.monotonic() + _AGAIN_SECONDS > deadline:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _publish(self, target: RelayTarget, entry: Entry) -> Outcome:
        try:
            return (await self._publisher_for(target).publish([self._due(target, entry)]))[0]
        except Exception:
            log.exception("publisher raised", extra={"run_id": entry.run_id, "endpoint": target.name})
            return Outcome("failed", "publisher-error")

    def _due(self, target: RelayTarget, entry: Entry) -> Due:
        return Due(self._delivery(target, entry), entry.rank, entry.queued_at)

    def _delivery(self, target: RelayTarget, entry: Entry) -> Delivery:
        queue = Queue.from_key(entry.queue)
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
            push_number=entry.push_number,
        )

    def _unpublish(self, session: Session, entry: Entry, outcome: Outcome) -> None:
        delay_ms = outcome.delay_ms
        if outcome.kind == "declined" and delay_ms is None:
            delay_ms = self._publishing.declined_backoff_ms
        changed = endings.unpublish(
            session,
            self._publishing,
            self._stalling,
            entry,
            reason=outcome.row,
            counted=outcome.counted,
            delay_ms=delay_ms,
        )
        if changed:
            session.announce("unpublished", entry.run_id)


def _is_claimed(session: Session, leased: Entry) -> bool:
    """Whether the claim made of this delivery's revision still holds the run."""
    entry = entries.get(session, leased.run_id)
    return entry is not None and entry.status == "claimed" and entry.revision == leased.revision + 1
