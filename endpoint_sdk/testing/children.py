"""Who is whose child: starts, and what the end of one means for the run that waits for it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from endpoint_sdk import failures
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.testing.memory_run import Address, Answer, MemoryRun
from endpoint_sdk.testing.stubs import Calls
from endpoint_sdk.wire import child_messages, messages
from endpoint_sdk.workflow import Workflow

Begin = Callable[[Workflow[Any, Any], child_messages.ChildStart, MemoryRun], MemoryRun]


class ChildStub:
    """*outcome* in the place of every child of *workflow*."""

    def __init__(self, workflow: Workflow[Any, Any], outcome: object) -> None:
        self.calls: Calls[...] = Calls(lambda args, kwargs: workflow.encode_input(*args, **kwargs))
        self._workflow = workflow
        self._outcome = outcome
        if not isinstance(outcome, BaseException) and not callable(outcome):
            workflow.decode_result(workflow.encode_result(outcome))

    def end(self, child: MemoryRun) -> None:
        """The child has ended as the stub says; nothing of it was run."""
        value = self._workflow.decode_input(child.run.input)
        self.calls.note((value,), {})
        try:
            child.result = msgspec.Raw(self._workflow.encode_result(self._came_to(value)))
        except Exception as error:
            child.error = failures.describe(error)
            child.move("failed")
        else:
            child.move("completed")

    def _came_to(self, value: object) -> object:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome(value) if callable(self._outcome) else self._outcome


class _Call:
    """What one call started: *total* runs, by their index."""

    def __init__(self, parent: MemoryRun, address: Address, total: int) -> None:
        self.parent = parent
        self.address = address
        self.total = total
        self.members: dict[int, MemoryRun] = {}


class Children:
    """All children of a tester's runs; *begin* makes a run."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._workflows: dict[tuple[str, str], Workflow[Any, Any]] = {}
        self._calls: dict[tuple[str, Address], _Call] = {}
        self._call_of: dict[str, _Call] = {}
        self._born: dict[str, list[MemoryRun]] = {}
        self._keyed: dict[tuple[str, str], MemoryRun] = {}
        self.stubs: Final[dict[str, ChildStub]] = {}

    def know(self, workflow: Workflow[Any, Any]) -> None:
        """A run names *workflow*: its children are executed by it."""
        self._workflows[workflow.name, workflow.version] = workflow

    def start(
        self, parent: MemoryRun, starts: Sequence[child_messages.ChildStart], claim_id: str, now: int
    ) -> list[child_messages.StartedChild]:
        """As the dispatcher answers; a call all of whose children have started leaves a record in its parent."""
        answers = [self._start(parent, start) for start in starts]
        for start in starts:
            call = self._calls.get((parent.run.id, _address(start)))
            if call is not None and len(call.members) == call.total:
                self._record(call, start, claim_id)
        for start in starts:
            self._tell(self._calls.get((parent.run.id, _address(start))), now)
        return answers

    def ended(self, child: MemoryRun, now: int) -> None:
        """Whoever waits for *child* hears of its end."""
        self._tell(self._call_of.get(child.run.id), now)

    def of(self, parent: MemoryRun) -> list[MemoryRun]:
        """The children of *parent*, in the order they were started."""
        return list(self._born.get(parent.run.id, ()))

    def forget(self, parent: MemoryRun) -> None:
        """No call of *parent* waits for the children it started any more; they go on as they are."""
        for call in self._calls_of(parent):
            self._forget(call)

    def forget_failed(self, parent: MemoryRun) -> set[Address]:
        """The calls of *parent* that started a child which failed or was cancelled: they are forgotten.

        Such a child gives its idempotency key up, so that the call can start another.
        """
        failed = [call for call in self._calls_of(parent) if any(map(_unsuccessful, call.members.values()))]
        for call in failed:
            self._forget(call)
            for child in filter(_unsuccessful, call.members.values()):
                self._keyed.pop((child.run.workflow, child.run.idempotency_key or ""), None)
        return {call.address for call in failed}

    def outcomes(self, parent: MemoryRun, parent_call: str) -> list[child_messages.ChildOutcome]:
        """What became of all children of *parent_call*, by their index."""
        kind, args_hash, ordinal, name = parent_call.split(":", 3)
        call = self._calls[parent.run.id, (kind, name, args_hash, int(ordinal))]
        return [
            child_messages.ChildOutcome(
                index, child.run.id, child.status, msgspec.UNSET if child.result is None else child.result, child.error
            )
            for index, child in sorted(call.members.items())
        ]

    # --- one start and one end ---------------------------------------------------------------------------------------
    def _start(self, parent: MemoryRun, start: child_messages.ChildStart) -> child_messages.StartedChild:
        address = _address(start)
        call = self._calls.setdefault((parent.run.id, address), _Call(parent, address, start.total))
        found = call.members.get(start.index)
        if found is not None:
            return child_messages.StartedChild(found.run.id)
        key = (start.workflow, start.idempotency_key or "")
        known = None if start.idempotency_key is None else self._keyed.get(key)
        if known is not None and (conflict := self._conflict(known, start, parent)):
            error = messages.ErrorObject("idempotency_conflict", conflict, {"runId": known.run.id}, retryable=False)
            return child_messages.StartedChild(error=error)
        child = known or self._begin(self._workflow(start), start, parent)
        call.members[start.index] = child
        self._call_of[child.run.id] = call
        if known is None:
            self._born.setdefault(parent.run.id, []).append(child)
            if start.idempotency_key is not None:
                self._keyed[key] = child
            if (stub := self.stubs.get(start.workflow)) is not None:
                stub.end(child)
        return child_messages.StartedChild(child.run.id, created=known is None)

    def _conflict(self, known: MemoryRun, start: child_messages.ChildStart, parent: MemoryRun) -> str | None:
        """Why *parent* cannot have the run that bears the key of *start*, if it cannot."""
        if bytes(known.run.input) != bytes(start.input):
            return "the key names a run with another input"
        if known.run.parent_id != parent.run.id or known.run.id in self._call_of:
            return "the key names a run that is no child of this call"
        return None

    def _calls_of(self, parent: MemoryRun) -> list[_Call]:
        return [call for call in self._calls.values() if call.parent is parent]

    def _forget(self, call: _Call) -> None:
        del self._calls[call.parent.run.id, call.address]
        for child in call.members.values():
            self._call_of.pop(child.run.id, None)

    def _workflow(self, start: child_messages.ChildStart) -> Workflow[Any, Any]:
        found = self._workflows.get((start.workflow, start.version))
        if found is None:
            raise ConfigurationError(f"nobody knows workflow {start.workflow!r} {start.version}")
        return found

    def _record(self, call: _Call, start: child_messages.ChildStart, claim_id: str) -> None:
        value = {"id": call.members[0].run.id} if start.kind == "child" else {"total": call.total}
        record = messages.RecordIn(
            kind=start.kind,
            name=start.workflow,
            args_hash=start.args_hash,
            ordinal=start.ordinal,
            phase="started",
            state="started",
            attempt=1,
            value=msgspec.Raw(msgspec.json.encode(value)),
            preview=start.preview,
        )
        call.parent.record(record, claim_id)

    def _tell(self, call: _Call | None, now: int) -> None:
        if call is not None and (answer := _answer(call, now)) is not None:
            call.parent.answer_child(call.address, answer, now)


def _address(start: child_messages.ChildStart) -> Address:
    return start.kind, start.workflow, start.args_hash, start.ordinal


def _unsuccessful(child: MemoryRun) -> bool:
    return child.status in ("failed", "cancelled")


def _answer(call: _Call, now: int) -> Answer | None:
    """What the call has come to: the first child that did not complete decides, or the last that did."""
    kind, name, args_hash, ordinal = call.address
    wait = messages.WaitFor("child" if kind == "child" else "children", name, ordinal, args_hash)
    for index, child in sorted(call.members.items()):
        if _unsuccessful(child):
            return Answer(now, wait, None, _failure(child, index))
    if len(call.members) < call.total or any(child.status != "completed" for child in call.members.values()):
        return None
    value = call.members[0].result if kind == "child" else msgspec.Raw(msgspec.json.encode({"total": call.total}))
    return Answer(now, wait, value)


def _failure(child: MemoryRun, index: int) -> messages.ErrorObject:
    error = child.error
    message = f"was cancelled: {child.cancel_reason}" if error is None else error.message
    details = {
        "runId": child.run.id,
        "workflow": child.run.workflow,
        "index": index,
        "status": child.status,
        "type": None if error is None else error.type,
        "details": None if error is None else error.details,
    }
    return messages.ErrorObject("ChildFailed", message, details, retryable=False)
