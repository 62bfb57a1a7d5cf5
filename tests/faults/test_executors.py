"""Executors that stop, wake, die and drain, against a dispatcher on real sockets."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher.store import Store, invariants
from tests.faults import rig

APP = Path(__file__).with_name("gate_app.py")
IDLE = 1.2


class Stage:
    """A dispatcher with two endpoint processes, A tried before B, and the gate their tasks wait at."""

    def __init__(self, client: httpx.Client, tmp_path: Path) -> None:
        self.client = client
        self.gate = tmp_path / "gate"
        self.log = tmp_path / "bodies.log"
        self.proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        self.b = self._endpoint("B")
        self.a = self._endpoint("A")  # the newest endpoint is preferred

    def _endpoint(self, who: str) -> rig.EndpointProcess:
        process = rig.EndpointProcess(APP, self.proxy.url, self.log, GATE=str(self.gate), WHO=who).start()
        rig.register(self.client, process, name=who)
        return process

    def open(self) -> None:
        self.gate.touch()

    def started(self, run_id: str, line: str) -> None:
        rig.until(lambda: line in self.a.bodies(run_id), what=f"{line} of {run_id}")

    def claimed_by_other(self, run_id: str, revision: int) -> dict[str, Any]:
        found: dict[str, Any] = rig.until(
            lambda: (run := rig.run_of(self.client, run_id))["revision"] >= revision and run, what="another claim"
        )
        return found

    def moves(self, run_id: str) -> list[str]:
        items = self.client.get(f"/v1/runs/{run_id}/transitions").json()["items"]
        return [item["to"] for item in items]

    def stop(self) -> None:
        self.a.stop()
        self.b.stop()
        self.proxy.stop()


@pytest.fixture
def stage(database_url: str, tmp_path: Path) -> Iterator[Stage]:
    """The stage on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        stage = Stage(client, tmp_path)
        yield stage
        stage.stop()
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


@pytest.mark.parametrize("workflow", ["gated", "blocked"])
def test_c22_a_woken_executor_is_fenced(stage: Stage, workflow: str) -> None:
    """An executor stopped past the idle timeout and woken writes nothing and starts no further body."""
    run_id = rig.submit(stage.client, workflow)
    first = "hold:A" if workflow == "gated" else "block:A"
    stage.started(run_id, first)
    stage.a.send(signal.SIGSTOP)
    stage.claimed_by_other(run_id, 3)
    stage.started(run_id, first.replace("A", "B"))
    stage.open()
    run = rig.ended(stage.client, run_id)
    stage.a.send(signal.SIGCONT)

    assert run["result"] == ["B", "B"]
    assert stage.moves(run_id) == ["queued", "running", "queued", "running", "completed"]
    again = rig.ended(stage.client, rig.submit(stage.client, workflow))
    assert again["status"] == "completed"
    assert "after:A" not in stage.a.bodies(run_id)
    assert "Traceback" not in stage.a.output.read_text()


def test_c10_loss_cancels_the_handler_at_its_next_await(stage: Stage) -> None:
    """The old owner's async body is cancelled once it learns of its loss; one result is recorded."""
    run_id = rig.submit(stage.client, "gated")
    stage.started(run_id, "hold:A")
    stage.a.send(signal.SIGSTOP)
    stage.claimed_by_other(run_id, 3)
    stage.a.send(signal.SIGCONT)
    stage.started(run_id, "cancelled:A")
    stage.open()
    run = rig.ended(stage.client, run_id)

    assert run["result"] == ["B", "B"]
    assert stage.a.bodies(run_id).count("held:B") == 1
    assert "Traceback" not in stage.a.output.read_text()


def test_c19_a_short_stop_is_not_a_loss(stage: Stage) -> None:
    """An executor stopped for less than the idle timeout keeps its claim."""
    run_id = rig.submit(stage.client, "gated")
    stage.started(run_id, "hold:A")
    stage.a.send(signal.SIGSTOP)
    threading.Event().wait(IDLE / 2)
    stage.a.send(signal.SIGCONT)
    stage.open()
    run = rig.ended(stage.client, run_id)

    assert run["result"] == ["A", "A"]
    assert run["revision"] == 2


def test_c16_unanswered_refreshes_are_not_a_loss(stage: Stage) -> None:
    """Refreshes that get no answer for most of the idle timeout, then one that does: the run goes on."""
    run_id = rig.submit(stage.client, "gated")
    stage.started(run_id, "hold:A")
    stage.proxy.refresh = "lose_request"
    threading.Event().wait(IDLE * 0.6)
    stage.proxy.refresh = "pass"
    threading.Event().wait(IDLE)
    stage.open()
    run = rig.ended(stage.client, run_id)

    assert run["result"] == ["A", "A"]
    assert run["revision"] == 2


def test_c15_drain_keeps_refreshing(stage: Stage) -> None:
    """After SIGTERM an endpoint holds its claim for longer than the idle timeout and still finishes its task."""
    run_id = rig.submit(stage.client, "gated")
    stage.started(run_id, "hold:A")
    stage.a.send(signal.SIGTERM)
    threading.Event().wait(IDLE * 1.5)
    assert stage.moves(run_id) == ["queued", "running"]
    stage.open()
    run = rig.ended(stage.client, run_id)

    assert run["status"] == "completed"
    assert run["result"][0] == "A"
    assert stage.a.bodies(run_id).count("held:A") == 1
    assert run["kills"] == 0


def test_c20_a_body_that_kills_its_process_stalls_the_run(stage: Stage) -> None:
    """Three kills with nothing recorded between stall the run as a crash loop that names the last record."""
    run_id = rig.submit(stage.client, "deadly")
    done = threading.Event()

    def keep_up(endpoint: rig.EndpointProcess) -> None:
        while not done.is_set():
            assert endpoint.process is not None
            if endpoint.process.poll() is not None:
                endpoint.start()
            time.sleep(0.02)

    keepers = [threading.Thread(target=keep_up, args=(endpoint,)) for endpoint in (stage.a, stage.b)]
    for keeper in keepers:
        keeper.start()
    try:
        run = rig.ended(stage.client, run_id, 40)
    finally:
        done.set()
        for keeper in keepers:
            keeper.join(20)

    assert (run["status"], run["reason"]) == ("stalled", "crash_loop")
    names = [line.split(":")[0] for line in stage.a.bodies(run_id)]
    assert names == ["after", "die", "die", "die"]
    why = stage.client.get(f"/v1/runs/{run_id}/why").json()
    assert "died 3 times" in why["sentence"]
    assert "after" in why["sentence"]
    assert why["next"] == f"pointsman run requeue {run_id}"


def test_a_delivery_sent_again_after_the_end_is_settled(database_url: str, tmp_path: Path) -> None:
    """C07, C13: a captured push sent twice while the run is held, and after its end, executes nothing."""
    with rig.dispatcher(database_url) as client:
        gate = tmp_path / "gate"
        process = rig.EndpointProcess(
            APP, str(client.base_url).rstrip("/"), tmp_path / "bodies.log", GATE=str(gate), WHO="A"
        ).start()
        proxy = rig.FaultProxy(process.url.rstrip("/"))
        try:
            body = {"name": "A", "url": f"{proxy.url}/", "secret": rig.SECRET, "allowHttp": True}
            assert client.post("/v1/endpoints", json=body).json()["test"]["ok"]
            run_id = rig.submit(client, "gated")
            rig.until(lambda: "hold:A" in process.bodies(run_id), what="the hold")
            push = next(message for message in proxy.seen if run_id.encode() in message[1])
            during = _send_again(proxy.url, push)
            gate.touch()
            rig.ended(client, run_id)
            afterwards = _send_again(proxy.url, push)
        finally:
            process.stop()
            proxy.stop()

    assert during == afterwards == (200, "settled")
    assert process.bodies(run_id) == ["hold:A", "held:A", "after:A"]


def _send_again(url: str, push: tuple[bytes, bytes]) -> tuple[int, str]:
    lines = push[0].decode().split("\r\n")[1:-2]
    headers = dict(line.split(": ", 1) for line in lines)
    answer = httpx.post(url + "/", headers=headers, content=push[1])
    return answer.status_code, answer.headers["pointsman-result"]
