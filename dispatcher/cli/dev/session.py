"""One development session: a dispatcher that stays, and a program that is loaded again whenever its files change."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from dispatcher import endpoints, errors, operations, runs
from dispatcher.app import Dispatcher
from dispatcher.cli.dev import screen
from dispatcher.cli.dev.findings import Found
from dispatcher.cli.dev.folder import Credentials
from dispatcher.cli.dev.function_url import MOST, Environments, FunctionUrl
from dispatcher.cli.dev.program import Program, Recipe
from dispatcher.cli.dev.target import Target
from dispatcher.settings import PushPublisher
from endpoint_sdk.wire.operating import EndpointTested, ReleaseRun

_DRAIN: Final = 10.0
_QUICK: Final = 1.5
_SETTLED: Final = 20.0
_STEADY: Final = 2.0
_AGAIN: Final = 0.1
# What belongs to another dispatcher, or to this one alone, is not the program's.
_KEPT_BACK: Final = {
    f"POINTSMAN_{name}" for name in ("DATABASE_URL", "SECRET_KEY", "ADMIN_KEY", "CONFIG", "LISTEN", "PUBLIC_URL")
}

End = Callable[[float], Coroutine[Any, Any, list[int]]]


class Session:
    """Serves *target* on *listener* to *dispatcher*; `load` it as often as it changes, and `close` it once."""

    def __init__(
        self, dispatcher: Dispatcher, target: Target, credentials: Credentials, listener: socket.socket, option: str
    ) -> None:
        self._dispatcher = dispatcher
        self._target = target
        self._credentials = credentials
        self._listener = listener
        self._option = option
        self._recipe = Recipe(target, self._environment(), listener)
        self._found: Found | None = None
        self._end: End | None = None
        self._function: FunctionUrl | None = None
        self._programs: list[Program] = []
        self._duties: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """The program as its files are now is served, or it is told why not and the one before goes on."""
        async with self._loading:
            program = await self._launch()
            try:
                report = await program.found()
            except BaseException:
                program.kill()
                raise
            if isinstance(report, Found):
                await self._exchange(program, report)
                return
            program.kill()
            before = "the program as it was before goes on" if self._end else "nothing is served"
            screen.failed(report.text, f"{before}; it is loaded again when a *.py changes")

    async def close(self) -> None:
        """The program is gone, drained if that is quick."""
        async with self._loading:
            if self._end is not None:
                await self._end(_QUICK)
            if self._function is not None:
                await self._function.stop()
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        # One that was still draining when the session ended has had its time.
        await asyncio.gather(*(program.end(0) for program in self._programs if program.alive))

    async def _launch(self) -> Program:
        program = await Program.launch(self._recipe)
        self._programs = [*(each for each in self._programs if each.alive), program]
        return program

    async def _exchange(self, program: Program, report: Found) -> None:
        end, told = self._end, self._found == report
        self._found, self._end = report, await self._serve(program, report)
        if end is not None:
            self._begin(self._retire(end))
        probe = await self._register(report)
        if told and (probe is None or probe.ok):
            screen.row("reloaded", report.what)
            return
        screen.found(report, self._target.shown)
        screen.served(report, self._url(report), probe)
        screen.row("watching", "*.py")
        screen.next_step(report, self._option)

    async def _serve(self, program: Program, report: Found) -> End:
        if report.kind == "lambda":
            environments = Environments(program, self._launch)
            await program.serve()
            if self._function is None:
                self._function = FunctionUrl(environments)
                await self._function.start(self._listener.dup())
            self._function.environments = environments
            return environments.retire
        if self._function is not None:
            await self._function.stop()
            self._function = None
        await program.serve()
        self._begin(self._watch(program))

        async def end(patience: float) -> list[int]:
            return [] if await program.end(patience) else [program.pid]

        return end

    async def _watch(self, program: Program) -> None:
        """Starts the program again when it ended unasked, unless it did so right after its start."""
        code = await program.ended()
        if program.ending:
            return
        steady = time.monotonic() - program.began > _STEADY
        again = "it is started again" if steady else "it is started again when a *.py changes"
        screen.row("ended", f"the program's process ended with {code}; {again}")
        self._end = None
        if steady:
            await self.load()

    async def _retire(self, end: End) -> None:
        """What the old program left claimed is delivered again at once; nobody has to find out that it is gone."""
        killed = await end(_DRAIN)
        held = self._dispatcher
        wanted = runs.RunFilter(status="running")
        found, _ = await runs.list_(held.store, held.settings.recovery, "default", wanted, limit=500, after=None)
        request = ReleaseRun("the program was loaded again")
        for run in found:
            if run.claim is not None and any(f"-{pid}-" in run.claim.executor.id for pid in killed):
                # It may have ended, or gone silent for long enough, in this very moment.
                with contextlib.suppress(errors.Refusal):
                    await operations.release(held.store, held.settings, "default", run.id, request, "dev")

    async def _register(self, report: Found) -> EndpointTested | None:
        """The registry holds the program and nothing else of ours; what a signed probe of it came to."""
        held = self._dispatcher
        if report.kind == "worker":
            await endpoints.apply_file(held.store, held.keys, {})
            return None
        publisher = PushPublisher.model_validate(
            {
                "url": self._url(report),
                "secret": self._credentials.secret,
                "platform": "lambda-url" if report.kind == "lambda" else "generic",
                "allow_http": True,
                "max_in_flight": MOST if report.kind == "lambda" else 50,
            }
        )
        await endpoints.apply_file(held.store, held.keys, {report.endpoint: publisher})
        served = {(each.name, each.version) for each in report.workflows}
        deadline = time.monotonic() + _SETTLED
        while True:
            probe = await held.discovery.test("default", report.endpoint)
            # A program that is ending may still answer for the one that took its place.
            settled = not probe.ok or {(each.name, each.version) for each in probe.workflows} == served
            if settled or time.monotonic() > deadline:
                return probe
            await asyncio.sleep(_AGAIN)

    def _url(self, report: Found) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}{report.path}"

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _KEPT_BACK}
        return {
            **kept,
            "POINTSMAN_URL": self._dispatcher.url,
            "POINTSMAN_SIGNING_SECRET": self._credentials.secret,
            "POINTSMAN_API_KEY": self._credentials.key,
        }

    def _begin(self, duty: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(duty)
        self._duties.add(task)
        task.add_done_callback(self._duties.discard)


def python_files(folder: Path) -> Any:
    """A filter for changes of the program: *.py, but not in virtual environments or hidden folders."""
    from watchfiles import PythonFilter

    environments = [str(found.parent) for found in folder.glob("*/pyvenv.cfg")]
    return PythonFilter(ignore_paths=[*environments, str(folder / ".pointsman")])
