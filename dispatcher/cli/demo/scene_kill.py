"""Second scene: kill -9 of a uvicorn process that holds runs; another process completes every one of them."""

import asyncio
import signal
import time
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.cli.demo import orders
from dispatcher.cli.demo.stage import Stage
from endpoint_sdk import AsyncClient
from endpoint_sdk.wire import clock

HELD: Final = 20
_FIRST, _SECOND = "parcels-a", "parcels-b"
_PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Killed:
    """`recovery_ms` has, for each run completed elsewhere, the time from the kill to its claim by another process."""

    runs: list[str]
    holding: int
    recovered: int
    recovery_ms: list[float]


async def kill_holder(stage: Stage) -> Killed:
    first = await stage.app(_FIRST, "parcel")
    client = AsyncClient(stage.site.urls[0], api_key=stage.site.admin_key)
    handles = [
        await client.start(orders.parcel, orders.Order(f"p{number}", 100), idempotency_key=f"p{number}")
        for number in range(HELD)
    ]
    runs = [handle.id for handle in handles]
    await stage.until(lambda: _holding(stage) == HELD, f"{_FIRST} holds {HELD} runs", first)
    holding = _holding(stage)

    stage.open_gate(_SECOND)
    killed_at = time.time() * 1000
    first.send(signal.SIGKILL)
    first.popen.wait()
    stage.say(f"kill -9 of {_FIRST} (pid {first.pid}), which held {holding} runs")
    second = await stage.app(_SECOND, "parcel")
    results = await asyncio.gather(*(handle.result(timeout=_PATIENCE) for handle in handles))
    second.require()

    elsewhere = [run for run, result in zip(runs, results, strict=True) if result.endswith(f" by {_SECOND}")]
    claims = [_claimed_after(killed_at, await stage.transitions(run)) for run in elsewhere]
    recovered = [at - killed_at for at in claims if at is not None]
    stage.say(f"{len(recovered)} of {holding} runs recovered and completed by {_SECOND} (pid {second.pid})")
    return Killed(runs, holding, len(recovered), recovered)


def _holding(stage: Stage) -> int:
    return len({line.run for line in stage.bodies() if line.what == "hold" and line.process == _FIRST})


def _claimed_after(moment: float, transitions: list[dict[str, Any]]) -> float | None:
    """When the run was claimed again after it was released; None if it never was both."""
    released = [step for step in transitions if step["from"] == "running" and step["to"] == "queued"]
    claimed = [clock.from_wire(step["at"]) for step in transitions if step["to"] == "running"]
    later = [at for at in claimed if at > moment]
    return later[0] if released and later else None
