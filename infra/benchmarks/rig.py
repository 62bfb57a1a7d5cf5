"""What both jobs stand on: one database, one dispatcher, one executor process, and ways to look at them."""

import contextlib
import json
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from dispatcher.cli.demo.brokers import AWS, Brokers
from dispatcher.cli.demo.postgres import postgres
from dispatcher.cli.demo.processes import Child, Processes, cpu_seconds, rss_mb
from dispatcher.cli.demo.site import Site

_FINISHED: Final = "SELECT id, finished_at FROM run WHERE status = 'completed'"
_COUNT: Final = "SELECT count(*) FROM run WHERE status = 'completed'"
IN_FLIGHT: Final = 64
"""How many runs the executor holds at once, on every route."""

HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Rig:
    folder: Path
    site: Site
    endpoint: Child
    postgres: int | None

    def statements(self) -> int:
        """Statements the dispatcher's store has sent since its start."""
        with urllib.request.urlopen(f"{self.site.urls[0]}/healthz", timeout=10) as answer:  # noqa: S310  our own URL
            return int(json.load(answer)["statements"])

    def cpu(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids().items()}

    def rss(self) -> dict[str, float]:
        return {name: round(rss_mb(pid), 1) for name, pid in self._pids().items() if name != "postgres"}

    def completed(self) -> int:
        """How many runs the database has as completed, read past the dispatcher."""
        return int(self._query(_COUNT)[0][0])

    def finished(self) -> dict[str, int]:
        """When each run completed, in epoch ms."""
        return dict(self._query(_FINISHED))

    def claims(self, run_id: str) -> int:
        """How often the run was handed to an executor."""
        where = f"run_id = '{run_id}' AND status = 'running'"
        return int(self._query(f"SELECT count(*) FROM run_transition WHERE {where}")[0][0])  # noqa: S608  our own id

    def database_bytes(self) -> int:
        """The database's size."""
        if self.postgres is None:
            pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            return int(self._query(pages)[0][0])
        return int(self._query("SELECT pg_database_size(current_database())")[0][0])

    def started(self) -> dict[str, float]:
        """When the first line of each run's handler ran, in epoch ms."""
        lines = (self.folder / "handlers.log").read_text().splitlines()
        return {run: float(at) for run, _, at in (line.partition(" ") for line in lines)}

    def _pids(self) -> dict[str, int]:
        pids = {"dispatcher": self.site.dispatchers[0].pid, "endpoint": self.endpoint.pid}
        return pids if self.postgres is None else {**pids, "postgres": self.postgres}

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        if self.postgres is None:
            with contextlib.closing(sqlite3.connect(self.site.database.removeprefix("sqlite:///"))) as lite:
                return lite.execute(statement).fetchall()
        with psycopg.connect(self.site.database, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()


@contextmanager
def rig(folder: Path, database: str, route: str) -> Iterator[Rig]:
    """A dispatcher with default settings and the executor *route* leads to; all gone when the block is left."""
    with contextlib.ExitStack() as stack:
        url, pid = f"sqlite:///{folder / 'bench.db'}", None
        if database == "postgresql":
            server = stack.enter_context(postgres(folder / "postgres"))
            url, pid = server.url, server.pid
        processes = stack.enter_context(Processes(folder / "logs"))
        site = Site(folder, processes, url, variables=AWS)
        environment = {"POINTSMAN_SIGNING_SECRET": site.secret, "POINTSMAN_BENCH_LOG": str(folder / "handlers.log")}
        if route in ("redis", "sqs"):
            brokers = Brokers(processes, folder)
            brokers.start()
            brokers.ready()
            site.publishers = {route: brokers.publishers()[route]}
            site.routes = [{"workflows": ["*"], "publish": [route]}]
            environment |= {"REDIS_URL": brokers.redis_url, "QUEUE_URL": brokers.queue_url, "SQS_URL": brokers.sqs_url}
        site.start(1)
        executor = _endpoint(site, environment) if route == "push" else _worker(site, environment, route)
        yield Rig(folder, site, executor, pid)


def _endpoint(site: Site, environment: dict[str, str]) -> Child:
    endpoint, url = site.start_app("bench", "app:app", HERE, {**environment, "POINTSMAN_ENDPOINT": "bench"})
    site.add_endpoint("bench", url, site.secret, in_flight=IN_FLIGHT)
    return endpoint


def _worker(site: Site, environment: dict[str, str], route: str) -> Child:
    key = site.call("POST", "/v1/keys", {"name": "bench", "scopes": ["execute"]})["key"]
    more = {"POINTSMAN_URL": site.urls[0], "POINTSMAN_API_KEY": key, "POINTSMAN_BENCH_ROUTE": route}
    return site.start_worker("bench", "app:worker", HERE, {**AWS, **environment, **more})
