"""A worker as users deploy it, `pointsman worker app:worker`, polling a real dispatcher on each database."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dispatcher.store import Store, invariants
from tests.acceptance.worker.processes import WorkerProcess, execute_key, moves, reasons
from tests.faults import rig

Start = Callable[..., WorkerProcess]

IDLE = 1.2


@pytest.fixture
def client(database_url: str) -> Iterator[httpx.Client]:
    """A dispatcher on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        yield client
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


@pytest.fixture
def start(client: httpx.Client, tmp_path: Path) -> Iterator[Start]:
    """Starts workers, which end with the test."""
    started: list[WorkerProcess] = []
    key = execute_key(client)

    def starting(who: str, **env: str) -> WorkerProcess:
        url = str(client.base_url).rstrip("/")
        worker = WorkerProcess(tmp_path, who, POINTSMAN_URL=url, POINTSMAN_API_KEY=key, **env)
        started.append(worker.start())
        return worker

    yield starting
    for worker in started:
        worker.stop()


def test_runs_are_polled_and_completed(client: httpx.Client, start: Start) -> None:
    """Runs of the version served and of one it accepts complete, without an endpoint anywhere."""
    start("A")
    runs = [rig.submit(client, "quick", input=None, version=version) for version in ("1", "2")]

    assert [rig.ended(client, run_id)["result"] for run_id in runs] == [["A"], ["A"]]
    assert moves(client, runs[0]) == ["queued", "running", "completed"]


def test_a_killed_worker_is_recovered(client: httpx.Client, start: Start) -> None:
    """kill -9 in the middle of a task: recovery redelivers, another worker polls the run and completes it."""
    a = start("A")
    run_id = rig.submit(client, "gated", input=None, version="1")
    a.began(run_id, "hold:A")
    a.send(signal.SIGKILL)
    b = start("B")
    b.began(run_id, "hold:B")
    b.gate.touch()

    run = rig.ended(client, run_id)
    assert run["result"] == ["B", "B"]
    assert moves(client, run_id) == ["queued", "running", "queued", "running", "completed"]


@pytest.mark.parametrize(("workflow", "body"), [("gated", "hold"), ("blocked", "block")])
def test_c22_a_woken_worker_starts_no_body(client: httpx.Client, start: Start, workflow: str, body: str) -> None:
    """I15: stopped past the idle timeout and woken, a worker writes nothing, starts no body, and goes on serving."""
    a = start("A", PLACES="1")
    run_id = rig.submit(client, workflow, input=None, version="1")
    a.began(run_id, f"{body}:A")
    a.send(signal.SIGSTOP)
    b = start("B")
    b.began(run_id, f"{body}:B")
    b.gate.touch()
    run = rig.ended(client, run_id)
    b.stop()
    a.send(signal.SIGCONT)
    again = rig.ended(client, rig.submit(client, "quick", input=None, version="1"))

    assert run["result"] == ["B", "B"]
    assert again["result"] == ["A"]
    assert "after:A" not in a.bodies(run_id)
    assert "Traceback" not in a.output.read_text()
    assert moves(client, run_id) == ["queued", "running", "queued", "running", "completed"]


def test_c15_a_drain_refreshes_and_stops_at_the_boundary(client: httpx.Client, start: Start) -> None:
    """C45: on SIGTERM the task under way ends and is recorded, claimed all the while; the rest goes on elsewhere."""
    a = start("A")
    run_id = rig.submit(client, "gated", input=None, version="1")
    a.began(run_id, "hold:A")
    a.send(signal.SIGTERM)
    rig.until(lambda: "draining" in a.output.read_text(), what="the drain")
    threading.Event().wait(IDLE * 1.5)
    assert moves(client, run_id) == ["queued", "running"]
    a.gate.touch()
    code, _ = a.ended()
    start("B")
    run = rig.ended(client, run_id)

    assert code == 0
    assert run["result"] == ["A", "B"]
    assert a.bodies(run_id) == ["hold:A", "held:A", "after:B"]
    assert reasons(client, run_id)[2] == "drain"
    assert run["attempt"] == 1


def test_a_drain_ends_a_long_poll(client: httpx.Client, start: Start) -> None:
    """Nothing held: a worker that waits in a poll of 20 seconds ends at once, and a run submitted then is not lost."""
    a = start("A", DRAIN="20")
    rig.until(lambda: client.get("/metrics").status_code, what="the dispatcher")
    a.send(signal.SIGTERM)
    run_id = rig.submit(client, "quick", input=None, version="1")
    code, seconds = a.ended()
    start("B")
    run = rig.ended(client, run_id)

    assert code == 0
    assert seconds < 10
    assert run["status"] == "completed"


def test_an_async_body_that_outlasts_the_drain_is_cancelled_and_its_run_released(
    client: httpx.Client, start: Start
) -> None:
    """Nobody opens the gate: within the drain's time the body is cancelled, awaited, and the run given back."""
    a = start("A", DRAIN="2")
    run_id = rig.submit(client, "gated", input=None, version="1")
    a.began(run_id, "hold:A")
    a.send(signal.SIGTERM)
    code, seconds = a.ended()

    assert code == 0
    assert seconds < 10
    assert a.bodies(run_id) == ["hold:A", "cancelled:A"]
    assert reasons(client, run_id)[2:] == ["drain"]


def test_a_thread_that_outlasts_the_drain_is_left_to_recovery(client: httpx.Client, start: Start) -> None:
    """A `def` body cannot be ended: the process says nothing, ends in time with 1, and recovery redelivers the run."""
    a = start("A", DRAIN="2")
    run_id = rig.submit(client, "blocked", input=None, version="1")
    a.began(run_id, "block:A")
    a.send(signal.SIGTERM)
    code, seconds = a.ended()
    rig.until(lambda: len(moves(client, run_id)) > 2, what="recovery")

    assert code == 1
    assert seconds < 10
    assert moves(client, run_id) == ["queued", "running", "queued"]
    assert reasons(client, run_id)[2] == "claim_stale"


def test_a_blocked_loop_is_refreshed_and_does_not_outlast_the_drain(client: httpx.Client, start: Start) -> None:
    """An `async def` body that never awaits holds the loop: its claim is kept until the process ends, in time."""
    a = start("A", DRAIN="2")
    run_id = rig.submit(client, "spinning", input=None, version="1")
    a.began(run_id, "spin:A")
    threading.Event().wait(IDLE * 1.5)
    assert moves(client, run_id) == ["queued", "running"]
    a.send(signal.SIGTERM)
    code, seconds = a.ended()

    assert code == 1
    assert seconds < 10
    rig.until(lambda: reasons(client, run_id)[2:] == ["claim_stale"], what="recovery")


def test_a_second_signal_ends_at_once(client: httpx.Client, start: Start) -> None:
    """Whoever asks twice does not wait for the drain."""
    a = start("A")
    run_id = rig.submit(client, "blocked", input=None, version="1")
    a.began(run_id, "block:A")
    a.send(signal.SIGTERM)
    rig.until(lambda: "draining" in a.output.read_text(), what="the drain")
    a.send(signal.SIGINT)
    code, seconds = a.ended()

    assert code == -signal.SIGINT
    assert seconds < 10
