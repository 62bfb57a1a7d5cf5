"""Every executor call, killed before or after it, its request or its reply lost: the run completes (I1 to I10)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dispatcher.store import Store, invariants
from tests.faults import rig

APP = Path(__file__).with_name("sweep_app.py")
CALLS = 7  # claim, reserve, pay started, pay, ship, complete; one more that never comes


class Scene:
    """A dispatcher, a proxy and an endpoint process that is started again whenever it is killed."""

    def __init__(self, client: httpx.Client, tmp_path: Path) -> None:
        self.client = client
        self.proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        self.endpoint = rig.EndpointProcess(APP, self.proxy.url, tmp_path / "bodies.log").start()
        self.proxy.kill = self._kill
        self._restarts: list[threading.Thread] = []

    def _kill(self) -> None:
        self.endpoint.kill()
        restart = threading.Thread(target=self.endpoint.start)
        restart.start()
        self._restarts.append(restart)

    def run_with(self, fault: rig.Fault, at: int) -> None:
        """One run with *fault* at its call number *at* completes, and no body runs more often than it may."""
        self.proxy.arm(lambda number, _path: fault if number == at else "pass")
        run_id = rig.submit(self.client)
        run = rig.ended(self.client, run_id)
        for restart in self._restarts:
            restart.join(20)
        bodies = self.endpoint.bodies(run_id)
        context = f"{fault} at call {at}: {bodies} {run}"
        assert run["status"] == "completed", context
        assert run["result"][0::2] == ["reserved o1", "shipped o1"], context
        assert run["result"][1] in {"paid o1", "payment unknown"}, context
        assert bodies.count("pay") <= 1, context
        repeated = [name for name in ("reserve", "ship") if bodies.count(name) > 1]
        assert len(repeated) <= (1 if fault == "kill_before" else 0), context

    def stop(self) -> None:
        self.endpoint.stop()
        self.proxy.stop()


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    """The scene on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        scene = Scene(client, tmp_path)
        rig.register(client, scene.endpoint)
        yield scene
        scene.stop()
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "kill_before", "kill_after"])
def test_every_executor_call_survives(scene: Scene, fault: rig.Fault) -> None:
    """Whatever call of a run the fault hits, the run completes and recorded tasks never run again."""
    for at in range(CALLS):
        scene.run_with(fault, at)
