"""A worker whose user code does to its process what it should not."""

import asyncio
import logging
import multiprocessing
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from endpoint_sdk import Run, SyncRun, Worker, task, task_context, workflow


def _note(line: str) -> None:
    with Path(os.environ["BODY_LOG"]).open("a") as log:
        log.write(f"{task_context().run_id} {line}\n")


@task
async def stop_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return "went on"


@task
async def exit_beside() -> str:
    async def leave() -> None:
        sys.exit(5)

    leaving = asyncio.create_task(leave())
    await asyncio.wait([leaving])
    return "went on"


@task
async def occupy() -> None:
    sleeping = [asyncio.create_task(asyncio.to_thread(time.sleep, 60)) for _ in range(40)]
    await asyncio.sleep(0)
    _note("occupy:A")
    await asyncio.gather(*sleeping)


@task
def fork() -> bool:
    child: Any = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.3)
    child.terminate()
    child.join(10)
    ended: bool = not child.is_alive()
    child.kill()
    child.join()
    return ended


@task
def flood() -> None:
    def write() -> None:
        while True:
            logging.getLogger("user").error("x" * 1_000)

    threading.Thread(target=write, daemon=True).start()
    time.sleep(60)


@workflow("stopping")
async def stopping(run: Run) -> str:
    return await run.task(stop_the_loop)


@workflow("exiting")
async def exiting(run: Run) -> str:
    return await run.task(exit_beside)


@workflow("occupying")
async def occupying(run: Run) -> None:
    await run.task(occupy)


@workflow("forking")
def forking(run: SyncRun) -> bool:
    return run.task(fork)


@workflow("flooding")
def flooding(run: SyncRun) -> None:
    run.task(flood)


worker = Worker([stopping, exiting, occupying, forking, flooding], drain_timeout=timedelta(seconds=2))
