"""Schedules fire: each occurrence one run, on time, in order, whatever else is broken; on both databases."""

import asyncio
import random

import pytest
from msgspec import Raw

from dispatcher.loop import Loop
from dispatcher.schedule_firing import FireSchedules
from dispatcher.store import Store
from endpoint_sdk.wire.messages import Complete
from tests.integration.schedules import MINUTE_MS, Clockwork
from tests.integration.sessions import Pair
from tests.integration.world import DAY_MS, HOUR_MS, World


@pytest.fixture
def clockwork(world: World) -> Clockwork:
    """Schedules of a workflow that is served at version 1."""
    return Clockwork(world)


async def test_an_occurrence_starts_a_run(clockwork: Clockwork) -> None:
    """The run of an occurrence says for when it is and what started it, and is queued."""
    first = await clockwork.every_minute(input={"a": 1}, tags={"team": "x"}, pool="slow", priority=7)
    assert await clockwork.fires() == (0, 0)
    clockwork.until(first)
    assert await clockwork.fires() == (1, 0)
    [run] = clockwork.runs()
    assert (run.workflow, run.version, run.status, run.revision) == ("report", "1", "queued", 0)
    assert (run.input, run.tags, run.pool, run.priority) == (b'{"a":1}', '{"team":"x"}', "slow", 7)
    assert (run.scheduled_for, run.due_at) == (first, first)
    assert run.idempotency_key == f"schedule:minutely:{first}"
    assert clockwork.world.history(run.id)[0].actor == "schedule:minutely"
    row = clockwork.row("minutely")
    assert (row.last_at, row.last_run_id, row.next_at) == (first, run.id, first + MINUTE_MS)
    assert await clockwork.fires() == (0, 0)


async def test_a_cron_of_a_time_zone(clockwork: Clockwork) -> None:
    """The occurrences of a cron expression are those of its zone's clocks."""
    await clockwork.describes(nightly={"cron": "30 5 * * *", "timezone": "Asia/Kathmandu"})
    assert clockwork.next_at("nightly") % DAY_MS == 23 * HOUR_MS + 45 * MINUTE_MS
    clockwork.until(clockwork.next_at("nightly") + 1)
    assert await clockwork.fires() == (1, 0)


@pytest.mark.parametrize(("overlap", "started"), [("skip", 1), ("allow", 2)])
async def test_overlap(clockwork: Clockwork, overlap: str, started: int) -> None:
    """With skip an occurrence whose predecessor runs is skipped and counted; with allow it starts beside it."""
    first = await clockwork.every_minute(overlap=overlap)
    for number in range(2):
        clockwork.until(first + number * MINUTE_MS)
        await clockwork.fires()
    assert len(clockwork.runs()) == started
    assert clockwork.row("minutely").skipped == 2 - started


async def test_skip_ends_with_the_run(clockwork: Clockwork) -> None:
    """Once the run has ended the next occurrence starts again."""
    first = await clockwork.every_minute()
    clockwork.until(first)
    await clockwork.fires()
    claim = await clockwork.world.claim(clockwork.runs()[0].id)
    await clockwork.world.write(claim, ending=Complete(Raw(b"1")))
    clockwork.until(first + MINUTE_MS)
    assert await clockwork.fires() == (1, 0)


async def test_cancel_previous(clockwork: Clockwork) -> None:
    """The run before is asked to cancel itself, one nobody has claimed is cancelled, and the next starts."""
    first = await clockwork.every_minute(overlap="cancel_previous")
    clockwork.until(first)
    await clockwork.fires()
    await clockwork.world.claim(clockwork.runs()[0].id)
    for number in (1, 2):
        clockwork.until(first + number * MINUTE_MS)
        assert await clockwork.fires() == (1, 0)
    running, queued, last = clockwork.runs()
    assert (running.status, running.stop) == ("running", "cancel")
    assert (running.cancel_forced_at or 0) > clockwork.world.now()
    assert (queued.status, queued.reason) == ("cancelled", "overtaken")
    assert last.status == "queued"


@pytest.mark.parametrize(("catch_up", "minutes"), [(0, [4]), (2, [2, 3, 4])])
async def test_catch_up(clockwork: Clockwork, catch_up: int, minutes: list[int]) -> None:
    """Of the occurrences nobody was up for the latest few start, in order, with the one that is on time."""
    first = await clockwork.every_minute(overlap="allow", catchUp=catch_up)
    clockwork.world.advance(first + 4 * MINUTE_MS - clockwork.world.now())
    assert await clockwork.fires() == (len(minutes), 5 - len(minutes))
    found = clockwork.runs()
    assert [run.scheduled_for for run in found] == [first + minute * MINUTE_MS for minute in minutes]
    ranks = [clockwork.world.entry(run.id).rank for run in found]
    assert ranks == sorted(ranks)
    assert clockwork.next_at("minutely") == first + 5 * MINUTE_MS


async def test_c66_twelve_thousand_missed_occurrences_poisoned_a_schedule(clockwork: Clockwork) -> None:
    """C66: a schedule that missed twelve thousand goes on at once, and holds up no other."""
    first = await clockwork.every_minute(catchUp=1)
    await clockwork.describes(
        minutely={"everyMs": MINUTE_MS}, cron={"cron": "* * * * *"}, other={"everyMs": HOUR_MS, "workflow": "other"}
    )
    clockwork.versions["other"] = "7"
    clockwork.world.advance(12_000 * MINUTE_MS)
    before = clockwork.world.store.statements
    await clockwork.fires()
    assert clockwork.world.store.statements - before < 60
    for name in ("minutely", "cron", "other"):
        assert clockwork.next_at(name) > clockwork.world.now()
        assert len(clockwork.runs(name)) == 1
    clockwork.until(first + 12_001 * MINUTE_MS)
    started, skipped = await clockwork.fires()
    assert started + skipped >= 1


async def test_jitter_delays_the_run_only(clockwork: Clockwork) -> None:
    """A jittered run is due later than it is for, by as much wherever it is computed."""
    first = await clockwork.every_minute(jitterMs=DAY_MS)
    clockwork.until(first)
    await clockwork.fires()
    [run] = clockwork.runs()
    assert run.scheduled_for == first
    assert run.due_at is not None
    assert first < run.due_at <= first + DAY_MS
    assert (run.status, run.wake_at) == ("scheduled", run.due_at)


async def test_broken_schedules_hold_up_no_other(clockwork: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    """A zone this machine does not know, or a workflow nobody served, is told once, and the rest goes on."""
    first = await clockwork.every_minute()
    await clockwork.describes(
        minutely={"everyMs": MINUTE_MS},
        unserved={"everyMs": MINUTE_MS, "workflow": "nobody"},
        astray={"cron": "* * * * *"},
    )
    clockwork.set("astray", timezone="Mars/Olympus")
    clockwork.until(first + MINUTE_MS)
    await clockwork.fires()
    assert len(clockwork.runs("minutely")) == 1
    assert clockwork.row("minutely").problem is None
    assert clockwork.row("astray").problem == "There is no time zone 'Mars/Olympus' on this machine."
    assert clockwork.row("unserved").problem == "Nobody has served the workflow 'nobody', so its version is not known."
    told = [record for record in caplog.records if record.message == "schedule cannot start"]
    assert len(told) == 2
    assert "dueInMs" in await clockwork.daemon.once()
    clockwork.until(first + 2 * MINUTE_MS)
    await clockwork.fires()
    assert len([record for record in caplog.records if record.message == "schedule cannot start"]) == 2


async def test_a_broken_schedule_heals(clockwork: Clockwork) -> None:
    """Once somebody serves the workflow, what was missed meanwhile is made up for as after any other gap."""
    await clockwork.describes(unserved={"everyMs": MINUTE_MS, "workflow": "late"})
    first = clockwork.next_at("unserved")
    clockwork.until(first)
    assert await clockwork.fires() == (0, 0)
    clockwork.versions["late"] = "3"
    clockwork.until(first + 20_000)
    assert await clockwork.fires() == (1, 0)
    assert [(run.version, run.scheduled_for) for run in clockwork.runs("unserved")] == [("3", first)]
    assert clockwork.row("unserved").problem is None


async def test_what_nobody_thought_of_is_set_aside(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while a schedule is fired is its own affair: it is looked at again later, not at once for ever."""
    first = await clockwork.every_minute()
    await clockwork.describes(minutely={"everyMs": MINUTE_MS}, other={"everyMs": MINUTE_MS, "version": "2"})
    clockwork.until(first + 1_000)

    async def fails(_namespace: str, _workflow: str) -> str | None:
        raise RuntimeError

    monkeypatch.setattr(clockwork.daemon, "_default_version", fails)
    assert await clockwork.fires() == (1, 0)
    assert clockwork.row("minutely").problem == "It could not be started: RuntimeError."
    assert (clockwork.row("minutely").wake_at or 0) > clockwork.world.now() + 5_000
    assert [run.version for run in clockwork.runs("other")] == ["2"]
    assert await clockwork.fires() == (0, 0)


async def test_a_wave_of_schedules(clockwork: Clockwork) -> None:
    """However many schedules are due at once, one tick fires them all."""
    await clockwork.describes(**{f"s{number}": {"everyMs": MINUTE_MS} for number in range(120)})
    clockwork.world.elapse(MINUTE_MS)
    assert await clockwork.fires() == (120, 0)


async def test_exactly_one_firing_over_two_dispatchers(pair: Pair) -> None:
    """While one dispatcher fires a schedule another leaves it out; afterwards it is not due any more."""
    one, other = Clockwork(pair.one), Clockwork(pair.other)
    one.until(await one.every_minute())
    due = await pair.one.store.transact(one.due)
    firing = await pair.begin(one.fire(due[0]))
    counts = await other.daemon.once()
    assert (counts["started"], counts["dueInMs"]) == (0, 20)
    pair.commit()
    assert await firing
    assert await other.fires() == (0, 0)
    assert len(one.runs()) == 1


async def test_a_wave_over_two_dispatchers(pair: Pair) -> None:
    """Two dispatchers share a wave: each occurrence starts one run."""
    one, other = Clockwork(pair.one), Clockwork(pair.other)
    await one.describes(**{f"s{number}": {"everyMs": MINUTE_MS, "overlap": "allow"} for number in range(30)})
    pair.one.elapse(2 * MINUTE_MS + 1)
    ticks = await asyncio.gather(*(clockwork.daemon.once() for clockwork in (one, other) for _ in range(3)))
    assert sum(tick["started"] for tick in ticks) == 60
    assert {len(one.runs(f"s{number}")) for number in range(30)} == {2}


@pytest.mark.parametrize("overlap", ["skip", "allow", "cancel_previous"])
async def test_every_occurrence_is_accounted_for(clockwork: Clockwork, overlap: str) -> None:
    """Whatever time passes and whoever looks, each occurrence has started one run or is counted as skipped."""
    chance = random.Random(overlap)
    other = Clockwork(clockwork.world)
    first = await clockwork.every_minute(overlap=overlap, catchUp=3)
    started = skipped = 0
    for _ in range(40):
        clockwork.world.elapse(chance.choice([0, 1_000, MINUTE_MS, 90_000, 11 * MINUTE_MS]))
        ticks = [looking.fires() for looking in (clockwork, other)[: chance.randint(1, 2)]]
        for one, skips in await asyncio.gather(*ticks):
            started, skipped = started + one, skipped + skips
        live = [run for run in clockwork.runs() if run.finished_at is None]
        if live and chance.random() < 0.4:
            await clockwork.world.cancel(live[0].id)
    one, skips = await clockwork.fires()
    started, skipped = started + one, skipped + skips
    moments = [run.scheduled_for or 0 for run in clockwork.runs()]
    assert len(set(moments)) == len(moments) == started
    assert {(moment - first) % MINUTE_MS for moment in moments} == {0}
    assert started + skipped == (clockwork.next_at("minutely") - first) // MINUTE_MS
    assert clockwork.row("minutely").skipped == skipped
    assert clockwork.next_at("minutely") > clockwork.world.now()


async def test_only_an_earlier_moment_wakes_the_daemon(clockwork: Clockwork) -> None:
    """A write announces its moment; later ones than the alarm is set for are no reason to look."""
    first = await clockwork.every_minute()
    await clockwork.daemon.once()
    assert clockwork.daemon.hears(str(first - 1))
    assert not clockwork.daemon.hears(str(first))


async def test_an_occurrence_is_on_time(store: Store) -> None:
    """On an idle dispatcher a run is queued within a tenth of a second of its time, without a look in between."""
    clockwork = Clockwork(World(store))
    loop = Loop(clockwork.daemon, 60_000)
    store.listen("schedule", lambda moment: loop.wake() if clockwork.daemon.hears(moment) else None)
    queued = asyncio.Event()
    store.listen("queued", lambda _: queued.set())
    loop.start()
    try:
        await clockwork.describes(minutely={"everyMs": 1_000})
        async with asyncio.timeout(30):
            await queued.wait()
    finally:
        await loop.stop()
    run = clockwork.runs()[0]
    assert run.queued_at is not None
    assert run.due_at is not None
    assert 0 <= run.queued_at - run.due_at < 2_000, "a busy machine may be late, a poll of a minute would be later"


def test_names() -> None:
    """The daemon has the name its last tick is shown under."""
    assert FireSchedules.name == "fireSchedules"


async def test_a_clock_that_was_ahead(clockwork: Clockwork) -> None:
    """After a step back a schedule waits neither for an occurrence of the time ahead nor to be looked at then."""
    first = await clockwork.every_minute(overlap="allow")
    clockwork.world.elapse(HOUR_MS)
    assert (await clockwork.fires())[0] == 2
    clockwork.set("minutely", wake_at=clockwork.world.now() + HOUR_MS)
    clockwork.world.advance(-HOUR_MS)
    await clockwork.world.recovers()
    assert await clockwork.fires() == (0, 0)
    assert clockwork.next_at("minutely") == first
    clockwork.until(first)
    assert await clockwork.fires() == (1, 0)
    assert clockwork.runs()[0].scheduled_for == first
