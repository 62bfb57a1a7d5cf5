"""Every call of a worker that polls, killed before or after it, its request or its reply lost (I1 to I10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.store import Store, invariants
from tests.acceptance.worker.processes import WorkerProcess, execute_key
from tests.faults import rig
from tests.faults.sweep import Scene

APP = Path(__file__).with_name("worker_app.py")
CALLS = 7  # reserve, pay started, pay, ship, complete, the next poll; one more that never comes


class WorkerScene(Scene):
    """As the scene of an endpoint; a worker takes longer to come back, and to ask again."""

    patience = 40.0


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[WorkerScene]:
    """The scene on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        key = execute_key(client)
        worker = WorkerProcess(tmp_path, "A", APP, POINTSMAN_URL=proxy.url, POINTSMAN_API_KEY=key).start()
        scene = WorkerScene(client, proxy, worker)
        rig.ended(client, rig.submit(client, version="1"))
        yield scene
        scene.stop()
    store = Store.open(database_url)
    assert store.transact_blocking(invariants.check) == []
    store.close()


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "kill_before", "kill_after"])
def test_every_call_of_a_worker_survives(scene: WorkerScene, fault: rig.Fault) -> None:
    """Whatever call the fault hits, a poll included, the run completes and recorded tasks never run again."""
    for at in range(CALLS):
        scene.run_with(fault, at)
