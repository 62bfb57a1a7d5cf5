"""endpoint_sdk.execution where everything goes wrong at random: what holds on every path holds here too."""

import asyncio
import random
from collections.abc import Mapping
from datetime import timedelta

import msgspec
import pytest

from endpoint_sdk.exchange import Exchange, Times
from endpoint_sdk.execution import Conclusion, Execution
from endpoint_sdk.run import Run
from endpoint_sdk.subscribers.base import Claim
from endpoint_sdk.tasks import task
from endpoint_sdk.transport import Answer, AnswerTimeout, ConnectFailed, ResetAfterSend
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Workflow, workflow
from tests.unit.sdk.dispatcher_double import URL, BlockingDouble, DispatcherDouble, FakeClock, error
from tests.unit.sdk.handling import ByHand, Handling

STRANGE = [b"", b"<html>", b"{}", error("not_found")]


class Storm(DispatcherDouble):
    """Loses calls and answers, takes its time, answers nonsense, and gives the run to somebody else now and then."""

    def __init__(self, chance: random.Random, clock: FakeClock) -> None:
        super().__init__("storm")
        self.chance = chance
        self.clock = clock
        self.idle_timeout_ms = chance.choice([3_000, 10_000, 90_000])
        self._faulty = chance.choice([0, 0.1, 0.3, 0.6])
        self._given_away = False

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
        if self.state == "running" and not self._given_away and self.chance.random() < 0.03:
            self._given_away = True
            self.takes_over()
        if self.chance.random() >= self._faulty:
            self.clock.pass_(min(timeout * 0.9, self.chance.choice([0, 0.01, 3])))
            return self.answer(method, url, headers, body)
        if self.chance.random() < 0.3:
            raise ConnectFailed("refused", "refused")
        if self.chance.random() < 0.5:
            self.answer(method, url, headers, body)
        if self.chance.random() < 0.5:
            self.clock.pass_(timeout)
            raise self.chance.choice([AnswerTimeout, ResetAfterSend])("no answer", sent=True)
        return Answer(self.chance.choice([200, 401, 404, 408, 429, 500, 503]), {}, self.chance.choice(STRANGE))


class Voyage:
    """One execution through a storm; `ages` are how old the last accepted call was when a body started."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.storm = Storm(self.chance, self.clock)
        self.ages: list[float] = []
        handling = Handling(self._workflow(), self.storm)
        refresher = ByHand(lambda: BlockingDouble(self.storm), now=self.clock.now)
        times = Times(self.clock.now, self.clock.sleep, lambda low, high: (low + high) / 2)
        context = msgspec.structs.replace(
            handling.context, exchange=Exchange(self.storm, URL, times), refresher=refresher
        )
        limit = self.chance.choice([None, 1, 3, 30, 900])
        self._end = None if limit is None else self.clock.now() + limit
        self.execution = Execution(context, self._work(), self._left)

    async def run(self) -> Conclusion:
        running = asyncio.create_task(self.execution.run())
        act = self.chance.choice([None, None, self.execution.drain, self.execution.expire])
        for _ in range(self.chance.randrange(40)):
            await asyncio.sleep(0)
        if act is not None:
            act()
        return await asyncio.wait_for(running, 20)

    def _work(self) -> messages.Delivery | Claim:
        if self.chance.random() < 0.6:
            return self.storm.delivery()
        self.storm.state, self.storm.revision, self.storm.claim_id = "running", 5, "req_1"
        return Claim(self.storm._grant(), self.clock.now() - self.chance.choice([0, 20, 73, 200]))

    def _left(self) -> timedelta | None:
        return None if self._end is None else timedelta(seconds=max(self._end - self.clock.now(), 0))

    def _body(self, longest: list[float]) -> None:
        refreshed_at = self.execution.refreshed_at
        assert refreshed_at is not None
        self.ages.append(self.clock.now() - refreshed_at)
        self.clock.pass_(self.chance.choice(longest))

    def _workflow(self) -> Workflow[str, int]:
        @task(name="often")
        async def often(number: int) -> int:
            self._body([0, 5, 80])
            await asyncio.sleep(0)
            return number

        @task(name="once", at_most_once=True)
        async def once(number: int) -> int:
            self._body([0, 30])
            return number

        @workflow("storm")
        async def storm(run: Run, value: str) -> int:
            total = 0
            for number in range(3):
                total += sum(await asyncio.gather(run.task(often, number), run.task(once, number)))
            return total

        return storm


@pytest.mark.parametrize("first", range(0, 200, 20))
async def test_what_holds_in_every_storm(first: int) -> None:
    """I15: no body starts on a claim that may be stale. Nothing is called settled that is neither ended, lost nor
    refused, and no task is left behind."""
    before = asyncio.all_tasks()
    for seed in range(first, first + 20):
        voyage = Voyage(seed)
        conclusion = await voyage.run()
        storm = voyage.storm

        assert all(age < 0.8 * storm.idle_timeout_ms / 1_000 for age in voyage.ages), seed
        known = conclusion.what.startswith(("claim refused", "claim lost"))
        assert conclusion.result == "retry" or known or storm.ending is not None, seed
        assert asyncio.all_tasks() <= before, seed
