"""Where schedules come from: the configuration file, the code that is served, or a caller of the API.

The file beats the code, and both beat a caller. What an owner changes holds from now on: it never starts what is past.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from dispatcher import errors, schedules
from dispatcher.declarations import Declarations, Declared
from dispatcher.settings import Schedule as FileSchedule
from dispatcher.settings_schedules import payload
from dispatcher.store import Session, Store, fleet
from dispatcher.store import schedules as schedule_store
from dispatcher.store.endpoints import EVERYWHERE
from dispatcher.store.schedules import Definition, Owner, Row, State
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow

HOME: Final = "default"
"""The namespace of what an endpoint of every namespace declares."""

RETRY_MS: Final = 10_000
"""How long after a failure a schedule is looked at again."""

_Versions = Callable[[str, str], Awaitable[str | None]]

log = logging.getLogger(__name__)


def put(session: Session, given: Definition, owner: Owner) -> None:
    """The schedule is as *given* and owned by *owner*, whoever owned it before; whether it is paused, stays.

    A new rule holds from now on. A rule that cannot be computed here is kept, with what is wrong with it. The caller
    holds the fleet's lock.
    """
    now = session.now()
    row = schedule_store.lock(session, given.namespace, given.name)
    if row is None:
        state = first(given, now)
        schedule_store.insert(session, given, owner, state, now)
    elif row.active and row.next_at is not None and _same_rule(row, given):
        if row.definition() == given and row.owner == owner:
            return
        state = State(row.next_at, row.next_at)
        schedule_store.define(session, given, owner, state)
    else:
        state = first(given, now)
        schedule_store.define(session, given, owner, state)
    if state.wake_at is not None:
        session.announce("schedule", str(state.wake_at))


def first(given: Definition, now: int) -> State:
    """The first occurrence after *now*; or what is wrong with the rule, which is looked at again later."""
    rule = schedules.rule(given.cron, given.timezone, given.every_ms)
    try:
        found = schedules.next_after(rule, now)
    except schedules.BrokenRuleError as error:
        return State(None, now + RETRY_MS, str(error))
    return State(found, found, None if found is not None else "It never comes round again.")


def _same_rule(row: Row, given: Definition) -> bool:
    return (row.cron, row.timezone, row.every_ms) == (given.cron, given.timezone, given.every_ms)


async def apply_file(store: Store, described: Mapping[str, FileSchedule]) -> None:
    """The file owns exactly the schedules *described*; one that left it is gone, unless the code declares it too."""

    def operation(session: Session) -> None:
        fleet.lock(session)  # replicas start at the same time
        given = [of_file(name, item) for name, item in described.items()]
        kept = {(item.namespace, item.name) for item in given}
        for row in schedule_store.owned(session, "yaml"):
            if (row.namespace, row.name) not in kept:
                schedule_store.delete(session, row.namespace, row.name)
                session.announce("declared", row.namespace)
        for item in given:
            put(session, item, "yaml")

    await store.transact(operation)


def of_file(name: str, given: FileSchedule) -> Definition:
    """What the file says of its schedule *name*."""
    return Definition(
        namespace=given.namespace,
        name=name,
        workflow=given.workflow,
        version=given.version,
        cron=given.cron,
        timezone=given.timezone,
        every_ms=given.every_ms,
        input=payload(given.input),
        pool=given.pool,
        tags=payload(dict(sorted(given.tags.items()))).decode(),
        priority=given.priority,
        overlap=given.overlap,
        catch_up=given.catch_up,
        jitter_ms=given.jitter_ms,
    )


class FollowDeclarations:
    """The daemon that gives each workflow whose latest version declares a schedule that schedule, under its name."""

    name: Final = "followDeclarations"

    def __init__(self, store: Store, declarations: Declarations, default_version: _Versions) -> None:
        self._store = store
        self._declarations = declarations
        self._default_version = default_version

    async def once(self) -> dict[str, int]:
        """Counts the schedules of code that changed. What nobody serves any more stays as it is."""
        declared = await self._declarations.every()
        rows = {(row.namespace, row.name): row for row in await self._store.transact(_of_code)}
        changed = 0
        for (namespace, workflow), found in _by_workflow(declared).items():
            row = rows.get((namespace, workflow))
            if row is None and all(item.schedule is None for item in found.values()):
                continue
            version = await self._default_version(namespace, workflow)
            if version in found and not _follows(row, found[version]):
                changed += await self._follow(namespace, found[version])
        return {"changed": changed}

    async def _follow(self, namespace: str, declared: ServedWorkflow) -> bool:
        """Whether the schedule changed; what cannot be stored of one workflow holds up no other."""
        try:
            return await self._store.transact(_Following(namespace, declared))
        except errors.Unavailable:
            raise
        except Exception:
            log.exception("schedule of code not followed", extra={"schedule": declared.name})
            return False


class _Following(msgspec.Struct, frozen=True):
    """The transaction in which what is declared becomes a schedule, or stops being one; answers whether it did."""

    namespace: str
    declared: ServedWorkflow

    def __call__(self, session: Session) -> bool:
        fleet.lock(session)
        row = schedule_store.lock(session, self.namespace, self.declared.name)
        if (row is not None and row.owner != "code") or _follows(row, self.declared):
            return False
        if self.declared.schedule is not None and _fault(self.declared.schedule) is None:
            put(session, _declared(self.namespace, self.declared, self.declared.schedule), "code")
        elif row is not None:
            schedule_store.retire(session, row, _why_not(self.declared))
        return True


def _of_code(session: Session) -> list[Row]:
    return schedule_store.owned(session, "code")


def _by_workflow(declared: list[Declared]) -> dict[tuple[str, str], dict[str | None, ServedWorkflow]]:
    """By namespace and workflow, what each version declares; what holds for a namespace alone comes first."""
    found: dict[tuple[str, str], dict[str | None, ServedWorkflow]] = defaultdict(dict)
    for item in sorted(declared, key=lambda item: item.namespace == EVERYWHERE):
        namespace = HOME if item.namespace == EVERYWHERE else item.namespace
        found[namespace, item.workflow.name].setdefault(item.workflow.version, item.workflow)
    return found


def _follows(row: Row | None, declared: ServedWorkflow) -> bool:
    """Whether the schedule is as the code declares it already."""
    given = declared.schedule
    if given is None or _fault(given) is not None:
        return row is None or not row.active
    return row is not None and bool(row.active) and row.definition() == _declared(row.namespace, declared, given)


def _why_not(declared: ServedWorkflow) -> str:
    if declared.schedule is None:
        return f"Version {declared.version} of the workflow, the latest, declares no schedule."
    return f"Version {declared.version} of the workflow declares a schedule with {_fault(declared.schedule)}."


def _fault(given: Schedule) -> str | None:
    """Why no rule can be read from what the code says; the rule itself is looked at by `put`."""
    if (given.cron is None) == (given.every_ms is None):
        return "neither cron nor everyMs" if given.cron is None else "both cron and everyMs"
    return None


def _declared(namespace: str, declared: ServedWorkflow, given: Schedule) -> Definition:
    return Definition(
        namespace=namespace,
        name=declared.name,
        workflow=declared.name,
        version=None,
        cron=given.cron,
        timezone=given.timezone,
        every_ms=given.every_ms,
        input=b"null",
        pool="default",
        tags="{}",
        priority=5,
        overlap=given.overlap,
        catch_up=given.catch_up,
        jitter_ms=given.jitter_ms,
    )
