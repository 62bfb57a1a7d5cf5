"""A lab whose run can park: the test decides when a park is answered, what is sent, and how time passes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from endpoint_sdk import Workflow
from endpoint_sdk.replay import Parked
from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.replay_lab import GRANTED, Lab, Sent, grant
from tests.unit.sdk.waiting_room import WaitingRoom

Asked = tuple[list[messages.WaitFor], int, bool]


class WaitLab(Lab):
    """One run over several executions and parks; `room` is the dispatcher's side of its waits."""

    def __init__(self, workflow: Workflow[Any, Any]) -> None:
        super().__init__(workflow)
        self.room = WaitingRoom(self.records, clock.from_wire(GRANTED), self.nursery)
        self._asked: Asked | None = None
        self._answer: asyncio.Future[Sequence[messages.Record] | None] | None = None
        self._refused: list[Asked] = []
        self._signal_seq = 0
        self._heard_up_to = 0
        self._unheard = 0
        self.stop = False

    async def park(self, waits: Sequence[messages.WaitFor], *, told: bool = False) -> Sequence[messages.Record] | None:
        """Returns when the test answers."""
        assert not self.bodies, "parked beside a running body"
        assert not self._sent, "parked beside a record on its way"
        self._asked = (list(waits), self._signal_seq, told)
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    def _grant(self) -> messages.Grant:
        assert not self.room.parked
        self._signal_seq = self.room.signal_seq
        self._heard_up_to = len(self.records)
        self._refused.clear()
        granted = grant(self.records, None, list(self.room.armed.values()), clock.to_wire(self.room.now_ms))
        return msgspec.structs.replace(granted, stop="cancel" if self.stop else None)

    # --- what the test decides ---------------------------------------------------------------------------------------
    @property
    def asks(self) -> bool:
        """Whether a park is on its way."""
        return self._asked is not None

    @property
    def can_repeat(self) -> bool:
        """Whether a late copy of a refused park may still arrive."""
        return bool(self._refused)

    async def answer_park(self) -> None:
        """The park on its way reaches the dispatcher, and its answer the executor."""
        asked, answer, self._asked = self._asked, self._answer, None
        assert asked is not None
        assert answer is not None
        if self._carry_out(asked):
            answer.set_result(None)
            assert await self.ended() == Parked()
            return
        self._refused.append(asked)
        self._signal_seq = self.room.signal_seq
        self.refresh()
        answer.set_result(self._signals())
        await self.rest()

    def _carry_out(self, asked: Asked) -> bool:
        waits, signal_seq, told = asked
        return self.room.park(waits, signal_seq, refused=self.stop and not told)

    def refresh(self) -> None:
        """The executor hears of a cancel that stands."""
        if self.stop:
            self.cancel()

    def repeat_park(self) -> None:
        """A late copy of a refused park arrives; it is refused too."""
        assert not self._carry_out(self._refused[-1])

    def lose_reply(self) -> None:
        """All records on their way reach the dispatcher, and its answer is lost: they will be sent again."""
        self._unheard = len(self._sent)
        for sent, _ in self._sent:
            self._number(sent)

    async def store(self, count: int) -> None:
        """As Lab.store; the answer brings the outcomes recorded before these. A repeat is of the same records."""
        count, self._unheard = self._unheard or count, 0
        sent, self._sent = self._sent[:count], self._sent[count:]
        numbers = [number for each, _ in sent if (number := self._number(each)) is not None]
        assert self._engine is not None
        self._signal_seq = self.room.signal_seq
        self.refresh()
        self._engine.hear(self._signals(before=min(numbers, default=None)))
        for each, acknowledged in sent:
            acknowledged.set_result(None if isinstance(each, messages.RecordIn) else self.nursery.start(each))
        await self.rest()

    async def crash(self, stored_unheard: int = 0, *, park_reached: bool = False) -> None:
        """As Lab.crash; *park_reached* says whether a park on its way was carried out."""
        for sent, _ in self._sent[:stored_unheard]:
            self._number(sent)
        self._unheard = 0
        asked, self._asked = self._asked, None
        if asked is not None and park_reached:
            self._carry_out(asked)
        await super().crash(0)

    def _number(self, record: Sent) -> int | None:
        """The number *record* is stored under, new or from before; None where the dispatcher had recorded it itself.

        Children are started, and numbered once all of their call are.
        """
        if not isinstance(record, messages.RecordIn):
            self.nursery.start(record)
            return self.nursery.number(record)
        for seq, known in enumerate(self.records, start=1):
            if _key(known) == _key(record):
                return None if known is not record and seq in self.room.written else seq
        self.records.append(record)
        return len(self.records)

    def _signals(self, before: int | None = None) -> list[messages.Record]:
        signals = self.room.lacking(self._heard_up_to, before)
        self._heard_up_to = max([self._heard_up_to, *(record.seq for record in signals)])
        return signals


def _key(record: messages.RecordIn) -> tuple[object, ...]:
    return record.kind, record.name, record.args_hash, record.ordinal, record.attempt, record.phase
