"""`pointsman dev` as a real process: a program is served, run, edited, broken, mended; and Ctrl-C ends all of it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dispatcher.cli.demo.processes import tree
from endpoint_sdk import _version
from tests.brokers import free_port

ROOT = Path(_version.__file__).parents[1]
PATIENCE = 60.0
PROGRAM = """
import asyncio
import pathlib

import msgspec

from endpoint_sdk import Endpoint, Run, task, workflow


class Order(msgspec.Struct):
    id: str
    cents: int = 0


@task
def charge(order_id: str) -> str:
    return f"first {order_id}"


@task
async def ship(order_id: str) -> str:
    pathlib.Path("shipping").touch()
    while pathlib.Path("hold").exists():
        await asyncio.sleep(0.02)
    return "shipped"


@workflow("order", version="1.0.0")
async def order(run: Run, request: Order) -> list[str]:
    return [await run.task(charge, request.id), await run.task(ship, request.id), await run.task(charge, "last")]


endpoint = Endpoint([order], name="shop")
"""
HANDLER = """

@endpoint.lambda_handler
def handler(event, context):
    assert context.get_remaining_time_in_millis() > 0
    return {"statusCode": 201, "body": event["rawPath"] + event["requestContext"]["http"]["method"]}
"""
WORKER = """
from endpoint_sdk import Worker

worker = Worker([order])
"""


class Session:
    """The process, what it has said so far, and commands typed beside it."""

    def __init__(self, folder: Path, *words: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
        self.folder = folder
        self._environment = {**kept, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [*self._command("dev"), *words],
            cwd=folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def told(self, text: str, times: int = 1) -> str:
        """The line with *text*, once it was said so many *times*."""
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < times:
            assert time.monotonic() < deadline, f"{text!r} was not said {times} times:\n{self.text}"
            found = [line for line in list(self.lines) if text in line]
            time.sleep(0.02)
        return found[-1]

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        return self.told("dispatcher ").split()[1]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """`pointsman run` with *words*, without a key, at this session's dispatcher."""
        environment = {**self._environment, "POINTSMAN_URL": self.url}
        return subprocess.run(
            self._command("run", *words),
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    @contextmanager
    def start(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """`pointsman run start order … --watch -o jsonl`, going on beside the test; gone when the block is left."""
        with subprocess.Popen(
            self._command("run", "start", "order", '{"id": "o1"}', "--watch", "-o", "jsonl", *words),
            env={**self._environment, "POINTSMAN_URL": self.url},
            stdout=subprocess.PIPE,
            text=True,
        ) as watching:
            try:
                yield watching
            finally:
                watching.kill()

    def interrupt(self) -> int:
        """Ctrl-C: the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            children = tree(self.process.pid)
            for pid in reversed(children):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @staticmethod
    def _command(*words: str) -> list[str]:
        return [sys.executable, "-m", "dispatcher.cli", *words]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program's folder."""
    (tmp_path / "app.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    """`pointsman dev app.py` that has served it."""
    made = Session(folder, "app.py", "--port", str(free_port()))
    try:
        made.told("signed probe ok")
        made.told("watching")
        yield made
    finally:
        made.close()


def edit(folder: Path, before: str, after: str) -> None:
    """Changes the program as an editor does: a new file in the place of the old one."""
    changed = (folder / "app.py").read_text().replace(before, after)
    (folder / "app.tmp").write_text(changed)
    (folder / "app.tmp").rename(folder / "app.py")


def test_first_minutes(session: Session, folder: Path) -> None:
    """The table says what was found and what to type; typed, it completes; Ctrl-C ends every process with 0."""
    assert "order 1.0.0  (Order -> list[str])   charge, ship" in session.told("found")
    assert "ASGI application" in session.told("served as")
    assert session.told("$ pointsman").startswith("""$ pointsman run start order '{"id": "id-1"}' --watch""")

    done = session.run("start", "order", '{"id": "o1"}', "--watch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert 'task charge {"order_id":"o1"} completed' in done.stdout
    assert "running -> completed" in lines[-2]
    assert lines[-1].endswith('completed  ["first o1", "shipped", "first last"]')

    children = tree(session.process.pid)[1:]
    assert session.interrupt() == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    kept = folder / ".pointsman"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert (kept / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert (kept / ".gitignore").read_text() == "*\n"
    secrets = json.loads((kept / "credentials.json").read_text()).values()
    assert not any(secret in session.text for secret in secrets)


def test_a_run_goes_on_after_a_reload(session: Session, folder: Path) -> None:
    """The dispatcher stays: a run in mid-task drains from the old program and ends in the new one's words."""
    (folder / "hold").touch()
    with session.start() as watching:
        _wait_for(folder / "shipping")
        edit(folder, "first", "second")
        session.told("reloaded")
        (folder / "hold").unlink()
        assert watching.stdout is not None
        happenings = [json.loads(line) for line in watching.stdout]
        assert watching.wait(PATIENCE) == 0

    assert [each["type"] for each in happenings[-2:]] == ["transition", "end"]
    assert happenings[-1]["result"] == ["first o1", "shipped", "second last"]
    claimed = [each for each in happenings if each["type"] == "transition" and each["to"] == "running"]
    assert len(claimed) == 2


def test_a_broken_program_is_told_and_mended(session: Session, folder: Path) -> None:
    """What cannot be imported is shown and the version before goes on; the next good one takes its place."""
    edit(folder, "import asyncio", "import no_such_module")
    assert "No module named 'no_such_module'" in session.told("ModuleNotFoundError")
    session.told("the program as it was before goes on")
    assert "first o1" in session.run("start", "order", '{"id": "o1"}', "--watch").stdout

    edit(folder, "import no_such_module", "import asyncio")
    session.told("reloaded")
    edit(folder, 'version="1.0.0"', 'version="2.0.0"')
    assert "order 2.0.0" in session.told("found", 2)


def test_a_program_broken_from_the_start(folder: Path) -> None:
    """Dev comes up without a program, says why, and serves it as soon as it can be imported."""
    edit(folder, "endpoint = ", "nothing = 1 + ")
    session = Session(folder, "app.py", "--port", str(free_port()))
    try:
        session.told("nothing is served; it is loaded again when a *.py changes")
        edit(folder, "nothing = 1 + ", "endpoint = ")
        session.told("signed probe ok")
        assert session.interrupt() == 0, session.text
    finally:
        session.close()


def test_a_web_page_cannot_drive_it(session: Session) -> None:
    """Without a key this machine is answered, a foreign Host or Origin is not, and a wrong key is still wrong."""

    def status(**headers: str) -> int:
        return httpx.get(f"{session.url}/v1/runs", headers=headers, trust_env=False).status_code

    assert status() == 200
    assert status(origin="http://localhost:3000") == 200
    assert status(origin="https://example.com") == 403
    assert status(origin="null") == 403
    assert status(host="rebound.example.com") == 403
    assert status(authorization="Bearer pmk_unknown") == 401


def test_a_lambda_handler_gets_function_url_events(folder: Path) -> None:
    """A decorated handler is behind a function URL: runs go through it, and what is not ours reaches the user."""
    (folder / "app.py").write_text(PROGRAM + HANDLER)
    session = Session(folder, "app.py", "--port", str(free_port()))
    try:
        line = session.told("served as")
        assert "Lambda function URL" in line
        assert "signed probe ok" in line
        address = next(word for word in line.split() if word.startswith("http"))
        answer = httpx.get(f"{address}mine", trust_env=False)
        assert (answer.status_code, answer.text) == (201, "/mineGET")
        done = session.run("start", "order", '{"id": "o1"}', "--watch", "-o", "json")
        assert json.loads(done.stdout)["result"] == ["first o1", "shipped", "first last"]

        (folder / "shipping").unlink()
        (folder / "hold").touch()
        with session.start() as watching:
            _wait_for(folder / "shipping")
            edit(folder, "first", "second")
            session.told("reloaded")
            (folder / "hold").unlink()
            assert watching.stdout is not None
            assert watching.stdout.read().endswith("\n")
            assert watching.wait(PATIENCE) == 0, session.text
        done = session.run("start", "order", '{"id": "o1"}', "--watch", "-o", "json")
        assert json.loads(done.stdout)["result"] == ["second o1", "shipped", "second last"]
        assert session.interrupt() == 0, session.text
    finally:
        session.close()


def test_a_worker_is_run_as_one(folder: Path) -> None:
    """A Worker in the module is a process of its own that polls, and the run it takes completes."""
    (folder / "app.py").write_text(PROGRAM + WORKER)
    session = Session(folder, "app.py", "--port", str(free_port()))
    try:
        assert "worker process" in session.told("served as")
        session.told("watching")
        done = session.run("start", "order", '{"id": "o1"}', "--version", "1.0.0", "--watch", "-o", "json")
        assert json.loads(done.stdout)["result"] == ["first o1", "shipped", "first last"]
        assert session.interrupt() == 0, session.text
    finally:
        session.close()


def test_a_task_that_outlasts_the_drain_is_started_again(session: Session, folder: Path) -> None:
    """A program that does not end in time is killed, and its run is delivered again at once, not after a silence."""
    (folder / "hold").touch()
    with session.start() as watching:
        _wait_for(folder / "shipping")
        (folder / "shipping").unlink()
        edit(folder, "first", "second")
        session.told("reloaded")
        _wait_for(folder / "shipping")
        (folder / "hold").unlink()
        assert watching.stdout is not None
        happenings = [json.loads(line) for line in watching.stdout]
        assert watching.wait(PATIENCE) == 0

    assert happenings[-1]["result"] == ["first o1", "shipped", "second last"]
    released = next(each for each in happenings if each["type"] == "transition" and each["from"] == "running")
    assert (released["reason"], released["actor"]) == ("the program was loaded again", "dev")


def test_an_end_while_the_old_program_drains(session: Session, folder: Path) -> None:
    """Ctrl-C does not wait for a task that holds up a drain: every process is gone at once."""
    (folder / "hold").touch()
    with session.start():
        _wait_for(folder / "shipping")
        edit(folder, "first", "second")
        session.told("reloaded")
        children = tree(session.process.pid)[1:]
        assert children
        assert session.interrupt() == 0, session.text
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def test_a_killed_session_leaves_nothing_behind(session: Session) -> None:
    """kill -9 of the session ends the program too, which sees its end of the channel close."""
    children = tree(session.process.pid)[1:]
    session.process.kill()
    session.process.wait()
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline, "the program outlived its session"
        time.sleep(0.02)


def test_one_session_a_folder_and_a_free_port(session: Session, folder: Path, tmp_path: Path) -> None:
    """A second session elsewhere takes the next free port and says so; in the same folder it is refused."""
    taken = session.url.rpartition(":")[2]
    second = Session(folder, "app.py", "--port", taken)
    assert second.process.wait(PATIENCE) == 1
    second.close()
    assert "dev_running" in second.text

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "app.py").write_text(PROGRAM)
    third = Session(elsewhere, str(elsewhere / "app.py"), "--port", taken)
    try:
        assert f"port {taken} is taken: the dispatcher listens on" in third.told("is taken")
        third.told("signed probe ok")
        assert third.told("$ pointsman").rstrip().endswith(f"--url {third.url}")
        assert third.interrupt() == 0
    finally:
        third.close()


def test_runs_are_kept_until_a_fresh_start(session: Session, folder: Path) -> None:
    """The next session knows the runs of the last one, under the same key; --fresh does not."""
    session.run("start", "order", '{"id": "o1"}', "--watch")
    assert session.interrupt() == 0
    for words, runs in (((), 1), (("--fresh",), 0)):
        again = Session(folder, "app.py", "--port", str(free_port()), *words)
        try:
            again.told("signed probe ok")
            listed = json.loads(again.run("list", "-o", "json").stdout)
            assert len(listed["items"]) == runs
            assert again.interrupt() == 0
        finally:
            again.close()


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} was not made"
        time.sleep(0.02)
