"""endpoint_sdk.refresher: cadence, verdicts, and an end that leaves nothing behind."""

import threading
from collections.abc import Callable

import msgspec
import pytest

from endpoint_sdk import refresher
from endpoint_sdk.transport import Answer, AnswerTimeout
from endpoint_sdk.wire import clock, messages
from tests.unit.sdk.dispatcher_double import FakeClock

URL = "http://dispatcher.test"


class Server:
    """Answers refreshes with what the test says is held and lost, or with a fault."""

    def __init__(self) -> None:
        self.bodies: list[list[dict[str, object]]] = []
        self.lost: set[tuple[str, int]] = set()
        self.stop: messages.Stop | None = None
        self.fault: object = None
        self.closed = threading.Event()
        self.asked = threading.Event()
        self.answering = threading.Event()
        self.answering.set()

    def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        *,
        connect_timeout: float,
        timeout: float,
        max_body: int,
    ) -> Answer:
        claims = msgspec.json.decode(body)["claims"]
        self.bodies.append(claims)
        self.asked.set()
        self.answering.wait(5)
        if isinstance(self.fault, Exception):
            raise self.fault
        if isinstance(self.fault, Answer):
            return self.fault
        fences = [(claim["runId"], claim["expectedRevision"]) for claim in claims]
        held = [messages.Held(*fence, self.stop) for fence in fences if fence not in self.lost]
        lost = [messages.Lost(*fence, "revision_conflict") for fence in fences if fence in self.lost]
        return Answer(200, {}, msgspec.json.encode(messages.Refreshed(held, lost)))

    def close(self) -> None:
        self.closed.set()
        self.answering.set()


class Fixture:
    """A refresher on a fake clock, without its thread: tests call once()."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = Server()
        self.refresher = _Threadless(Server, now=self.clock.now, jitter=lambda low, high: 1.0)
        self.lost: list[tuple[str, str]] = []
        self.stops: list[str] = []

    def hold(
        self, run_id: str, revision: int = 5, interval: float = 30.0, url: str = URL, age: float = 0
    ) -> refresher.Hold:
        claim = messages.HeldClaim(run_id, revision, "clm_" + run_id, "pmw")
        hold = refresher.Hold(
            url,
            claim,
            interval,
            self.clock.now() - age,
            lambda code: self.lost.append((run_id, code)),
            self.stops.append,
        )
        self.refresher.hold(hold)
        return hold

    def once(self) -> int:
        return self.refresher.once(self.server)


class _Threadless(refresher.Refresher):
    """A refresher that never starts its thread: nothing happens but what a test does."""

    def _start(self) -> None:
        self._worker = None


@pytest.fixture
def fixture() -> "Fixture":
    return Fixture()


def grant(idle_ms: int = 90_000, interval_ms: int = 30_000) -> messages.Grant:
    run = messages.GrantedRun("run_1", "default", "order", "1", 1, msgspec.Raw(b"1"), clock.to_wire(0))
    return messages.Grant(run, 5, "clm_1", "pmw", idle_ms, interval_ms, clock.to_wire(0))


@pytest.mark.parametrize(("age", "left"), [(0, 30), (20, 10), (60, -30)])
def test_a_claim_counts_from_its_sending(fixture: Fixture, age: float, left: float) -> None:
    """One that came late, from a poll that waited or to a process that stood still, is refreshed so much sooner."""
    hold = fixture.hold("run_1", age=age)

    assert hold.due == fixture.clock.now() + left
    fixture.refresher.close()


def test_all_claims_share_one_call(fixture: Fixture) -> None:
    """However many claims a process holds, a refresh is one request."""
    for number in range(20):
        fixture.hold(f"run_{number}")

    assert fixture.once() == 20
    assert [len(body) for body in fixture.server.bodies] == [20]
    fixture.refresher.close()


def test_a_refresh_names_the_task_a_run_is_in(fixture: Fixture) -> None:
    """C20: what each claim is in goes along, as it is at that moment; nothing is said of one that is in no task."""
    inside: list[str | None] = [None]
    fixture.hold("run_1").step = lambda: inside[0]
    fixture.once()
    inside[0] = "transcode"
    fixture.once()

    assert [body[0].get("step") for body in fixture.server.bodies] == [None, "transcode"]
    assert "step" not in fixture.server.bodies[0][0]
    fixture.refresher.close()


def test_each_dispatcher_gets_its_own_claims(fixture: Fixture) -> None:
    """Claims of two dispatchers are never mixed in one call."""
    fixture.hold("run_1")
    fixture.hold("run_2", url="http://other.test")

    fixture.once()
    assert sorted(len(body) for body in fixture.server.bodies) == [1, 1]
    fixture.refresher.close()


@pytest.mark.parametrize(
    ("idle_ms", "granted_ms", "own_ms", "remaining", "seconds"),
    [
        (90_000, 30_000, 30_000, None, 30.0),
        (90_000, 5_000, 30_000, None, 5.0),
        (90_000, 30_000, 7_000, None, 7.0),
        (3_000, 30_000, 30_000, None, 1.0),
        (90_000, 30_000, 30_000, 9.0, 3.0),
        (90_000, 30_000, 30_000, 0.0, 0.1),
    ],
)
def test_the_interval_is_the_smallest_bound(
    idle_ms: int, granted_ms: int, own_ms: int, remaining: float | None, seconds: float
) -> None:
    """min(claimRefreshIntervalMs, own bound, idle timeout / 3, remaining time / 3)."""
    assert refresher.interval(grant(idle_ms, granted_ms), own_ms, remaining) == pytest.approx(seconds)


def test_the_first_refresh_comes_after_one_interval(fixture: Fixture) -> None:
    """Nothing is sent at once: the claim itself was a sign of life."""
    hold = fixture.hold("run_1")

    assert hold.due == fixture.clock.now() + 30
    assert fixture.server.bodies == []
    fixture.refresher.close()


def test_jitter_is_ten_percent_either_way() -> None:
    """The interval is spread, so that a fleet does not refresh in step."""
    asked: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    clock_ = FakeClock()
    one = _Threadless(Server, now=clock_.now, jitter=jitter)
    claim = messages.HeldClaim("run_1", 5, "clm", "pmw")
    hold = refresher.Hold(URL, claim, 30, clock_.now(), lambda _: None, lambda _: None)
    one.hold(hold)

    assert asked == [(0.9, 1.1)]
    assert hold.due == pytest.approx(clock_.now() + 33)
    one.close()


def test_an_accepted_write_counts_as_a_refresh(fixture: Fixture) -> None:
    """The next refresh is one interval after the last accepted call was sent."""
    hold = fixture.hold("run_1")
    fixture.clock.pass_(20)

    hold.accepted(fixture.clock.now())

    assert hold.due == fixture.clock.now() + 30
    assert hold.sent_at == fixture.clock.now()
    fixture.refresher.close()


def test_a_refresh_counts_from_its_sending(fixture: Fixture) -> None:
    """A slow answer does not make the claim look younger than it is."""
    hold = fixture.hold("run_1")
    fixture.clock.pass_(30)
    sent_at = fixture.clock.now()
    fixture.refresher.once(_Hooked(fixture.server, lambda: fixture.clock.pass_(8)))

    assert hold.sent_at == sent_at
    assert hold.due == sent_at + 30
    fixture.refresher.close()


class _Hooked:
    """A transport during whose calls *hook* happens."""

    def __init__(self, server: Server, hook: Callable[[], object]) -> None:
        self._server, self._hook = server, hook

    def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        *,
        connect_timeout: float,
        timeout: float,
        max_body: int,
    ) -> Answer:
        self._hook()
        return self._server.request(
            method, url, headers, body, connect_timeout=connect_timeout, timeout=timeout, max_body=max_body
        )

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "fault",
    [
        AnswerTimeout("late"),
        OSError("anything"),
        Answer(500, {}, b""),
        Answer(429, {}, b""),
        Answer(200, {}, b"{"),
        Answer(409, {}, b'{"error": {"code": "revision_conflict", "message": "m"}}'),
        Answer(404, {}, b'{"error": {"code": "run_not_found", "message": "m"}}'),
        Answer(200, {}, b'{"held": [], "lost": []}'),
    ],
)
def test_silence_and_every_other_status_is_unknown(fixture: Fixture, fault: object) -> None:
    """C16: contention is no loss; the refresher keeps trying, sooner than one interval, and the run goes on."""
    hold = fixture.hold("run_1")
    fixture.server.fault = fault
    for _ in range(10):
        fixture.clock.pass_(8)
        assert fixture.once() == 0
        assert fixture.clock.now() < hold.due < fixture.clock.now() + 30
    fixture.server.fault = None

    assert fixture.once() == 1
    assert fixture.lost == []
    fixture.refresher.close()


def test_a_lost_claim_is_reported_once_and_refreshed_no_more(fixture: Fixture) -> None:
    """Only the run named as lost hears it; the others stay held."""
    fixture.hold("run_1")
    fixture.hold("run_2")
    fixture.server.lost = {("run_1", 5)}

    assert fixture.once() == 1
    assert fixture.once() == 1
    assert fixture.lost == [("run_1", "revision_conflict")]
    assert [claim["runId"] for claim in fixture.server.bodies[-1]] == ["run_2"]
    fixture.refresher.close()


def test_a_late_verdict_about_another_revision_is_ignored(fixture: Fixture) -> None:
    """The run was claimed again here meanwhile: the old revision's loss does not touch the new claim."""
    old = fixture.hold("run_1", revision=5)
    fixture.server.lost = {("run_1", 5)}
    again: list[refresher.Hold] = []

    def claimed_again() -> None:
        fixture.refresher.drop(old)
        again.append(fixture.hold("run_1", revision=7))

    fixture.refresher.once(_Hooked(fixture.server, claimed_again))

    assert fixture.lost == []
    assert fixture.once() == 1
    fixture.refresher.close()


def test_a_verdict_after_the_claim_was_dropped_is_ignored(fixture: Fixture) -> None:
    """A loss under way when the run finished is nobody's business."""
    hold = fixture.hold("run_1")
    fixture.server.lost = {("run_1", 5)}

    fixture.refresher.once(_Hooked(fixture.server, lambda: fixture.refresher.drop(hold)))

    assert fixture.lost == []
    fixture.refresher.close()


def test_a_standing_stop_is_passed_on(fixture: Fixture) -> None:
    """An operator's pause reaches an executor that only refreshes."""
    fixture.hold("run_1")
    fixture.server.stop = "pause"
    fixture.once()

    assert fixture.stops == ["pause"]
    fixture.refresher.close()


def test_the_thread_refreshes_by_itself_and_ends_when_asked() -> None:
    """With real time, a short interval leads to a call, and close leaves no thread behind."""
    server = Server()
    one = refresher.Refresher(lambda: server)
    claim = messages.HeldClaim("run_1", 5, "clm", "pmw")
    one.hold(refresher.Hold(URL, claim, 0.01, 0.0, lambda _: None, lambda _: None))

    assert server.asked.wait(5)
    assert one.close()
    assert server.closed.is_set()
    assert "pointsman-refresher" not in {thread.name for thread in threading.enumerate()}


def test_closing_cuts_off_a_call_under_way() -> None:
    """A hanging dispatcher does not hold the handler's return up, and its late verdict is ignored."""
    server = Server()
    server.answering.clear()
    server.lost = {("run_1", 5)}
    lost: list[str] = []
    one = refresher.Refresher(lambda: server)
    claim = messages.HeldClaim("run_1", 5, "clm", "pmw")
    one.hold(refresher.Hold(URL, claim, 0.01, 0.0, lost.append, lambda _: None))
    assert server.asked.wait(5)

    assert one.close(1.0)
    assert lost == []


def test_holding_after_a_close_starts_anew() -> None:
    """The next Lambda invocation gets its own thread and its own connection."""
    servers: list[Server] = []

    def connect() -> Server:
        servers.append(Server())
        return servers[-1]

    one = refresher.Refresher(connect)
    for run_id in ("run_1", "run_2"):
        claim = messages.HeldClaim(run_id, 5, "clm", "pmw")
        hold = refresher.Hold(URL, claim, 0.01, 0.0, lambda _: None, lambda _: None)
        one.hold(hold)
        assert servers[-1].asked.wait(5)
        one.drop(hold)
        assert one.close()

    assert len(servers) == 2


def test_closing_twice_or_before_any_claim_is_fine() -> None:
    """There may be nothing to end."""
    one = refresher.Refresher(Server)

    assert one.close()
    assert one.close()
