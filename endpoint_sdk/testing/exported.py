"""A run as `pointsman run export` wrote it, replayed against the code of today."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from endpoint_sdk.envelope import Envelope
from endpoint_sdk.errors import ConfigurationError, PayloadError
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.wire import child_messages, clock, messages
from endpoint_sdk.workflow import Workflow


class _View(messages.Lenient, frozen=True):
    """What a replay needs of a run as the dispatcher shows it."""

    id: str
    namespace: str
    workflow: str
    version: str
    attempt: int
    input: msgspec.Raw
    created_at: str
    updated_at: str
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    parent_id: str | None = None
    scheduled_for: str | None = None
    idempotency_key: str | None = None
    generation: int = 0


class _Outcome(child_messages.ChildOutcome, frozen=True, kw_only=True):
    """A child of a call of many; *call* is the call, "kind:argsHash:ordinal:name"."""

    call: str


class Export(messages.Lenient, frozen=True):
    """The file: the run, all of its records, and what became of children whose results no record holds."""

    run: _View
    records: list[messages.Record]
    children: list[_Outcome] = msgspec.field(default_factory=list)

    def outcomes(self, call: str) -> list[child_messages.ChildOutcome]:
        """Those of the children *call* started, by their index."""
        found = [child for child in self.children if child.call == call]
        return sorted(found, key=lambda child: child.index)


class Replayed(msgspec.Struct, frozen=True):
    """Where the records lead today: *status* "goes on" is a run that would start its next task or wait.

    *result* is that of a completed one, *error* what a failed one raised.
    """

    status: Literal["completed", "failed", "cancelled", "goes on"]
    result: Any = None
    error: BaseException | None = None


def read(path: str | Path, envelope: Envelope) -> Export:
    """The export in the file *path*, its payloads out of *envelope*; raises ConfigurationError when it is none."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Export)
        return Export(
            msgspec.structs.replace(found.run, input=envelope.open(found.run.input)),
            envelope.open_records(found.records),
            [_opened(child, envelope) for child in found.children],
        )
    except PayloadError as error:
        raise ConfigurationError(f"a payload in {path} cannot be read: {error}; does replay() need codec=?") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no run that `pointsman run export` wrote: {error}") from error


def _opened(child: _Outcome, envelope: Envelope) -> _Outcome:
    plain = envelope.open_child(child)
    return msgspec.structs.replace(child, result=plain.result, error=plain.error)


def restored(export: Export, workflow: Workflow[Any, Any]) -> MemoryRun:
    """The run, with its history; raises ConfigurationError when *workflow* is not its code."""
    view = export.run
    if view.workflow != workflow.name or view.version not in {workflow.version, *workflow.accepts}:
        raise ConfigurationError(
            f"{view.id} is a run of {view.workflow!r} {view.version}, which {workflow!r} does not continue"
        )
    fields = {name: getattr(view, name) for name in messages.GrantedRun.__struct_fields__}
    memory = MemoryRun(messages.GrantedRun(**fields))
    memory.records += export.records
    return memory


def ended_at(export: Export) -> int:
    """The last moment the file knows of, in milliseconds since the epoch."""
    return clock.from_wire(export.run.updated_at)
