"""Operating on many runs at once: the action is stored, and a daemon applies it to one run after another.

Over all dispatchers at most a hundred runs a second are acted on, each in a transaction that also says how far the
action has come: whoever goes on with it, after whatever, applies it to no run twice and leaves none out.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from dispatcher import cancelling, control, errors, operations
from dispatcher.settings import Settings
from dispatcher.store import Session, Store, bulk, entries, runs
from dispatcher.store.listing import RunFilter
from endpoint_sdk.wire import clock, identity, limits
from endpoint_sdk.wire.actions import ActionStarted, ActionView, BulkAction
from endpoint_sdk.wire.operating import CancelRun, RequeueRun

_PER_SECOND: Final = 100
_BATCH: Final = 10
_STEP_MS: Final = 1_000 // (_PER_SECOND - _BATCH) + 1  # so that no second, wherever it begins, sees more
_DECODER: Final = msgspec.json.Decoder(BulkAction)

Apply = Callable[[Session, Settings, runs.Row, entries.Entry | None, BulkAction, str], None]

log = logging.getLogger(__name__)


def _cancel(
    session: Session,
    settings: Settings,
    run: runs.Row,
    _entry: entries.Entry | None,
    request: BulkAction,
    actor: str,
) -> None:
    cancelling.cancel_locked(session, settings, run, CancelRun(request.reason, request.now), actor)


def _requeue(
    session: Session,
    _settings: Settings,
    run: runs.Row,
    _entry: entries.Entry | None,
    request: BulkAction,
    actor: str,
) -> None:
    operations.requeue_locked(session, run, RequeueRun(request.version, request.discard_unconsumed), actor)


_ACTIONS: Final[dict[str, Apply]] = {
    "cancel": _cancel,
    "requeue": _requeue,
    "pause": lambda session, _, run, entry, __, actor: control.pause_locked(session, run, entry, actor),
    "resume": lambda session, _, run, __, ___, actor: control.resume_locked(session, run, actor),
    "wake": lambda session, _, run, __, ___, actor: control.wake_locked(session, run, actor),
    "release": lambda session, settings, run, entry, request, actor: operations.release_locked(
        session, settings, run, entry, request.reason, actor
    ),
}

_HEEDED: Final = {
    "cancel": ("reason", "now"),
    "release": ("reason",),
    "requeue": ("version", "discardUnconsumed"),
}


async def start(store: Store, namespace: str, request: BulkAction, actor: str) -> ActionStarted:
    """The action is stored, to be applied to the runs that match now, unless nothing does or it is a dry run.

    Raises BadRequest `bad_parameter` for a filter without a condition, too many tags, or what the action does not take.
    """
    _check_fields(request)
    if request.filter == type(request.filter)():
        raise errors.BadRequest(
            "bad_parameter", "filter has to have a condition.", hint="Name a workflow, a status, a reason or ids."
        )
    if len(request.filter.tags) > limits.MAX_TAGS:
        raise errors.BadRequest("bad_parameter", f"At most {limits.MAX_TAGS} tags can be filtered on.")
    action_id = identity.new("act")

    def operation(session: Session) -> ActionStarted:
        now = session.now()
        matched = bulk.count(session, _wanted(namespace, request, now))
        if request.dry_run or not matched:
            return ActionStarted(None, matched, started=False)
        text = msgspec.json.encode(request).decode()
        bulk.insert(session, bulk.Row(action_id, namespace, request.action, text, actor, now, matched))
        session.announce("action", action_id)
        return ActionStarted(action_id, matched, started=True)

    return await store.transact(operation)


def _check_fields(request: BulkAction) -> None:
    """What an action would not heed is a mistake, mostly a condition that belongs into its filter."""
    given = {
        "reason": request.reason,
        "now": request.now,
        "version": request.version,
        "discardUnconsumed": request.discard_unconsumed,
    }
    for name, value in given.items():
        if value and name not in _HEEDED.get(request.action, ()):
            raise errors.BadRequest(
                "bad_parameter",
                f"{name} is not for the action {request.action}.",
                hint="Leave it out; a condition on the runs belongs into filter.",
            )


async def get(store: Store, namespace: str, action_id: str) -> ActionView:
    """How far the action has come; raises NotFound `action_not_found`."""
    row = await store.transact(lambda session: bulk.get(session, namespace, action_id))
    if row is None:
        raise errors.NotFound("action_not_found", "there is no such action")
    return ActionView(
        id=row.id,
        action=_DECODER.decode(row.filter).action,
        filter=_DECODER.decode(row.filter).filter,
        actor=row.actor,
        matched=row.matched,
        applied=row.applied,
        refused=row.refused,
        created_at=clock.to_wire(row.created_at),
        finished_at=None if row.finished_at is None else clock.to_wire(row.finished_at),
    )


class ApplyActions:
    """The daemon that applies stored actions, the oldest first; any number of replicas may run it at once."""

    name: Final = "applyActions"

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def reload(self, settings: Settings) -> None:
        """From the next tick on *settings* hold."""
        self._settings = settings

    async def once(self) -> dict[str, int]:
        """What one tick did: {applied, refused, more}; the pace ends it after ten runs."""
        action, found = await self._store.transact(_next)
        if action is None:
            return {"applied": 0, "refused": 0, "more": 0}
        done = []
        for run_id in found:
            applied = await self._apply(action, run_id)
            if applied is None:
                break
            done.append(applied)
        return {"applied": sum(done), "refused": len(done) - sum(done), "more": 1}

    async def _apply(self, action: bulk.Row, run_id: str) -> bool | None:
        """Whether the run took the action; None if it is not the run's turn yet, or somebody else saw to it."""
        try:
            return await self._store.transact(partial(self._one, action=action, run_id=run_id))
        except errors.Unavailable:
            raise
        except errors.Refusal as refusal:
            log.info("an action was refused", extra={"run_id": run_id, "action": action.id, "cause": refusal.code})
        except Exception:
            log.exception("an action failed", extra={"run_id": run_id, "action": action.id})
        return await self._store.transact(lambda session: _refuse(session, action.id, run_id))

    def _one(self, session: Session, action: bulk.Row, run_id: str) -> bool | None:
        slot_at = _slot(session, action.id, run_id)
        if slot_at is None:
            return None
        request = _DECODER.decode(action.filter)
        run, entry = operations.lock(session, action.namespace, run_id, children=request.discard_unconsumed)
        _ACTIONS[action.action](session, self._settings, run, entry, request, action.actor)
        bulk.step(session, action.id, run_id, applied=True, slot_at=slot_at)
        return True


def _next(session: Session) -> tuple[bulk.Row | None, list[str]]:
    """The action whose turn it is, and the runs it comes to next; one that comes to none is finished."""
    action = bulk.first(session)
    if action is None:
        return None, []
    wanted = _wanted(action.namespace, _DECODER.decode(action.filter), action.created_at)
    found = bulk.page(session, wanted, after=action.cursor or "", limit=_BATCH)
    if not found:
        bulk.finish(session, action.id, session.now())
    return action, found


def _slot(session: Session, action_id: str, run_id: str) -> int | None:
    """Where the pace stands after the run, None if the run is not to be acted on, or not yet."""
    locked = bulk.lock(session, action_id)
    now = session.now()
    if locked is None or (locked.cursor is not None and locked.cursor >= run_id):
        return None
    # Far ahead only after the clock was stepped back.
    slot_at = locked.slot_at if locked.slot_at <= now + 10_000 else now
    return None if slot_at > now + _BATCH * _STEP_MS - _STEP_MS else max(slot_at, now) + _STEP_MS


def _refuse(session: Session, action_id: str, run_id: str) -> bool | None:
    slot_at = _slot(session, action_id, run_id)
    if slot_at is None:
        return None
    bulk.step(session, action_id, run_id, applied=False, slot_at=slot_at)
    return False


def _wanted(namespace: str, request: BulkAction, now: int) -> bulk.Wanted:
    given = request.filter
    matching = RunFilter(
        status=given.status,
        reason=given.reason,
        workflow=given.workflow,
        version=given.version,
        idempotency_key=given.idempotency_key,
        tags=given.tags,
        stuck_for_ms=given.stuck_for_ms,
    )
    return bulk.Wanted(namespace, request.action, matching, given.ids, now)
