"""What both jobs stand on: one database, one dispatcher process, one endpoint process, and ways to look at them."""

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

from dispatcher.cli.demo.postgres import postgres
from dispatcher.cli.demo.processes import Child, Processes, cpu_seconds, rss_mb
from dispatcher.cli.demo.site import Site
from endpoint_sdk.wire import signature

_FINISHED: Final = "SELECT id, finished_at FROM run WHERE status = 'completed'"
_COUNT: Final = "SELECT count(*) FROM run WHERE status = 'completed'"
_IN_FLIGHT: Final = 64


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
def rig(folder: Path, database: str) -> Iterator[Rig]:
    """A dispatcher with default settings and a uvicorn endpoint it pushes to; all gone when the block is left."""
    with contextlib.ExitStack() as stack:
        url, pid = f"sqlite:///{folder / 'bench.db'}", None
        if database == "postgresql":
            server = stack.enter_context(postgres(folder / "postgres"))
            url, pid = server.url, server.pid
        processes = stack.enter_context(Processes(folder / "logs"))
        site = Site(folder, processes, url)
        site.start(1)
        secret = signature.new_secret()
        environment = {
            "POINTSMAN_SIGNING_SECRET": secret,
            "POINTSMAN_ENDPOINT": "bench",
            "POINTSMAN_BENCH_LOG": str(folder / "handlers.log"),
        }
        endpoint, endpoint_url = site.start_app("bench", "app:app", Path(__file__).parent, environment)
        site.add_endpoint("bench", endpoint_url, secret, in_flight=_IN_FLIGHT)
        yield Rig(folder, site, endpoint, pid)
