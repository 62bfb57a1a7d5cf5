"""Every executor call, killed before or after it, its request or its reply lost: the run completes (I1 to I10)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.store import Store, invariants
from tests.faults import rig
from tests.faults.sweep import Scene

APP = Path(__file__).with_name("sweep_app.py")
CALLS = 7  # claim, reserve, pay started, pay, ship, complete; one more that never comes


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    """The scene on each database; afterwards the stored rows keep every invariant (I8)."""
    with rig.dispatcher(database_url) as client:
        proxy = rig.FaultProxy(str(client.base_url).rstrip("/"))
        endpoint = rig.EndpointProcess(APP, proxy.url, tmp_path / "bodies.log").start()
        scene = Scene(client, proxy, endpoint)
        rig.register(client, endpoint)
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
