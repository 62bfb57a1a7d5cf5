"""The demo from curtain to curtain: four scenes on one stage, and the figures of what happened."""

import asyncio
import importlib.util
import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dispatcher.cli.demo.brokers import AWS, NEEDED, Brokers
from dispatcher.cli.demo.figures import percentile, run_twice, spread, start_delays
from dispatcher.cli.demo.postgres import PostgresMissing, postgres
from dispatcher.cli.demo.processes import Processes
from dispatcher.cli.demo.scene_brokers import HELD, Brokered, through_brokers
from dispatcher.cli.demo.scene_kill import Killed, kill_holder
from dispatcher.cli.demo.scene_orders import Ordered, place_orders
from dispatcher.cli.demo.scene_zombie import Zombie, wake_zombie
from dispatcher.cli.demo.site import DEMO_DAEMONS, Site
from dispatcher.cli.demo.stage import Stage
from dispatcher.store import Store, invariants


def run(*, runs: int = 200, use_postgres: bool = False) -> int:
    """See `dispatcher.cli.demo.run`."""
    needed = {"awslambdaric": "awslambdaric", **NEEDED}
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _failed(f"the demo runs real executors and brokers: pip install {' '.join(missing)}")
    try:
        with tempfile.TemporaryDirectory(prefix="pointsman-") as name:
            figures = _in_folder(Path(name), runs, use_postgres=use_postgres)
    except PostgresMissing as error:
        return _failed(str(error))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return _failed("stopped before its end")
    except Exception as error:
        traceback.print_exc()
        return _failed(f"{type(error).__name__}: {error}".splitlines()[0])
    print(json.dumps(figures), flush=True)
    return 0 if figures["ok"] else 1


def _failed(why: str) -> int:
    """The last line of a demo that could not be played to its end."""
    print(json.dumps({"ok": False, "error": why}), flush=True)
    return 1


def _in_folder(folder: Path, runs: int, *, use_postgres: bool) -> dict[str, Any]:
    with _database(folder, use_postgres=use_postgres) as url, Processes(folder / "logs") as processes:
        brokers = Brokers(processes, folder)
        site = Site(folder, processes, url, DEMO_DAEMONS, brokers.publishers(), brokers.routes(), AWS)
        stage = Stage(folder, processes, site)
        try:
            return asyncio.run(_play(stage, brokers, runs, 2 if use_postgres else 1))
        except Exception:
            _show_logs(processes)
            raise


@contextmanager
def _database(folder: Path, *, use_postgres: bool) -> Iterator[str]:
    if not use_postgres:
        yield f"sqlite:///{folder / 'demo.db'}"
        return
    with postgres(folder / "postgres") as server:
        yield server.url


async def _play(stage: Stage, brokers: Brokers, runs: int, dispatchers: int) -> dict[str, Any]:
    task = asyncio.current_task()
    if task is not None:
        # Ending the demo from outside ends its children too.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.to_thread(_open, stage, brokers, dispatchers)
    ordered = await place_orders(stage, runs)
    killed = await kill_holder(stage)
    zombie = await wake_zombie(stage)
    brokered = await through_brokers(stage, brokers, max(runs // 4, 1))

    through = [run for each in brokered.values() for run in (*each.submitted, *each.held)]
    twice = await _run_twice(stage, [*ordered.submitted, *killed.runs, zombie.run, *through])
    exits = await asyncio.to_thread(stage.site.stop)
    breaches = await asyncio.to_thread(_breaches, stage.site.database)
    stage.say(f"dispatchers stopped with {exits}; invariants: {'; '.join(breaches) or 'all hold'}")
    sound = not breaches and not any(exits)
    return _figures(stage, runs, ordered, killed, zombie, brokered, twice=twice, sound=sound)


def _open(stage: Stage, brokers: Brokers, dispatchers: int) -> None:
    brokers.start()
    brokers.ready()
    stage.say(f"Redis on port {brokers.redis_port}, an SQS server on port {brokers.sqs_port}")
    stage.site.start(dispatchers)
    stage.say(f"{dispatchers} dispatcher process(es) ready: {', '.join(stage.site.urls)}")


async def _run_twice(stage: Stage, runs: Iterable[str]) -> int:
    recorded: dict[tuple[str, str], str] = {}
    for run_id in runs:
        found = await stage.recorded(run_id)
        if not found:
            raise RuntimeError(f"{run_id} has no recorded task")
        recorded |= found
    return run_twice(stage.bodies(), recorded)


def _breaches(database: str) -> list[str]:
    store = Store.open(database)
    try:
        return store.transact_blocking(invariants.check)
    finally:
        store.close()


def _figures(
    stage: Stage,
    runs: int,
    ordered: Ordered,
    killed: Killed,
    zombie: Zombie,
    brokered: dict[str, Brokered],
    *,
    twice: int,
    sound: bool,
) -> dict[str, Any]:
    refused = asdict(zombie) | {"run": None}
    refused.pop("run")
    holds = (
        ordered.completed == runs == len(ordered.submitted),
        killed.recovered == killed.holding == len(killed.runs),
        all(each.completed == len(each.submitted) for each in brokered.values()),
        all(each.recovered == len(each.held) == HELD for each in brokered.values()),
        twice == 0,
        refused == {"revisions": [5, 6, 7], "status": 409, "code": "revision_conflict", "clean": True},
        sound,
    )
    recovery = killed.recovery_ms
    return {
        "ok": all(holds),
        "database": stage.site.database.partition(":")[0],
        "orders": runs,
        "completed": ordered.completed,
        "start_ms": spread(start_delays(stage.bodies(), ordered.submitted)),
        "e2e_ms": spread(ordered.e2e_ms),
        "killed_holding": killed.holding,
        "recovered": killed.recovered,
        "recorded_tasks_run_twice": twice,
        "recovery_ms": {"p50": round(percentile(recovery, 50)), "max": round(max(recovery))} if recovery else None,
        "zombie": refused,
        **{kind: _through(stage, each) for kind, each in brokered.items()},
        "invariants_ok": sound,
        "seconds": round(stage.seconds, 1),
    }


def _through(stage: Stage, brokered: Brokered) -> dict[str, Any]:
    return {
        "orders": len(brokered.submitted),
        "completed": brokered.completed,
        "start_ms": spread(start_delays(stage.bodies(), brokered.submitted)),
        "killed_holding": len(brokered.held),
        "recovered": brokered.recovered,
    }


def _show_logs(processes: Processes) -> None:
    """The last lines of every child, since their files go with the folder."""
    for child in processes.children:
        lines = child.text().splitlines()[-15:]
        if lines:
            print(f"--- {child.name}", *lines, sep="\n", file=sys.stderr)
