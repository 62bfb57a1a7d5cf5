"""Runs a worker in a process of its own and starts it again whenever a Python file changes, after a drain.

    python -m dispatcher.cli.reloading PIPE WORDS…      (the process of its own: `pointsman WORDS…`)

That process reads a pipe which nobody writes to: its end is the end of whoever started it, so no worker is left behind
by a parent that was killed.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_MS = 500


class _Child:
    """The worker's process, which the terminal's Ctrl-C does not reach: its parent tells it."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._lifeline, self._held = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: subprocess.Popen[bytes] | None = None
        self._missed: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "dispatcher.cli.reloading", str(self._lifeline), "worker", *self._words]
        self._process = subprocess.Popen(command, start_new_session=True, pass_fds=[self._lifeline])  # noqa: S603 - our own command

    def stop(self) -> None:
        """Tells the process to drain, once: the second signal would end it at once."""
        if self._told is not self._process:
            self._told = self._process
            self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def drained(self) -> int:
        """The process has ended by itself, with this exit code: a worker ends within its drain's time."""
        self.stop()
        # A signal of ours that came before its handler has nothing to drain.
        return 0 if self._process is None else max(self._process.wait(), 0)

    def missed(self) -> int | None:
        """The exit code of a process that ended without being told to; once for each."""
        process = self._process
        if process is None or process is self._told or process is self._missed or process.poll() is None:
            return None
        self._missed = process
        return process.returncode

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def run(folder: Path, words: Sequence[str]) -> int:
    """Runs `pointsman worker` with *words* until SIGTERM or SIGINT, the second of which kills it.

    Returns the exit code of the last one.
    """
    import watchfiles

    from dispatcher.cli import output

    child, stopped = _Child(words), threading.Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stopped.is_set():
            child.kill()
        stopped.set()
        child.stop()

    for number in _SIGNALS:
        signal.signal(number, handler)
    child.start()
    try:
        for changes in watchfiles.watch(
            folder,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=stopped,
            raise_interrupt=False,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
        ):
            if changes:
                changed = sorted({str(Path(path).name) for _, path in changes})
                output.say(f"changed: {', '.join(changed[:3])}; the worker drains and starts again")
                child.drained()
                if not stopped.is_set():
                    child.start()
            elif (code := child.missed()) is not None:
                output.say(f"the worker ended with {code}; it starts again when a *.py changes")
    finally:
        code = child.drained()
    return code


def _run_below() -> None:
    """`pointsman` with the words given, told to drain when its parent is gone."""
    lifeline = int(sys.argv.pop(1))
    threading.Thread(target=_end_with_parent, args=(lifeline,), name="pointsman-parent", daemon=True).start()
    from dispatcher.cli import main

    main()


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _run_below()
