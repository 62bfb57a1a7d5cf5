"""Third scene: an executor presumed dead wakes up and reports; the fence refuses it, and it stops without a fuss.

    A holds revision 5 -> recovery releases, 6 -> B claims and runs, 7 -> A reports with expectedRevision 5 -> 409

A is a real process behind a wire tap. It is stopped with SIGSTOP, and after SIGCONT its refreshes are answered 503,
which is no verdict: so it is its own write, not a refresh, that meets the fence (infra/docs/protocol.md, I2 and I3).
"""

import signal
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.cli.demo import orders
from dispatcher.cli.demo.processes import Child
from dispatcher.cli.demo.stage import Stage
from dispatcher.cli.demo.tap import Tap
from endpoint_sdk import AsyncClient, AsyncHandle

_A, _B = "crates-a", "crates-b"
_PATIENCE: Final = 60.0
# uvicorn re-raises the signal it was stopped by once it has shut down.
_CLEAN_EXITS: Final = (0, -signal.SIGTERM)


@dataclass(frozen=True)
class Zombie:
    run: str
    revisions: list[int]
    status: int | None
    code: str | None
    clean: bool


async def wake_zombie(stage: Stage) -> Zombie:
    tap = Tap(stage.site.urls[0])
    await tap.start()
    try:
        return await _play(stage, tap)
    finally:
        await tap.stop()


async def _play(stage: Stage, tap: Tap) -> Zombie:
    a = await stage.app(_A, "crate", POINTSMAN_URL=tap.url)
    client = AsyncClient(stage.site.urls[0], api_key=stage.site.admin_key)
    handle = await client.start(orders.crate, orders.Order("c1", 100), idempotency_key="c1")
    await _reach_five(stage, tap, a, handle.id)
    stage.say(f"{_A} holds {handle.id} at revision 5")

    tap.deaf = True
    a.send(signal.SIGSTOP)
    b = await stage.app(_B, "crate")
    await stage.until(lambda: _holds(stage, handle.id, _B) == 1, f"{_B} runs the crate", b)
    stage.say(f"{_A} stopped; recovery released its claim and {_B} runs")

    stage.open_gate(_A)
    a.send(signal.SIGCONT)
    await stage.until(lambda: bool(tap.progress(handle.id, 5)), f"{_A} reports with revision 5", a)
    stage.open_gate(_B)
    result = await handle.result(timeout=_PATIENCE)
    return await _judge(stage, tap, a, handle, completed=result == f"box-c1 by {_B}")


async def _reach_five(stage: Stage, tap: Tap, a: Child, run_id: str) -> None:
    """Two releases by an operator: claims at 1, 3 and 5, the first two known to A as lost."""
    for claim in (1, 2, 3):
        await stage.until(lambda claim=claim: _holds(stage, run_id, _A) == claim, f"claim {claim} of {_A}", a)  # type: ignore[misc]
        if claim < 3:
            await stage.call("POST", f"/v1/runs/{run_id}/release", {"reason": "demo"})
    await stage.until(lambda: tap.lost(run_id) >= {1, 3}, f"{_A} knows its first two claims are lost", a)


async def _judge(stage: Stage, tap: Tap, a: Child, handle: "AsyncHandle[str]", *, completed: bool) -> Zombie:
    reports = tap.progress(handle.id, 5)
    refusal = reports[0]
    code = refusal.answer.get("error", {}).get("code")
    once = len(reports) == 1 and a.alive
    exit_code = a.stop()
    clean = completed and once and exit_code in _CLEAN_EXITS and "Traceback" not in a.text()
    transitions = await stage.transitions(handle.id)
    stage.say(f"{_A} woke and reported with revision 5: {refusal.status} {code}; clean stop: {clean}")
    return Zombie(handle.id, _revisions(transitions), refusal.status, code, clean)


def _holds(stage: Stage, run_id: str, process: str) -> int:
    return sum(line.run == run_id and line.what == "hold" and line.process == process for line in stage.bodies())


def _revisions(transitions: list[dict[str, Any]]) -> list[int]:
    """The revisions A held, recovery made and B held, as far as the history shows those very moves."""
    expected = {5: "running", 6: "queued", 7: "running"}
    return [step["revision"] for step in transitions if expected.get(step["revision"]) == step["to"]]
