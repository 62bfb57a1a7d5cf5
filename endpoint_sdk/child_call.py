"""Calls of children: starting them, and what became of them.

A start and the end of what it started are two calls at one address, with an outcome each: their keys differ by phase.
All children of a call of kind `children` are started by one call and have one end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from endpoint_sdk import addresses
from endpoint_sdk.addresses import Address, Key
from endpoint_sdk.errors import ChildFailed, ConfigurationError
from endpoint_sdk.pending_call import Call, Outcome
from endpoint_sdk.wait_call import WaitCall, refused
from endpoint_sdk.wire import child_messages, clock, limits, messages

if TYPE_CHECKING:
    from endpoint_sdk.workflow import Workflow

Kind = Literal["child", "children"]

# Room for an index and the commas.
_SLACK: Final = 16


class Options(msgspec.Struct, frozen=True):
    """What a child may have beside its input; without a pool and tags it has its parent's."""

    idempotency_key: str | None = None
    pool: str | None = None
    tags: dict[str, str] | None = None
    limit: int | None = None


def one(workflow: "Workflow[Any, Any]", value: object, options: Options) -> "StartCall":
    """The start of one child with input *value*; raises PayloadError, ConfigurationError for a workflow without."""
    return StartCall("child", _checked(workflow), [workflow.encode_input(value)], options)


def many(workflow: "Workflow[Any, Any]", values: Iterable[object], limit: int) -> "StartCall":
    """The start of a child for each of *values*, of which *limit* run at once; raises as `one`."""
    if limit < 1:
        raise ConfigurationError(f"map needs a limit of at least 1: {limit!r}")
    inputs = [_checked(workflow).encode_input(value) for value in values]
    return StartCall("children", workflow, inputs, Options(limit=min(limit, limits.MAX_CHILDREN)))


def _checked(workflow: "Workflow[Any, Any]") -> "Workflow[Any, Any]":
    if not hasattr(workflow, "encode_input"):
        raise ConfigurationError(f"{workflow!r} is not a workflow: decorate it with @workflow")
    return workflow


class StartCall(Call):
    """Starts a run of *workflow* for each of *inputs*, which are encoded; raises ConfigurationError for too many."""

    def __init__(
        self, kind: Kind, workflow: "Workflow[Any, Any]", inputs: Sequence[bytes], options: Options | None = None
    ) -> None:
        if len(inputs) > limits.MAX_CHILDREN:
            raise ConfigurationError(
                f"map over workflow {workflow.name!r}: {len(inputs)} items, one call starts at most "
                f"{limits.MAX_CHILDREN} children"
            )
        canonical = [addresses.canonical_json(data) for data in inputs]
        arguments = canonical[0] if kind == "child" else b"[" + b",".join(canonical) + b"]"
        address = Address(kind, workflow.name, addresses.args_hash(arguments))
        super().__init__(address, addresses.preview(arguments))
        self.kind: Final[Kind] = kind
        self.workflow: Final = workflow
        self._inputs = inputs
        self._options = options or Options()

    @property
    def total(self) -> int:
        """How many children it starts."""
        return len(self._inputs)

    def keyed(self, number: Callable[[Address], Key]) -> Key:
        """The key of the start; the end has the same number."""
        return number(self.address).start

    def chunks(self) -> Iterator[list[child_messages.ChildStart]]:
        """The starts as they go into one request each: at most 500, and 4 MiB."""
        envelope = len(msgspec.json.encode(self._start(0, b"0"))) + _SLACK
        chunk: list[child_messages.ChildStart] = []
        size = envelope
        for index, data in enumerate(self._inputs):
            if chunk and (len(chunk) == limits.MAX_BATCH or size + envelope + len(data) > limits.MAX_PROGRESS):
                yield chunk
                chunk, size = [], envelope
            chunk.append(self._start(index, data))
            size += envelope + len(data)
        yield chunk

    def _start(self, index: int, data: bytes) -> child_messages.ChildStart:
        options = self._options
        return child_messages.ChildStart(
            self.kind,
            self.workflow.name,
            self.workflow.version,
            self.address.args_hash,
            self.key.ordinal,
            msgspec.Raw(data),
            index,
            self.total,
            options.idempotency_key,
            options.pool,
            options.tags,
            options.limit,
            self.preview,
        )

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """The child's id, None where many were started; or the error of a start that was refused."""
        del run_id
        if record.error is not None:
            return Outcome(None, refused(record), clock.known_ms(record.finished_at))
        if self.kind == "children":
            return started(None)
        return started(_Started.decode(b"null" if not record.value else record.value).id)

    def wait(self) -> messages.WaitFor:
        """A start waits for nothing but its turn."""
        raise NotImplementedError


class ChildCall(WaitCall):
    """Waits for the end of what *start* started."""

    relative = True

    def __init__(self, start: StartCall) -> None:
        super().__init__(start.address, start.preview)
        self.start: Final = start

    def keyed(self, number: Callable[[Address], Key]) -> Key:
        """The key of the end: asked for again, it is the same call."""
        del number
        return self.start.key.end

    def deadline(self, now: int) -> None:
        """A child takes as long as it takes."""

    def read(self, record: messages.Record, run_id: str) -> Outcome:
        """The child's result, or ChildFailed; raises PayloadError."""
        del run_id
        finished_ms = clock.known_ms(record.finished_at)
        if record.error is not None:
            return Outcome(None, failure(record.error), finished_ms)
        return Outcome(self._value(record), None, finished_ms)

    def _value(self, record: messages.Record) -> Any:
        return self.start.workflow.decode_result(b"null" if not record.value else record.value)

    def wait(self) -> messages.WaitFor:
        """The child, or all children, for ever."""
        address = self.address
        return messages.WaitFor(self.start.kind, address.name, self.key.ordinal, address.args_hash)


class ChildrenCall(ChildCall):
    """Waits for the end of all that *start* started; `results` are fetched once that is recorded."""

    fetches = True
    results: Sequence[child_messages.ChildOutcome] = ()

    @property
    def place(self) -> str:
        """The call as the dispatcher names it."""
        kind, name, args_hash = self.address
        return f"{kind}:{args_hash}:{self.key.ordinal}:{name}"

    def take(self, results: Sequence[child_messages.ChildOutcome]) -> None:
        """*results* are those of all children; raises RuntimeError when some are missing."""
        if [each.index for each in results] != list(range(self.start.total)):
            raise RuntimeError(f"{len(results)} of {self.start.total} results of the children of {self.place} came")
        self.results = results

    def _value(self, record: messages.Record) -> list[Any]:
        del record
        decode = self.start.workflow.decode_result
        return [decode(b"null" if not each.result else each.result) for each in self.results]


class _Beginning(msgspec.Struct, frozen=True):
    id: str


_Started: Final = msgspec.json.Decoder(_Beginning)


class _Details(messages.Lenient, frozen=True):
    """What the dispatcher says of a child that did not complete."""

    run_id: str | None = None
    status: str | None = None
    type: str | None = None
    # Where the child's executor sealed its errors, this one's message is inside.
    message: str | None = None
    details: Any = None


def started(child_id: str | None) -> Outcome:
    """The outcome of a start. It moves no clock: when a child was started is not in every answer."""
    return Outcome(child_id, None, 0)


def failure(error: messages.ErrorObject) -> ChildFailed:
    """The exception of a child that failed or was cancelled."""
    details = msgspec.convert(error.details if isinstance(error.details, dict) else {}, _Details)
    kind = details.type or details.status or error.type
    return ChildFailed(details.run_id or "", kind, details.message or error.message, details.details)
