"""Every call of a worker that polls, killed before or after it, its request or its reply lost (I1 to I10)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dispatcher.store import Store, invariants
from tests.acceptance.worker.processes import WorkerProcess, execute_key
from tests.faults import rig

APP = Path(__file__).with_name("worker_app.py")
CALLS = 7  # reserve, pay started, pay, ship, complete, the next poll; one more that never comes


class Scene:
    """A dispatcher, a proxy and a worker process that is started again whenever it is killed."""

    def __init__(self, client: httpx.Client, tmp_path: Path) -> None:
        self.client = client
        self.proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        self.worker = WorkerProcess(
            tmp_path,
            "A",
            APP,
            POINTSMAN_URL=self.proxy.url,
            POINTSMAN_API_KEY=execute_key(client),
        ).start()
        self.proxy.kill = self._kill
        self._restarts: list[threading.Thread] = []
        self._killing = threading.Lock()
        self._stopped = False

    def _kill(self) -> None:
        with self._killing:
            if self._stopped:
                return
            self.worker.stop()
            restart = threading.Thread(target=self.worker.start)
            restart.start()
            self._restarts.append(restart)

    def run_with(self, fault: rig.Fault, at: int) -> None:
        """One run with *fault* at the worker's call number *at* completes, and no body runs more often than it may."""
        self.proxy.arm(lambda number, _path: fault if number == at else "pass")
        run_id = rig.submit(self.client)
        run = rig.ended(self.client, run_id, 40)
        for restart in self._restarts:
            restart.join(20)
        bodies = [line.split(":")[0] for line in self.worker.bodies(run_id)]
        context = f"{fault} at call {at}: {bodies} {run} {self.proxy.calls}"
        assert run["status"] == "completed", context
        assert run["result"][0::2] == ["reserved o1", "shipped o1"], context
        assert run["result"][1] in {"paid o1", "payment unknown"}, context
        assert bodies.count("pay") <= 1, context
        repeated = [name for name in ("reserve", "ship") if bodies.count(name) > 1]
        assert len(repeated) <= (1 if fault == "kill_before" else 0), context

    def stop(self) -> None:
        with self._killing:
            self._stopped = True  # the call that never comes may come now
        for restart in self._restarts:
            restart.join(20)
        self.worker.stop()
        self.proxy.stop()


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    """The scene on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        scene = Scene(client, tmp_path)
        rig.ended(client, rig.submit(client, version="1"))
        yield scene
        scene.stop()
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "kill_before", "kill_after"])
def test_every_call_of_a_worker_survives(scene: Scene, fault: rig.Fault) -> None:
    """Whatever call the fault hits, a poll included, the run completes and recorded tasks never run again."""
    for at in range(CALLS):
        scene.run_with(fault, at)
