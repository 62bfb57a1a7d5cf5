"""What every scene stands on: the site, the folder of the bundle, the log of task bodies, progress lines."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher.cli.demo.figures import Line, read_bodies
from dispatcher.cli.demo.processes import Child, Processes, ProcessFailed
from dispatcher.cli.demo.site import Site


@dataclass
class Stage:
    folder: Path
    processes: Processes
    site: Site
    begun: float = field(default_factory=time.monotonic)

    @property
    def bundle(self) -> Path:
        """The folder executors run their code from; it holds orders.py and nothing else."""
        folder = self.folder / "bundle"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(Path(__file__).with_name("orders.py"), folder)
        return folder

    def say(self, text: str) -> None:
        """One progress line on stderr."""
        print(f"[{self.seconds:5.1f} s] {text}", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def bodies(self) -> list[Line]:
        return read_bodies(self.folder)

    def executor_environment(self, name: str, serves: str) -> dict[str, str]:
        """What an executor process needs to run the bundle as endpoint *name*."""
        return {
            "POINTSMAN_SIGNING_SECRET": self.site.secret,
            "POINTSMAN_ENDPOINT": name,
            "POINTSMAN_DEMO_FOLDER": str(self.folder),
            "POINTSMAN_DEMO_PROCESS": name,
            "POINTSMAN_DEMO_SERVES": serves,
        }

    async def app(self, name: str, serves: str, **more: str) -> Child:
        """A uvicorn process named *name*, registered as the newest endpoint for *serves*."""
        environment = {**self.executor_environment(name, serves), **more}
        child, url = await asyncio.to_thread(self.site.start_app, name, "orders:app", self.bundle, environment)
        await asyncio.to_thread(self.site.add_endpoint, name, url, self.site.secret)
        return child

    def open_gate(self, name: str) -> None:
        """Held task bodies of process *name* go on."""
        (self.folder / f"{name}.open").touch()

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        return await asyncio.to_thread(self.site.call, method, path, body)

    async def transitions(self, run_id: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.site.items, f"/v1/runs/{run_id}/transitions")

    async def recorded(self, run_id: str) -> dict[tuple[str, str], str]:
        """Which body made the recorded result of each task of a run."""
        records = await asyncio.to_thread(self.site.items, f"/v1/runs/{run_id}/records")
        return {
            (run_id, record["name"]): record["value"]["body"]
            for record in records
            if record["kind"] == "task" and record["state"] == "completed"
        }

    async def until(self, holds: Callable[[], bool], what: str, *needed: Child, patience: float = 30.0) -> None:
        """Returns once *holds*; ProcessFailed when a *needed* process ended or *patience* seconds passed."""
        deadline = time.monotonic() + patience
        while not holds():
            for child in needed:
                child.require()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"not so within {patience:g} s: {what}")
            await asyncio.sleep(0.02)
