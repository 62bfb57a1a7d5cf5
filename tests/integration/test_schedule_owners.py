"""Where schedules come from: the file, the code, the API; and what becomes of one when its owner changes it."""

import asyncio

import msgspec
import pytest

from dispatcher import schedule_checks, schedule_owners
from dispatcher.pollers import Pollers
from dispatcher.schedule_owners import FollowDeclarations
from dispatcher.store import Session
from dispatcher.store import endpoints as endpoint_store
from dispatcher.store.schedules import Definition, Owner
from endpoint_sdk.wire.messages import Schedule, ServedWorkflow
from tests.integration.schedules import MINUTE_MS, Clockwork
from tests.integration.sessions import Pair
from tests.integration.world import ENDPOINT, HOUR_MS, NAMESPACE, World

MINUTELY = Schedule(every_ms=MINUTE_MS)


@pytest.fixture
def clockwork(world: World) -> Clockwork:
    """Schedules of a workflow that is served at version 1."""
    return Clockwork(world)


async def test_the_file_adds_changes_and_removes(clockwork: Clockwork) -> None:
    """The schedules of the file are those of its last reading; one that is unchanged keeps its next occurrence."""
    await clockwork.describes(stays={"everyMs": HOUR_MS}, goes={"everyMs": HOUR_MS})
    before = clockwork.row("stays")
    clockwork.world.elapse(MINUTE_MS)
    await clockwork.describes(stays={"everyMs": HOUR_MS}, comes={"cron": "0 2 * * *"})
    assert clockwork.row("stays") == before
    assert clockwork.find("goes") is None
    assert clockwork.row("comes").owner == "yaml"


async def test_two_dispatchers_start_with_one_file(pair: Pair) -> None:
    """Dispatchers that read the same file at the same time make each schedule once."""
    one, other = Clockwork(pair.one), Clockwork(pair.other)
    described = {f"s{number}": {"everyMs": HOUR_MS} for number in range(5)}
    await asyncio.gather(*(clockwork.describes(**described) for clockwork in (one, other, one, other)))
    assert [one.row(name).owner for name in described] == ["yaml"] * 5


async def test_a_changed_rule_never_fires_the_past(clockwork: Clockwork) -> None:
    """An expression changed while an occurrence was due holds from now on: neither the old nor the new starts late."""
    await clockwork.describes(minutely={"everyMs": MINUTE_MS})
    clockwork.world.elapse(10 * MINUTE_MS)
    await clockwork.describes(minutely={"cron": "* * * * *"})
    assert await clockwork.fires() == (0, 0)
    assert clockwork.next_at("minutely") > clockwork.world.now()
    assert clockwork.next_at("minutely") % MINUTE_MS == 0


async def test_what_else_changes_leaves_what_is_due(clockwork: Clockwork) -> None:
    """A changed input is no new rule: what is due still starts, with the new input."""
    first = await clockwork.every_minute()
    clockwork.until(first)
    await clockwork.every_minute(input={"new": True})
    assert await clockwork.fires() == (1, 0)
    assert clockwork.runs()[0].input == b'{"new":true}'


async def test_a_paused_schedule_stays_paused(clockwork: Clockwork) -> None:
    """Reading the file again resumes nothing, and nothing that is paused fires."""
    first = await clockwork.every_minute()
    clockwork.set("minutely", paused=1)
    await clockwork.every_minute(catchUp=2)
    clockwork.until(first + MINUTE_MS)
    assert await clockwork.fires() == (0, 0)
    assert clockwork.row("minutely").paused


async def test_a_code_schedule_appears_changes_and_goes(clockwork: Clockwork) -> None:
    """A declared schedule fires; a changed one holds from now on; one no longer declared is out of force."""
    await clockwork.declares("1", MINUTELY)
    row = clockwork.row("report")
    assert (row.owner, row.workflow, row.version, row.input, row.active) == ("code", "report", None, b"null", 1)
    clockwork.until(clockwork.next_at("report"))
    assert await clockwork.fires() == (1, 0)
    await clockwork.declares("2", Schedule(cron="0 5 * * *", overlap="allow"))
    changed = clockwork.row("report")
    assert (changed.cron, changed.every_ms, changed.overlap) == ("0 5 * * *", None, "allow")
    assert clockwork.next_at("report") > clockwork.world.now()
    await clockwork.declares("3")
    gone = clockwork.row("report")
    assert (gone.active, gone.next_at, gone.last_run_id) == (0, None, clockwork.runs("report")[0].id)
    assert gone.problem == "Version 3 of the workflow, the latest, declares no schedule."
    await clockwork.declares("4", MINUTELY)
    assert clockwork.row("report").active == 1
    assert clockwork.next_at("report") > clockwork.world.now()


async def test_an_unchanged_declaration_changes_nothing(clockwork: Clockwork) -> None:
    """Looking again at what is declared leaves the schedule as it is, in force or not."""
    await clockwork.declares("1", MINUTELY)
    before = clockwork.row("report")
    clockwork.world.elapse(MINUTE_MS // 2)
    assert await clockwork.following.once() == {"changed": 0}
    assert clockwork.row("report") == before
    await clockwork.declares("2")
    assert await clockwork.following.once() == {"changed": 0}


async def test_the_latest_version_counts(clockwork: Clockwork) -> None:
    """An older version that is still served does not bring its schedule back."""
    await clockwork.declares("2", MINUTELY)
    await clockwork.declarations.put("default", [ServedWorkflow("report", "1", schedule=Schedule(cron="1 1 1 1 *"))])
    assert await clockwork.following.once() == {"changed": 0}
    assert clockwork.row("report").every_ms == MINUTE_MS


async def test_what_nobody_serves_stays(clockwork: Clockwork) -> None:
    """While no version is known the schedule is left as it is."""
    await clockwork.declares("1", MINUTELY)
    clockwork.versions.clear()
    await clockwork.declarations.put("default", [ServedWorkflow("report", "2")])
    assert await clockwork.following.once() == {"changed": 0}
    assert clockwork.row("report").active == 1


async def test_an_endpoint_of_every_namespace(clockwork: Clockwork) -> None:
    """What an endpoint of the file declares is a schedule of the default namespace; a namespace's own comes first."""
    await clockwork.declares("1", MINUTELY, namespace="*")
    assert clockwork.row("report").every_ms == MINUTE_MS
    await clockwork.declares("1", Schedule(every_ms=HOUR_MS))
    assert clockwork.row("report").every_ms == HOUR_MS


async def test_the_file_beats_the_code(clockwork: Clockwork) -> None:
    """A schedule the file describes under the workflow's name is the file's, and the code's again once it left it."""
    await clockwork.declares("1", MINUTELY)
    await clockwork.describes(report={"cron": "0 2 * * *"})
    assert await clockwork.following.once() == {"changed": 0}
    assert (clockwork.row("report").owner, clockwork.row("report").cron) == ("yaml", "0 2 * * *")
    heard: list[str] = []
    clockwork.world.store.listen("declared", heard.append)
    await clockwork.describes()
    assert heard == ["default"]
    assert await clockwork.following.once() == {"changed": 1}
    assert clockwork.row("report").owner == "code"


@pytest.mark.parametrize("broken", [Schedule(), Schedule(cron="* * * * *", every_ms=5_000)])
async def test_a_declaration_without_one_rule(clockwork: Clockwork, broken: Schedule) -> None:
    """Neither rule or both make no schedule, and take out of force the one that was there, which says so."""
    await clockwork.declares("1", broken)
    assert clockwork.find("report") is None
    await clockwork.declares("2", MINUTELY)
    await clockwork.declares("3", broken)
    row = clockwork.row("report")
    assert (row.active, row.next_at) == (0, None)
    assert (row.problem or "").startswith("Version 3 of the workflow declares a schedule with ")


async def test_a_declaration_with_a_broken_expression(clockwork: Clockwork) -> None:
    """An expression the server cannot read is kept with what is wrong with it, and blocks nothing."""
    await clockwork.declares("1", Schedule(cron="every day"))
    row = clockwork.row("report")
    assert (row.next_at, row.active) == (None, 1)
    assert (row.problem or "").startswith("'every day' has 2 fields")
    clockwork.world.elapse(MINUTE_MS)
    assert await clockwork.fires() == (0, 0)
    await clockwork.declares("2", MINUTELY)
    assert clockwork.row("report").problem is None


async def test_a_rule_that_never_comes_round(clockwork: Clockwork) -> None:
    """A schedule without a further occurrence is at rest and says so."""
    await clockwork.declares("1", Schedule(cron="0 0 30 2 *"))
    assert "bad day-of-month" in (clockwork.row("report").problem or "")


async def test_a_declaration_that_fails_holds_up_no_other(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be stored of one workflow is its own affair: the others have their schedules."""
    stored = schedule_owners.put

    def put(session: Session, given: Definition, owner: Owner) -> None:
        if given.name == "broken":
            raise RuntimeError("no")
        stored(session, given, owner)

    monkeypatch.setattr(schedule_owners, "put", put)
    clockwork.versions["broken"] = "1"
    await clockwork.declarations.put(NAMESPACE, [ServedWorkflow("broken", "1", schedule=MINUTELY)])
    await clockwork.declares("1", MINUTELY)
    assert (clockwork.find("broken"), clockwork.row("report").active) == (None, 1)


def test_names() -> None:
    """The daemon has the name its last tick is shown under."""
    assert FollowDeclarations.name == "followDeclarations"


async def test_schedules_nobody_can_serve_are_told(clockwork: Clockwork) -> None:
    """A schedule is doubtful while nobody serves its workflow, at its version if it names one, or it has a problem."""

    def told() -> tuple[int, list[str]]:
        return clockwork.world.store.transact_blocking(schedule_checks.doubtful)

    assert told() == (0, [])
    await clockwork.describes(any={"everyMs": HOUR_MS}, old={"everyMs": HOUR_MS, "version": "1"})
    assert told() == (2, ["any: nobody serves the workflow report.", "old: nobody serves the workflow report 1."])
    await Pollers(clockwork.world.store).saw("default", [("report", "2")])
    assert told() == (2, ["old: nobody serves the workflow report 1."])
    clockwork.world.add_endpoint()
    listed = msgspec.json.encode([ServedWorkflow("report", "2", accepts=["1"])]).decode()
    clockwork.world.store.transact_blocking(
        lambda session: endpoint_store.discovered(session, ENDPOINT, "python/1", "b1", listed)
    )
    assert told() == (2, [])
    clockwork.set("old", problem="It could not be started: X.")
    assert told() == (2, ["old: It could not be started: X."])
