"""Polls: claims of many runs at once, waited for (infra/docs/protocol.md, Claim many).

A poll looks when it arrives, when an entry of its queues becomes due by a write of this process, and when the tick of
once a second finds something another dispatcher wrote or a delay that has passed. It claims nothing once its client has
gone, nor later than two seconds after its wait: by then its client may have asked elsewhere.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from dispatcher import claims, errors
from dispatcher.declarations import Declarations
from dispatcher.pollers import Pollers
from dispatcher.queues import Queue
from dispatcher.secrets import ServerKeys
from dispatcher.settings import Publishing, Recovery, Settings
from dispatcher.store import Session, Store, polling, runs
from dispatcher.store.entries import Entry
from dispatcher.waiting import Waiter, WaitingRoom
from endpoint_sdk.wire import limits
from endpoint_sdk.wire.messages import ClaimMany, Grant, Record

_GRACE_SECONDS: Final = 2.0
_FRAME_BYTES: Final = 2_048


class _Found(NamedTuple):
    """What a look brought, and the queues the next poll is to look at."""

    grants: list[Grant]
    queues: set[str]


class _Abandoned(Exception):
    """Nobody would take these claims any more; nothing was stored."""


class _Poll:
    """One request: what it asks for and whether anybody still waits for the answer. Read by the store's threads."""

    def __init__(self, namespace: str, request: ClaimMany, gone: "asyncio.Future[None]") -> None:
        self.request = request
        self.namespace = namespace
        self.prefix = f"{request.request_id}_"
        self.executor = msgspec.json.encode(request.executor).decode()
        self.queues = queues_of(namespace, request)
        self.gone = gone
        self.until = time.monotonic() + request.wait_ms / 1_000

    def check(self) -> None:
        """Raises _Abandoned when the client has gone, or may ask again elsewhere."""
        if self.gone.done() or time.monotonic() > self.until + _GRACE_SECONDS:
            raise _Abandoned


class _Answer:
    """The grants of one poll while they are gathered in a transaction, and what room they leave."""

    def __init__(self, session: Session, poll: _Poll, keys: ServerKeys, recovery: Recovery) -> None:
        self._session = session
        self._poll = poll
        self._keys = keys
        self._recovery = recovery
        self._taken: list[tuple[runs.Row, str]] = []
        self.queues: set[str] = set()
        self._bytes = limits.POLL_BYTES

    @property
    def left(self) -> int:
        """How many more claims were asked for."""
        return self._poll.request.limit - len(self._taken)

    @property
    def _room(self) -> int:
        # Claims that fit in whatever the size of their inputs; the first always does.
        return max(self._bytes // limits.MAX_PAYLOAD, 0 if self._taken else 1)

    def repeat(self, held: Sequence[Entry]) -> None:
        """The claims *held* under the request are in the answer."""
        for entry in held:
            run = runs.get(self._session, entry.run_id)
            assert run is not None
            self._add(run, entry)

    def take(self, vein: polling.Vein, limit: int, now_ms: int, published_before: int) -> int:
        """How many entries of *vein* were claimed, at most *limit*, their runs running and in the answer."""
        before = len(self._taken)
        while (asked := min(limit - (len(self._taken) - before), self.left, self._room)) > 0:
            found = polling.claim(
                self._session,
                vein,
                self._poll.prefix,
                self._poll.executor,
                limit=asked,
                now_ms=now_ms,
                published_before=published_before,
            )
            for entry in found:
                self._start(entry)
            if len(found) < asked:
                break
        return len(self._taken) - before

    def grants(self) -> list[Grant]:
        """The answer; records that have no room in it are left to the executor's own reading."""
        if not self._taken:
            return []
        now = self._session.now()
        return [
            claims.grant(
                run, claim_id, self._keys, self._recovery, now, self._records(run), claims.armed(self._session, run)
            )
            for run, claim_id in self._taken
        ]

    def _start(self, entry: Entry) -> None:
        assert entry.claim_id is not None
        executor = self._poll.request.executor
        self._add(claims.start(self._session, entry.run_id, entry.revision - 1, entry.claim_id, executor, None), entry)

    def _add(self, run: runs.Row, entry: Entry) -> None:
        assert entry.claim_id is not None
        self._taken.append((run, entry.claim_id))
        self.queues.add(entry.queue)
        self._bytes -= len(run.input) + len(run.tags) + _FRAME_BYTES

    def _records(self, run: runs.Row) -> tuple[list[Record], int | None]:
        if self._bytes <= 0:
            return [], 0
        most = min(limits.GRANT_BYTES, self._bytes)
        page = claims.page_of_records(self._session, run.id, after=0, most_bytes=most)
        self._bytes -= sum(map(_size, page[0]))
        return page


class Polling:
    """Answers polls. As a daemon it looks once a second for what waits for those that wait."""

    name: Final = "wakePolls"

    def __init__(
        self,
        store: Store,
        keys: ServerKeys,
        pollers: Pollers,
        recovery: Recovery,
        publishing: Publishing,
        declarations: Declarations | None = None,
    ) -> None:
        self._store = store
        self._pollers = pollers
        self._declarations = declarations or Declarations(store)
        self._keys = keys
        self._recovery = recovery
        self._publishing = publishing
        self._room = WaitingRoom()
        self._stopping = False
        store.listen("backlog", self._room.wake)

    @property
    def waiting(self) -> int:
        """How many polls wait now."""
        return len(self._room)

    async def once(self) -> dict[str, int]:
        """What one tick did: {waiting, woken}. The database is asked only while somebody waits."""
        queues = self._room.queues
        found = await self._store.transact(lambda session: self._heads(session, queues)[1]) if queues else []
        for vein in found:
            self._room.wake(vein.queue)
        return {"waiting": len(self._room), "woken": len(found)}

    def reload(self, settings: Settings) -> None:
        """Claims granted from now on follow *settings*."""
        self._recovery = settings.recovery
        self._publishing = settings.publishing

    def stop(self) -> None:
        """Every poll that waits is answered with nothing, and so is every later one that would wait."""
        self._stopping = True
        self._room.wake_all()

    async def claim(self, namespace: str, request: ClaimMany, gone: "asyncio.Future[None]") -> list[Grant]:
        """Up to `limit` runs of the queues asked for, claimed under `requestId`; none when the wait ends first.

        A repeat of the request is answered with the claims still held under it, if there are any. *gone* is done when
        the client has hung up. Raises TooMany `rate_limited` when too many polls wait.
        """
        poll = _Poll(namespace, request, gone)
        await self._pollers.saw(
            namespace, ((item.name, version) for item in request.workflows for version in item.versions)
        )
        await self._declarations.put(namespace, request.declares)
        if not request.limit:
            # Takes nothing new: whoever lost an answer learns what it had claimed, and whoever cut a poll off.
            return (await self._look(poll, [], repeated=True)).grants
        with self._room.enter(poll.queues) as waiter:
            gone.add_done_callback(lambda _: waiter.woken.set())
            grants, taken_from = await self._look(poll, poll.queues, repeated=True)
            while not grants and await self._woken(poll, waiter):
                grants, taken_from = await self._look(poll, waiter.take())
        for queue in taken_from:
            # There may be more where these came from, or nobody has looked: the next poll does.
            self._room.wake(queue)
        return grants

    async def _woken(self, poll: _Poll, waiter: Waiter) -> bool:
        """Waits for a reason to look again; False when there will be none."""
        left = poll.until - time.monotonic()
        if left <= 0 or self._stopping:
            return False
        try:
            async with asyncio.timeout(left):
                await waiter.woken.wait()
        except TimeoutError:
            return False
        return not (self._stopping or poll.gone.done())

    async def _look(self, poll: _Poll, queues: Sequence[str], *, repeated: bool = False) -> _Found:
        def operation(session: Session) -> _Found:
            poll.check()
            answer = _Answer(session, poll, self._keys, self._recovery)
            held = polling.held(session, poll.prefix, Queue.prefix(poll.namespace)) if repeated else []
            if held:
                answer.repeat(held)
            elif queues:
                self._take(session, answer, queues)
            grants = answer.grants()
            poll.check()
            return _Found(grants, answer.queues)

        try:
            return await self._store.transact(operation)
        except _Abandoned:
            # What it was woken for is the next poll's; a first look was woken for nothing.
            return _Found([], set() if repeated else set(queues))

    def _take(self, session: Session, answer: _Answer, queues: Sequence[str]) -> None:
        """First an equal share of every queue, the one that waits longest first, then what is left of any."""
        now, veins = self._heads(session, queues)
        before = now - self._publishing.claim_deadline_ms
        share = max(1, answer.left // max(1, len({vein.queue for vein in veins})))
        shares = {vein.queue: share for vein in veins}
        unexhausted = []
        for vein in veins:
            asked = shares[vein.queue]
            taken = answer.take(vein, asked, now, before)
            shares[vein.queue] -= taken
            if taken == asked:
                unexhausted.append(vein)
        for vein in unexhausted:
            answer.take(vein, answer.left, now, before)

    def _heads(self, session: Session, queues: Sequence[str]) -> tuple[int, list[polling.Vein]]:
        now = session.now()
        before = now - self._publishing.claim_deadline_ms
        return now, polling.heads(session, queues, now_ms=now, published_before=before)


def queues_of(namespace: str, request: ClaimMany) -> list[str]:
    """The keys of the queues the poll *request* asks for.

    Raises BadRequest `malformed` for more than MAX_QUEUES, Unprocessable `queue_too_long`.
    """
    count = len(request.pools) * sum(len(workflow.versions) for workflow in request.workflows)
    if count > limits.MAX_QUEUES:
        raise errors.BadRequest(
            "malformed",
            f"The poll asks for {count} queues: workflows × versions × pools may be {limits.MAX_QUEUES} at most.",
            hint="Divide them among several polls.",
        )
    return list(
        dict.fromkeys(
            Queue(namespace, workflow.name, version, pool).checked_key()
            for workflow in request.workflows
            for version in workflow.versions
            for pool in request.pools
        )
    )


def _size(record: Record) -> int:
    return len(msgspec.json.encode(record))
