"""A worker's process and user code that stops its loop, exits, forks, or leaves threads behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.worker.processes import WorkerProcess, execute_key, moves, reasons
from tests.faults import rig

UNRULY = Path(__file__).with_name("unruly.py")


@pytest.fixture
def client(sqlite_url: str) -> Iterator[httpx.Client]:
    """A dispatcher of the test's own."""
    with rig.dispatcher(sqlite_url) as client:
        yield client


@pytest.fixture
def worker(client: httpx.Client, tmp_path: Path) -> Iterator[WorkerProcess]:
    """The worker, which ends with the test."""
    url = str(client.base_url).rstrip("/")
    made = WorkerProcess(tmp_path, "A", UNRULY, POINTSMAN_URL=url, POINTSMAN_API_KEY=execute_key(client))
    yield made.start()
    made.stop()


def submit(client: httpx.Client, workflow: str) -> str:
    return rig.submit(client, workflow, input=None, version="1")


def test_a_stopped_loop_goes_on(client: httpx.Client, worker: WorkerProcess) -> None:
    """`loop.stop()` in a body ends neither its run nor the worker."""
    run = rig.ended(client, submit(client, "stopping"))
    worker.send(signal.SIGTERM)
    code, _ = worker.ended()

    assert (run["result"], run["kills"], code) == ("went on", 0, 0)
    assert "user code stopped the event loop" in worker.output.read_text()


def test_an_exit_outside_a_task_drains(client: httpx.Client, worker: WorkerProcess) -> None:
    """`sys.exit` where nobody catches it ends the process with its code, after the runs under way were seen to."""
    run_id = submit(client, "exiting")
    code, _ = worker.ended()

    assert code == 5
    assert reasons(client, run_id)[2:] in ([None], ["drain"])
    assert "claim_stale" not in reasons(client, run_id)


def test_a_process_forked_by_a_body_can_be_terminated(client: httpx.Client, worker: WorkerProcess) -> None:
    """It has the worker's signal handlers, but no worker to drain."""
    run = rig.ended(client, submit(client, "forking"))

    assert run["result"] is True
    assert worker.process.poll() is None


def test_threads_that_bodies_leave_behind_do_not_keep_the_process(client: httpx.Client, worker: WorkerProcess) -> None:
    """The run is cancelled and released in time; its threads go on, and the process ends all the same, with 1."""
    run_id = submit(client, "occupying")
    worker.began(run_id, "occupy:A")
    worker.send(signal.SIGTERM)
    code, seconds = worker.ended()

    assert code == 1
    assert seconds < 10
    assert reasons(client, run_id)[2:] == ["drain"]


def test_a_log_nobody_reads_does_not_keep_the_process(client: httpx.Client, tmp_path: Path) -> None:
    """The pipe is full and a thread holds the log's lock: the process ends in time even so."""
    url = str(client.base_url).rstrip("/")
    process = WorkerProcess(tmp_path, "B", UNRULY, POINTSMAN_URL=url, POINTSMAN_API_KEY=execute_key(client))
    command = [sys.executable, "-m", "dispatcher.cli", "worker", "unruly:worker"]
    with subprocess.Popen(command, cwd=UNRULY.parent, env=process.environment, stderr=subprocess.PIPE) as unread:
        assert unread.stderr is not None
        pipe = unread.stderr.fileno()
        try:
            run_id = submit(client, "flooding")
            rig.until(lambda: moves(client, run_id) == ["queued", "running"], what="the claim")
            rig.until(lambda: _is_full(pipe), what="a full pipe")
            unread.send_signal(signal.SIGTERM)
            assert unread.wait(20) == 1
        finally:
            unread.kill()


def _is_full(descriptor: int) -> bool:
    """Whether the pipe holds about as much as it can: three lines to a page, sixteen pages."""
    import array
    import fcntl
    import termios

    waiting = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    return waiting[0] > 45_000
