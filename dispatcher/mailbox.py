"""Events: stored in the mailbox of their run, numbered under its lock, and the reason to wake it if it waits for one.

Whoever sends waits for the run's row and is never refused for another sender's sake; the caller's event id makes a
repeat harmless (infra/docs/protocol.md, I6 and I9).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from dispatcher import errors, lifecycle, waking
from dispatcher.store import Session, Store, events, runs, waits
from endpoint_sdk.wire import clock, identity, limits
from endpoint_sdk.wire.operating import EventSent, EventView, KeyedRun, SendEvent, SendToMany, SentToOne

_AT_A_TIME: Final = 4


async def send(store: Store, namespace: str, run_id: str, request: SendEvent, actor: str) -> EventSent:
    """The event is in the run's mailbox, once for its id, and a run that waits for one of its name is queued.

    Raises NotFound, TooLarge `payload_too_large`, Conflict `run_finished`, or Unprocessable `mailbox_full`.
    """
    value = bytes(request.value)
    if len(value) > limits.MAX_EVENT:
        raise errors.TooLarge("payload_too_large", f"the event has {len(value)} bytes, at most {limits.MAX_EVENT}")
    event_id = request.event_id or identity.new("evt")

    def operation(session: Session) -> EventSent:
        run = runs.lock(session, run_id)
        if run is None or run.namespace != namespace:
            raise errors.NotFound("run_not_found", "there is no such run")
        return EventSent(event_id, stored=_store(session, run, request.name, event_id, value, actor))

    return await store.transact(operation)


async def send_to_many(
    store: Store, namespace: str, request: SendToMany, actor: str
) -> list[SentToOne | errors.Refusal]:
    """One outcome per target, in order, each stored or refused on its own; all under one event id."""
    event = SendEvent(request.name, request.value, request.event_id or identity.new("evt"))
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def one(target: str | KeyedRun) -> SentToOne | errors.Refusal:
        async with turn:
            try:
                run_id = target if isinstance(target, str) else await _named(store, namespace, target)
                sent = await send(store, namespace, run_id, event, actor)
            except errors.Refusal as refusal:
                return refusal
            return SentToOne(run_id, sent.event_id, sent.stored)

    return list(await asyncio.gather(*map(one, request.targets)))


async def _named(store: Store, namespace: str, target: KeyedRun) -> str:
    found = await store.transact(
        lambda session: runs.by_idempotency_key(session, namespace, target.workflow, target.idempotency_key)
    )
    if found is None:
        raise errors.NotFound("run_not_found", "no run has this idempotency key")
    return found.id


async def events_of(
    store: Store, namespace: str, run_id: str, *, limit: int, after: int
) -> tuple[list[EventView], int | None]:
    """The run's events beyond number *after*, in order, and the cursor of the next page; raises NotFound."""

    def operation(session: Session) -> Sequence[events.Row]:
        run = runs.get(session, run_id)
        if run is None or run.namespace != namespace:
            raise errors.NotFound("run_not_found", "there is no such run")
        return events.page(session, run_id, after=after, limit=limit + 1)

    found = await store.transact(operation)
    return [_view(row) for row in found[:limit]], found[limit - 1].number if len(found) > limit else None


def _store(session: Session, run: runs.Row, name: str, event_id: str, value: bytes, actor: str) -> bool:
    """Whether the event is new to the locked *run*."""
    if events.by_id(session, run.id, name, event_id) is not None:
        return False
    if lifecycle.is_terminal(run.status):
        raise errors.Conflict("run_finished", f"the run has {run.status} already")
    # Counting is for those who were ever sent so many.
    if run.event_seq >= limits.MAX_UNREAD and events.unread(session, run.id) >= limits.MAX_UNREAD:
        raise errors.Unprocessable(
            "mailbox_full",
            f"{limits.MAX_UNREAD} events wait in the run's mailbox already",
            hint="the run takes them by waiting for events of their names",
        )
    now = session.now()
    events.insert(session, events.Row(run.id, runs.signal(session, run.id), name, event_id, value, now))
    waiting = waits.of_run(session, run.id) if waking.is_parked(run) else []
    if any(wait.kind == "event" and wait.name == name for wait in waiting):
        waking.wake(session, run, "event", actor=actor, now=now, waiting=waiting)
    return True


def _view(row: events.Row) -> EventView:
    return EventView(
        number=row.number,
        name=row.name,
        event_id=row.event_id,
        value=msgspec.Raw(row.value),
        at=clock.to_wire(row.at),
        consumed_by=row.consumed,
    )
