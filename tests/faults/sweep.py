"""What both sweeps do: a fault at one call of one run after the other, to an executor that comes back when killed."""

import threading
from typing import Any, ClassVar, Protocol

import httpx

from tests.faults import rig


class Executor(Protocol):
    """A process that executes the sweep's runs."""

    def start(self) -> Any: ...
    def stop(self) -> None: ...
    def bodies(self, run_id: str) -> list[str]: ...


class Scene:
    """A dispatcher, a proxy before it, and the *executor* behind it that is started again whenever it is killed."""

    patience: ClassVar[float] = 20.0

    def __init__(self, client: httpx.Client, proxy: rig.FaultProxy, executor: Executor) -> None:
        self.client = client
        self.proxy = proxy
        self._executor = executor
        self._restarts: list[threading.Thread] = []
        self._killing = threading.Lock()
        self._stopped = False
        proxy.kill = self._kill

    def run_with(self, fault: rig.Fault, at: int) -> None:
        """One run with *fault* at its call number *at* completes, and no body runs more often than it may."""
        self.proxy.arm(lambda number, _path: fault if number == at else "pass")
        run_id = rig.submit(self.client)
        run = rig.ended(self.client, run_id, self.patience)
        for restart in self._restarts:
            restart.join(20)
        bodies = [line.split(":")[0] for line in self._executor.bodies(run_id)]
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
        self._executor.stop()
        self.proxy.stop()

    def _kill(self) -> None:
        with self._killing:
            if self._stopped:
                return
            self._executor.stop()
            restart = threading.Thread(target=self._executor.start)
            restart.start()
            self._restarts.append(restart)
