"""`pointsman worker` as a command: what it loads, what it says when it cannot, and how it loads anew."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import rig

ROOT = Path(__file__).parents[3]
APP = """
from endpoint_sdk import Run, Worker, workflow

@workflow("{name}")
async def order(run: Run) -> None: ...

worker = Worker([order])
"""
REACHABLE = {"POINTSMAN_URL": "http://127.0.0.1:9", "POINTSMAN_API_KEY": "pmk_x"}


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def refused(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The exit code and what was said of a worker that does not start."""
    command = [sys.executable, "-m", "dispatcher.cli", "worker", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


class Running:
    """A worker's command under way; `text` is what it has logged."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self._out = folder / "out"
        with self._out.open("ab") as output:
            command = [sys.executable, "-m", "dispatcher.cli", "worker", *words]
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(**variables), stdout=output, stderr=output
            )

    @property
    def text(self) -> str:
        return self._out.read_text()

    def says(self, words: str, times: int = 1) -> None:
        rig.until(lambda: self.text.count(words) >= times, what=f"{words}, {times} times")

    def ended(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Running]]:
    """Whatever a test puts in is killed with it."""
    found: list[Running] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(10)


def test_there_is_no_such_program(tmp_path: Path) -> None:
    """A usage error with its code."""
    code, said = refused(tmp_path, "app:worker")

    assert code == 2
    assert "no_such_program" in said


def test_a_program_that_cannot_be_imported_shows_its_own_lines(tmp_path: Path) -> None:
    """The traceback begins in the program, not in the command."""
    (tmp_path / "app.py").write_text("import nowhere_to_be_found\n")
    code, said = refused(tmp_path, "app:worker")

    assert code == 1
    assert "import_failed" in said
    assert "nowhere_to_be_found" in said
    assert "dispatcher/cli" not in said


def test_a_worker_that_lacks_its_settings_says_which(tmp_path: Path) -> None:
    """The configuration's own sentence and code, without a traceback."""
    (tmp_path / "app.py").write_text(APP.format(name="order"))
    code, said = refused(tmp_path, "app:worker")

    assert code == 1
    assert "POINTSMAN_URL" in said
    assert "(configuration)" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("more", "program", "words"),
    [
        ("", "app:other", "has no Worker named other"),
        ("one, two = worker, Worker([order])\ndel worker", "app", "2 Workers"),
        ("del worker", "app", "no Worker"),
    ],
)
def test_a_program_without_the_worker_named(tmp_path: Path, more: str, program: str, words: str) -> None:
    """A usage error that names what there is."""
    (tmp_path / "app.py").write_text(APP.format(name="order") + more)
    code, said = refused(tmp_path, program, **REACHABLE)

    assert code == 2
    assert words in said
    assert "no_worker" in said


@pytest.mark.parametrize("text", ["POINTSMAN_URL", "1X=2", "=2"])
def test_a_line_that_is_no_variable_is_named(tmp_path: Path, text: str) -> None:
    """By file and line."""
    (tmp_path / "app.py").write_text(APP.format(name="order"))
    (tmp_path / "prod.env").write_text(f"# settings\n\n{text}\n")
    code, said = refused(tmp_path, "app", "--env-file", "prod.env")

    assert code == 2
    assert "prod.env:3" in said


def test_an_env_file_fills_in_what_is_not_set(tmp_path: Path, running: list[Running]) -> None:
    """Quotes and `export` as shells have them; what is set already stays."""
    (tmp_path / "app.py").write_text(APP.format(name="order"))
    (tmp_path / ".env").write_text("export POINTSMAN_URL='http://127.0.0.1:9'\nPOINTSMAN_API_KEY=pmk_y # no comment\n")
    command = Running(tmp_path, "app.py", "--env-file", ".env", POINTSMAN_API_KEY="pmk_x")
    running.append(command)
    command.says("worker started")

    assert command.ended() == 0
    assert "http://127.0.0.1:9" in command.text
    assert "pmk_" not in command.text


def test_a_change_drains_and_loads_anew(tmp_path: Path, running: list[Running]) -> None:
    """With --reload: also after a change that cannot be imported; SIGTERM ends both processes."""
    app = tmp_path / "app.py"
    app.write_text(APP.format(name="first"))
    command = Running(tmp_path, "app:worker", "--reload", **REACHABLE)
    running.append(command)
    command.says('"first 1"')
    app.write_text("this is no Python\n")
    command.says("import_failed")
    app.write_text(APP.format(name="second"))
    command.says('"second 1"')

    assert command.ended() == 0
    command.says("worker stopped", 2)


def test_a_worker_ends_with_the_command_that_loads_it_anew(tmp_path: Path, running: list[Running]) -> None:
    """With --reload: killed, the command leaves no worker behind; it drains."""
    (tmp_path / "app.py").write_text(APP.format(name="first"))
    command = Running(tmp_path, "app:worker", "--reload", **REACHABLE)
    running.append(command)
    command.says("worker started")
    command.process.kill()
    command.process.wait(10)

    command.says("worker stopped")


def test_a_worker_that_ended_is_started_by_the_next_change(tmp_path: Path, running: list[Running]) -> None:
    """With --reload: its end is said once, with its code, and is the command's own when nothing follows."""
    app = tmp_path / "app.py"
    app.write_text("import os\nos._exit(7)\n")
    command = Running(tmp_path, "app:worker", "--reload", **REACHABLE)
    running.append(command)
    command.says("the worker ended with 7")
    app.write_text(APP.format(name="second"))
    command.says('"second 1"')
    app.write_text("import os\nos._exit(8)\n")
    command.says("the worker ended with 8")

    assert command.ended() == 8
    assert command.text.count("ended with 7") == 1
