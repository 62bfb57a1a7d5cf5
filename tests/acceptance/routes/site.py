"""A dispatcher whose runs go one way, and processes that execute what comes out there."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx

from dispatcher.app import create_app
from dispatcher.settings import Settings
from tests.acceptance.esm.mapping import EventSourceMapping, Nothing
from tests.acceptance.lambda_runtime.runtime_api import LambdaRuntime
from tests.brokers import AWS_ENVIRONMENT, Sqs
from tests.faults import rig

ROUTES = ("push", "poll", "redis", "sqs", "lambda")
PUBLISHERS = {"redis": "redis", "sqs": "sqs", "lambda": "sqs"}
IDLE_SECONDS = 1.2
ROOT = Path(__file__).parents[3]


class Brokers:
    """Where the brokers of a test are."""

    def __init__(self, redis_url: str, sqs_url: str, queue_url: str, republish_ms: int = 1_000) -> None:
        self.redis_url = redis_url
        self.sqs_url = sqs_url
        self.queue_url = queue_url
        self.republish_ms = republish_ms

    def publishers(self) -> dict[str, dict[str, Any]]:
        """The publishers section that fills both."""
        more = {"secret": rig.SECRET, "republishMs": self.republish_ms}
        return {
            "redis": {"type": "redis", "url": self.redis_url, **more},
            "sqs": {"type": "sqs", "queueUrl": self.queue_url, "endpointUrl": self.sqs_url, **more},
        }


class Site:
    """A dispatcher on *database_url* that publishes to *publish*, in that order; its executors end with it."""

    def __init__(self, client: httpx.Client, brokers: Brokers, folder: Path) -> None:
        self.client = client
        self.brokers = brokers
        self.url = str(client.base_url).rstrip("/")
        self.gate = folder / "gate"
        self.log = folder / "bodies.log"
        self.executors: list[Executor] = []
        self.key: str = client.post("/v1/keys", json={"name": "worker", "scopes": ["execute"]}).json()["key"]

    def executor(self, route: str, who: str) -> "Executor":
        """A running executor of *route*; its task bodies sign as *who*."""
        found: Executor
        match route:
            case "push":
                found = Endpoint(self, who)
            case "lambda":
                found = Function(self, who)
            case _:
                found = Worker(self, who, route)
        self.executors.append(found)
        return found

    def lines(self, run_id: str) -> list[str]:
        """The task bodies that began for the run, as `name:who`, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(run_id)]

    def saw(self, run_id: str, name: str, seconds: float = 60) -> str:
        """Who began the body *name* of the run last, once somebody has."""

        def look() -> list[str]:
            return [line for line in self.lines(run_id) if line.split(":")[0] == name]

        found: list[str] = self._awaited(run_id, lambda: rig.until(look, seconds, f"{name} of {run_id}"))
        return found[-1].split(":")[1]

    def held_by(self, who: str, run_id: str, seconds: float = 60) -> None:
        """Returns once *who* holds the run at the gate."""
        held = f"hold:{who}"
        self._awaited(run_id, lambda: rig.until(lambda: held in self.lines(run_id), seconds, f"{held} of {run_id}"))

    def ended(self, run_id: str, seconds: float = 60) -> dict[str, Any]:
        """The run once it is terminal or stalled."""
        found: dict[str, Any] = self._awaited(run_id, lambda: rig.ended(self.client, run_id, seconds))
        return found

    def told(self, run_id: str) -> str:
        """What the dispatcher and the executors have to say when a test gives up waiting."""
        why = self.client.get(f"/v1/runs/{run_id}/why").text
        moves = self.client.get(f"/v1/runs/{run_id}/transitions").text
        return "\n".join([why, moves, *(executor.output() for executor in self.executors)])

    def _awaited(self, run_id: str, wait: Callable[[], Any]) -> Any:
        try:
            return wait()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told(run_id)}") from None

    def close(self) -> None:
        """No executor is left."""
        for executor in self.executors:
            executor.kill()


@contextlib.contextmanager
def site(database_url: str, brokers: Brokers, folder: Path, publish: list[str]) -> Iterator[Site]:
    """A site; without *publish* only discovered endpoints and pollers get its runs."""
    settings = Settings.model_validate(
        {
            "database": {"url": database_url},
            "daemons": rig.FAST,
            "publishers": brokers.publishers(),
            "routes": [{"workflows": ["*"], "publish": publish}] if publish else [],
            "secret_key": "k" * 40,
            "admin_key": rig.ADMIN_KEY,
        }
    )
    serving = rig.Serving(lambda url: create_app(settings, url=url)).open()
    try:
        headers = {"authorization": f"Bearer {rig.ADMIN_KEY}"}
        with httpx.Client(base_url=serving.url, headers=headers, timeout=30) as client:
            made = Site(client, brokers, folder)
            try:
                yield made
            finally:
                made.close()
    finally:
        serving.stop()


class Executor(Protocol):
    """Something that executes runs, to be killed, stopped and woken."""

    def kill(self) -> None:
        """Gone without a word. Can be repeated."""

    def send(self, number: signal.Signals) -> None:
        """Every process of it gets the signal."""

    def output(self) -> str:
        """What it wrote so far."""


class Process(Executor):
    """One process that executes runs."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def output(self) -> str:
        return self.log.read_text()


class Endpoint(Process):
    """uvicorn serving the endpoint, registered under the name *who*."""

    def __init__(self, site: Site, who: str) -> None:
        app = Path(__file__).with_name("app.py")
        served = rig.EndpointProcess(app, site.url, site.log, GATE=str(site.gate), WHO=who).start()
        assert served.process is not None
        self.process, self.log = served.process, served.output
        # Few places, so that a site with more routes than this one needs them.
        rig.register(site.client, served, name=who, maxInFlight=8)


class Worker(Process):
    """`pointsman worker app:worker` on one transport; *keyed* where a worker of a broker may poll as well."""

    def __init__(self, site: Site, who: str, route: str, *, keyed: bool = False) -> None:
        self.log = site.log.with_suffix(f".{who}.out")
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dispatcher.cli", "worker", "app:worker"],
                cwd=Path(__file__).parent,
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")},
                    **environment(site, who),
                    "POINTSMAN_API_KEY": site.key if keyed or route == "poll" else "",
                    "WORKER": route,
                },
                stdout=output,
                stderr=output,
            )


class Function(Executor):
    """A Lambda function behind an event source mapping: so many sandboxes of the real runtime client."""

    SANDBOXES = 3

    def __init__(self, site: Site, who: str) -> None:
        self._site = site
        self._who = who
        self._sqs = Sqs(site.brokers.sqs_url)
        self._runtimes: list[LambdaRuntime] = []
        self._ended = threading.Event()
        self._pollers = [threading.Thread(target=self._poll, daemon=True) for _ in range(self.SANDBOXES)]
        for poller in self._pollers:
            poller.start()

    def kill(self) -> None:
        self._ended.set()
        for runtime in self._runtimes:
            runtime.close()
        for poller in self._pollers:
            poller.join(20)
        self._sqs.close()

    def send(self, number: signal.Signals) -> None:
        self._ended.set()  # nor is another sandbox started for what comes next
        for runtime in self._runtimes:
            os.killpg(runtime.process.pid, number)

    def output(self) -> str:
        return "".join(line for runtime in self._runtimes for line in runtime.output)

    def _poll(self) -> None:
        mapping = EventSourceMapping(self._sqs, self._site.brokers.queue_url, self._sandbox)
        while not self._ended.is_set():
            with contextlib.suppress(Nothing):
                mapping.poll(within=1)

    def _sandbox(self) -> LambdaRuntime:
        runtime = LambdaRuntime(
            "app.handler",
            Path(__file__).parent,
            timeout=120,
            environment={
                **AWS_ENVIRONMENT,
                **environment(self._site, self._who),
                "AWS_ENDPOINT_URL_SQS": self._site.brokers.sqs_url,
            },
        )
        self._runtimes.append(runtime)
        assert runtime.initialised.wait(20)
        return runtime


def environment(site: Site, who: str) -> dict[str, str]:
    """What the program of every executor reads."""
    return {
        "POINTSMAN_URL": site.url,
        "POINTSMAN_SIGNING_SECRET": rig.SECRET,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
        "WHO": who,
        "GATE": str(site.gate),
        "BODY_LOG": str(site.log),
        "REDIS_URL": site.brokers.redis_url,
        "SQS_URL": site.brokers.sqs_url,
        "QUEUE_URL": site.brokers.queue_url,
    }
