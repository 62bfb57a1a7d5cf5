"""Child processes of demo and benchmark: started with a log each, all gone at the end, weighed through /proc."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PATIENCE: Final = 10.0


class ProcessFailed(RuntimeError):
    """A child ended or hung where it should not; the message holds the end of its log."""


@dataclass(frozen=True)
class Child:
    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signals the child's whole process group, so that what it forked goes along."""
        if self.alive:
            os.killpg(self.pid, number)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, patience: float = _PATIENCE) -> int:
        """Asks the child to end and returns its exit code; ProcessFailed when it had to be killed."""
        self.send(signal.SIGTERM)
        try:
            return self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(f"{self.name} did not end within {patience:g} s of SIGTERM\n{self._tail()}") from None

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.popen.wait()

    def require(self) -> None:
        """Raises ProcessFailed if the child has ended."""
        if not self.alive:
            raise ProcessFailed(f"{self.name} ended with {self.popen.returncode}\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.text().splitlines()[-30:])


@dataclass
class Processes:
    """Starts children below *folder* and ends those still alive when the block is left, newest first."""

    folder: Path
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> "Processes":
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self.children):
            child.send(signal.SIGCONT)
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        for child in reversed(self.children):
            try:
                child.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Child:
        """Starts *command* in a session of its own with exactly *env*; its output goes to `<name>.log`."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(  # noqa: S603  the commands are this module's callers' own
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        child = Child(name, popen, log)
        self.children.append(child)
        return child

    def check(self, patience: float, ready: Callable[[], bool], what: str, *needed: Child) -> None:
        """Returns once *ready* says so; ProcessFailed when a *needed* child ends first or *patience* seconds pass."""
        deadline = time.monotonic() + patience
        while not ready():
            for child in needed:
                child.require()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{what}: not so within {patience:g} s")
            time.sleep(0.02)


def free_port() -> int:
    """A loopback port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tree(pid: int) -> list[int]:
    """*pid* and all its living descendants."""
    found = [pid]
    for parent in found:
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in tasks.read_text().split())
            except OSError:
                continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of *pid*, its living descendants, and what they have waited for."""
    total = 0
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def rss_mb(pid: int) -> float:
    """Resident memory of *pid* and its living descendants, in MiB; pages they share count once each."""
    pages = 0
    for member in tree(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * _PAGE / 2**20
