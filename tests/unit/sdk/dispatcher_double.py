"""An in-memory dispatcher for one run: the real fencing rules, and a script of faults per call.

It is a transport too, async and blocking, so an execution talks to it without a socket.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Raw

from endpoint_sdk.transport import Answer, ConnectFailed, ResetAfterSend
from endpoint_sdk.wire import child_messages, clock, messages
from tests.unit.sdk.waiting_room import WaitingRoom, numbered

RUN_ID = "run_01JQ0000000000000000000000"
URL = "http://dispatcher.test"

Proceed = Callable[[], Answer]
Fault = Callable[[Proceed], Answer]


def reply_lost(proceed: Proceed) -> Answer:
    """The call is carried out and its answer never comes."""
    proceed()
    raise ResetAfterSend("reset", sent=True)


def unreachable(_proceed: Proceed) -> Answer:
    """Nothing reaches the dispatcher."""
    raise ConnectFailed("refused", "refused")


def status(number: int, body: bytes = b"<html>") -> Fault:
    """Something in between answers, and nothing is carried out."""
    return lambda _proceed: Answer(number, {}, body)


def refusal(number: int, code: str) -> Fault:
    """The dispatcher refuses with *code*."""
    return status(number, error(code))


def error(code: str) -> bytes:
    return msgspec.json.encode(messages.ErrorAnswer(messages.ErrorBody(code, "no")))


def passed(proceed: Proceed) -> Answer:
    """No fault."""
    return proceed()


class DispatcherDouble:
    """One run, queued at revision 4."""

    def __init__(
        self, workflow: str = "order", version: str = "1", value: bytes = b'"in"', *, run_id: str = RUN_ID
    ) -> None:
        self.run_id = run_id
        self.workflow, self.version, self.input = workflow, version, value
        self.revision = 4
        self.state = "queued"
        self.claim_id = ""
        self.idle_timeout_ms = 90_000
        self.refresh_interval_ms = 30_000
        self.stop: messages.Stop | None = None
        self.page = 1_000
        self.records: list[messages.RecordIn] = []
        self.room = WaitingRoom(self.records, 2_000)
        self.ending: messages.Ending | None = None
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.before: dict[str, Callable[[], object]] = {}
        self._ended_by = ""

    # --- what tests ask ----------------------------------------------------------------------------------------------
    def delivery(self, **changes: object) -> messages.Delivery:
        delivery = messages.Delivery(
            self.run_id, "default", self.workflow, self.version, self.revision, 1, "orders", URL, "pmc_token", 1
        )
        return msgspec.structs.replace(delivery, **changes)

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The bodies of all calls of *kind*, carried out or not."""
        return [body for name, body in self.requests if name == kind]

    @property
    def result(self) -> bytes:
        """The result the run completed with."""
        assert isinstance(self.ending, messages.Complete)
        return bytes(self.ending.result)

    def takes_over(self) -> None:
        """Recovery releases the run and another executor claims it."""
        self.revision += 2
        self.claim_id = "clm_other"
        self.state = "running"

    def requeue(self) -> None:
        """A released run, or a parked one that is awake, is queued at the next revision."""
        assert isinstance(self.ending, messages.Release | messages.Park)
        assert not self.room.parked
        self.revision += isinstance(self.ending, messages.Park)
        self.state, self.ending = "queued", None

    # --- the transport -----------------------------------------------------------------------------------------------
    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        connect_timeout: float = 5.0,
        timeout: float = 30.0,
        max_body: int = 0,
    ) -> Answer:
        await asyncio.sleep(0)
        answer = self.answer(method, url, headers, body)
        await asyncio.sleep(0)
        return answer

    async def close(self) -> None:
        pass

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        kind = url.partition("?")[0].rsplit("/", 1)[-1]
        request = msgspec.json.decode(body) if body else {}
        self.requests.append((kind, request))
        if (hook := self.before.get(kind)) is not None:
            hook()
        fault = self.faults[kind].popleft() if self.faults[kind] else passed
        return fault(lambda: self._carry_out(kind, url, headers, body))

    def _carry_out(self, kind: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if kind == "claim":
            return self._claim(msgspec.json.decode(body, type=messages.ClaimRun))
        if kind == "progress":
            assert headers["authorization"] == "Bearer pmw_token"
            return self._progress(msgspec.json.decode(body, type=messages.Progress))
        if kind == "children":
            return self._start(msgspec.json.decode(body, type=child_messages.StartChildren))
        if kind == "outcomes":
            query = parse_qs(urlsplit(url).query)
            after = int(query.get("after", ["-1"])[0])
            return _ok(self.room.nursery.page(query["call"][0], after, self.page))
        if kind == "records":
            return _ok(self._page(int(url.rpartition("=")[2])))
        return self._refresh(msgspec.json.decode(body, type=messages.Refresh))

    def _claim(self, claim: messages.ClaimRun) -> Answer:
        repeated = self.state == "running" and claim.claim_id == self.claim_id
        if repeated and claim.expected_revision + 1 == self.revision:
            return _ok(self._grant())
        if self.state == "queued" and claim.expected_revision == self.revision:
            self.state, self.claim_id, self.revision = "running", claim.claim_id, self.revision + 1
            return _ok(self._grant())
        if self.state == "running" and claim.expected_revision + 1 == self.revision:
            return Answer(409, {}, error("already_claimed"))
        return Answer(409, {}, error("run_finished" if self.state == "ended" else "stale_delivery"))

    def _grant(self) -> messages.Grant:
        run = messages.GrantedRun(
            self.run_id, "default", self.workflow, self.version, 1, Raw(self.input), clock.to_wire(1_000)
        )
        first = self._page(0)
        return messages.Grant(
            run,
            self.revision,
            self.claim_id,
            "pmw_token",
            self.idle_timeout_ms,
            self.refresh_interval_ms,
            clock.to_wire(self.room.now_ms),
            self.room.signal_seq,
            stop=self.stop,
            records=first.items,
            records_after=first.next,
            waits=list(self.room.armed.values()),
        )

    def _page(self, after: int) -> "_Page":
        stored = [numbered(seq, record) for seq, record in enumerate(self.records, 1)]
        items = stored[after : after + self.page]
        more = after + len(items) < len(stored)
        return _Page(items, after + len(items) if more else None)

    def _progress(self, call: messages.Progress) -> Answer:
        if call.request_id == self._ended_by:
            parked = True if isinstance(call.ending, messages.Park) else None
            return _ok(messages.Progressed(call.expected_revision + 1, parked=parked))
        if (call.expected_revision, call.claim_id, "running") != (self.revision, self.claim_id, self.state):
            return Answer(409, {}, error("revision_conflict"))
        first = self._store(call.records)
        parked = self._park(call.ending, call.signal_seq) if isinstance(call.ending, messages.Park) else None
        if call.ending is not None and parked is not False:
            self.ending, self.state, self._ended_by = call.ending, "ended", call.request_id
            self.revision += 1
        signals = self.room.lacking(call.signals_after, None if parked is False else first)
        return _ok(messages.Progressed(self.revision, self.stop, self.room.signal_seq, parked, signals))

    def _store(self, records: list[messages.RecordIn]) -> int | None:
        """The number of the first of *records* that is new."""
        known = {_key(record) for record in self.records}
        first = len(self.records) + 1
        self.records += [record for record in records if _key(record) not in known]
        return first if len(self.records) >= first else None

    def _start(self, call: child_messages.StartChildren) -> Answer:
        if (call.expected_revision, call.claim_id, "running") != (self.revision, self.claim_id, self.state):
            return Answer(409, {}, error("revision_conflict"))
        nursery = self.room.nursery
        children = nursery.start(call.children)
        signals = self.room.lacking(call.signals_after, nursery.number(call.children))
        return _ok(child_messages.ChildrenStarted(children, self.stop, self.room.signal_seq, signals))

    def _park(self, park: messages.Park, signal_seq: int) -> bool:
        if self.stop == "cancel" and not park.told:
            return False
        return self.room.park(park.waits, signal_seq)

    def _refresh(self, call: messages.Refresh) -> Answer:
        held = [claim for claim in call.claims if self._holds(claim)]
        lost = [claim for claim in call.claims if not self._holds(claim)]
        return _ok(
            messages.Refreshed(
                [messages.Held(claim.run_id, claim.expected_revision, self.stop) for claim in held],
                [messages.Lost(claim.run_id, claim.expected_revision, "revision_conflict") for claim in lost],
            )
        )

    def _holds(self, claim: messages.HeldClaim) -> bool:
        fence = (claim.run_id, claim.expected_revision, claim.claim_id, "running")
        return fence == (self.run_id, self.revision, self.claim_id, self.state)


class BlockingDouble:
    """The same dispatcher for the refresher's thread."""

    def __init__(self, dispatcher: DispatcherDouble) -> None:
        self._dispatcher = dispatcher
        self.closed = False

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        connect_timeout: float = 5.0,
        timeout: float = 30.0,
        max_body: int = 0,
    ) -> Answer:
        return self._dispatcher.answer(method, url, headers, body)

    def close(self) -> None:
        self.closed = True


class _Page(msgspec.Struct):
    items: list[messages.Record]
    next: int | None


class FakeClock:
    """Time that moves when somebody sleeps, or when told."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def pass_(self, seconds: float) -> None:
        self.time += seconds

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


def _ok(message: msgspec.Struct) -> Answer:
    return Answer(200, {}, msgspec.json.encode(message))


def _key(record: messages.RecordIn) -> tuple[object, ...]:
    return record.kind, record.name, record.args_hash, record.ordinal, record.attempt, record.phase
