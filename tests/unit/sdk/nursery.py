"""The children of one run, by the dispatcher's rules: found again by their call and index, ended by the test."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from endpoint_sdk.wire import child_messages, clock, messages

Call = tuple[str, str, str, int]


class Child(msgspec.Struct):
    """A started child; `status` is running until the test ends it."""

    id: str
    call: Call
    index: int
    total: int
    start: child_messages.ChildStart
    status: str = "running"
    result: bytes = b"null"
    type: str | None = None


class Nursery:
    """*records* is the parent's history, which this appends to when all children of a call have started."""

    def __init__(self, records: list[messages.RecordIn]) -> None:
        self._records = records
        self.children: list[Child] = []
        self.refuse: Callable[[child_messages.ChildStart], str | None] = lambda start: None

    # --- from the executor -------------------------------------------------------------------------------------------
    def start(self, starts: Sequence[child_messages.ChildStart]) -> list[child_messages.StartedChild]:
        """What became of *starts*; of a call that is whole the parent has a record."""
        answers = [self._start(start) for start in starts]
        for start in starts:
            self._note(start)
        return answers

    def number(self, starts: Sequence[child_messages.ChildStart]) -> int | None:
        """The number of the first record that says *starts* have started, None where there is none."""
        calls = {call_of(start) for start in starts}
        found = (seq for seq, record in enumerate(self._records, 1) if _is_start(record) and _address(record) in calls)
        return min(found, default=None)

    def outcome(self, wait: messages.WaitFor, now_ms: int) -> messages.RecordIn | None:
        """What the dispatcher records of *wait* now, None while children run."""
        children = [child for child in self.children if child.call == _address(wait)]
        bad = next((child for child in children if child.status in ("failed", "cancelled")), None)
        if bad is not None:
            details = {"runId": bad.id, "status": bad.status, "type": bad.type, "details": {"index": bad.index}}
            error = messages.ErrorObject("ChildFailed", f"child {bad.id} ended", details, retryable=False)
            return _record(wait, "failed", msgspec.UNSET, error, now_ms)
        if not children or any(child.status == "running" for child in children):
            return None
        value = msgspec.json.encode({"total": len(children)}) if wait.kind == "children" else children[0].result
        return _record(wait, "completed", Raw(value), None, now_ms)

    def page(self, parent_call: str, after: int = -1, most: int = 500) -> child_messages.ChildOutcomes:
        """At most *most* outcomes of the children of *parent_call* after index *after*."""
        found = sorted((c for c in self.children if named(c.call) == parent_call), key=lambda child: child.index)
        rest = [child for child in found if child.index > after]
        items = [child_messages.ChildOutcome(c.index, c.id, "completed", Raw(c.result)) for c in rest[:most]]
        return child_messages.ChildOutcomes(items, items[-1].index if len(rest) > most else None)

    # --- what the test decides ---------------------------------------------------------------------------------------
    @property
    def running(self) -> list[Child]:
        """The children that have not ended."""
        return [child for child in self.children if child.status == "running"]

    def complete(self, child: Child, value: object) -> None:
        """*child* has returned *value*."""
        child.status, child.result = "completed", msgspec.json.encode(value)

    def fail(self, child: Child, error_type: str) -> None:
        """*child* has failed."""
        child.status, child.type = "failed", error_type

    def cancel(self, child: Child) -> None:
        """*child* was cancelled."""
        child.status = "cancelled"

    # --- the rules ---------------------------------------------------------------------------------------------------
    def _start(self, start: child_messages.ChildStart) -> child_messages.StartedChild:
        known = next((c for c in self.children if (c.call, c.index) == (call_of(start), start.index)), None)
        if known is not None:
            assert bytes(known.start.input) == bytes(start.input), "one call, two inputs"
            return child_messages.StartedChild(known.id)
        if (code := self.refuse(start)) is not None:
            return child_messages.StartedChild(error=messages.ErrorObject(code, "no", retryable=False))
        child = Child(f"run_c{len(self.children)}", call_of(start), start.index, start.total, start)
        self.children.append(child)
        return child_messages.StartedChild(child.id, created=True)

    def _note(self, start: child_messages.ChildStart) -> None:
        children = [child for child in self.children if child.call == call_of(start)]
        if len(children) < start.total or self.number([start]) is not None:
            return
        value = {"id": children[0].id} if start.kind == "child" else {"total": start.total}
        self._records.append(
            messages.RecordIn(
                start.kind,
                start.workflow,
                start.args_hash,
                start.ordinal,
                "started",
                "started",
                1,
                Raw(msgspec.json.encode(value)),
                preview=start.preview,
            )
        )


def call_of(start: child_messages.ChildStart) -> Call:
    """The call of the parent that *start* belongs to."""
    return start.kind, start.workflow, start.args_hash, start.ordinal


def named(call: Call) -> str:
    """*call* as the dispatcher names it."""
    kind, name, args_hash, ordinal = call
    return f"{kind}:{args_hash}:{ordinal}:{name}"


def _is_start(record: messages.RecordIn) -> bool:
    return record.kind in ("child", "children") and record.phase == "started"


def _address(item: messages.WaitFor | messages.RecordIn) -> Call:
    return item.kind, item.name, item.args_hash, item.ordinal


def _record(
    wait: messages.WaitFor,
    state: messages.RecordState,
    value: Raw | msgspec.UnsetType,
    error: messages.ErrorObject | None,
    now_ms: int,
) -> messages.RecordIn:
    return messages.RecordIn(
        wait.kind,  # type: ignore[arg-type]
        wait.name,
        wait.args_hash,
        wait.ordinal,
        "ended",
        state,
        1,
        value,
        error,
        finished_at=clock.to_wire(now_ms),
    )
