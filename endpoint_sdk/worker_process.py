"""A worker that has the process to itself: its event loop, its signals, and an end in bounded time.

The first SIGTERM or SIGINT drains, the second ends the process at once. Handlers are Python's own and not the loop's,
so that they are heard while user code blocks the loop; and a thread that waits for nobody ends the process when the
drain's time and a second are over, whatever still runs. User code that stops the loop does not stop the worker, and
user code that exits outside a task ends it with a drain.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from endpoint_sdk import bodies, monotonic

if TYPE_CHECKING:
    from endpoint_sdk.worker import Worker

_log: Final = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_GRACE: Final = 1.0
# What the last line may take out of it: whoever holds a log handler, or reads it no more, does not keep the process.
_LAST_WORDS: Final = 0.25


class Curfew:
    """Ends the process with exit code 1 once *seconds* have passed since `begin`, unless `lift` came before.

    Its thread is there before it is needed, and hears through a queue that a signal handler may use.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._words: SimpleQueue[bool] = SimpleQueue()
        self.begun = False
        threading.Thread(target=self._watch, name="pointsman-curfew", daemon=True).start()

    def begin(self) -> None:
        """The time runs from now on."""
        self.begun = True
        self._words.put(True)

    def lift(self) -> None:
        """The process may take as long as it likes."""
        self._words.put(False)

    def _watch(self) -> None:
        if not self._words.get():
            return
        try:
            self._words.get(timeout=self._seconds - _LAST_WORDS)
        except Empty:
            _end()


def _end() -> NoReturn:
    try:
        last_words = threading.Thread(target=_say, daemon=True)
        last_words.start()
        last_words.join(_LAST_WORDS)
    finally:
        os._exit(1)


def _say() -> None:
    _log.error("the drain's time is over: the process ends, and recovery takes over what it holds")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()


def run(worker: "Worker") -> None:
    """Serves *worker* until it is stopped or signalled; see Worker.run."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("Worker.run() needs an event loop of its own; in one that runs, await worker.serve()")
    before = threading.enumerate()
    curfew = Curfew(worker.drain_timeout.total_seconds() + _GRACE)
    with _signals(worker, curfew):
        _in_a_loop(worker)
    if not (curfew.begun and _kept_up_by_a_thread(before)):
        curfew.lift()


def _kept_up_by_a_thread(before: Sequence[threading.Thread]) -> bool:
    """Whether a thread of user code's, begun since *before*, still runs: the process would end only after it."""
    begun = [each for each in threading.enumerate() if not each.daemon and each not in before]
    deadline = monotonic.now() + _LAST_WORDS
    for thread in begun:  # those of pools have nothing left to do and end now
        thread.join(max(deadline - monotonic.now(), 0))
    return any(thread.is_alive() for thread in begun)


def _in_a_loop(worker: "Worker") -> None:
    """As asyncio.run, but threads that are still busy are left alone instead of waited for."""
    loop = asyncio.new_event_loop()
    try:
        _to_its_end(loop, worker)
    finally:
        _wind_up(loop)
        loop.close()
        bodies.dismiss(loop)


def _to_its_end(loop: asyncio.AbstractEventLoop, worker: "Worker") -> None:
    """Serves until *worker* has drained, whatever user code does to the loop; an exit of its is raised after that."""
    serving = loop.create_task(worker.serve())
    serving.add_done_callback(lambda _: loop.stop())
    leaving: BaseException | None = None
    while not serving.done():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.error("user code outside a task raised %s: the worker drains and ends", type(error).__name__)
            leaving = error
            worker.stop()
        else:
            if not serving.done():
                _log.error("user code stopped the event loop: the worker goes on")
    if leaving is not None:
        raise leaving
    serving.result()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_GRACE / 2))
    loop.run_until_complete(loop.shutdown_asyncgens())


@contextmanager
def _signals(worker: "Worker", curfew: Curfew) -> Iterator[None]:
    """While inside, the first signal stops *worker* and begins the *curfew*; the second ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    watched = os.getpid()

    def handler(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != watched:
            # A process that user code forked: it has the handler, but no worker.
            _hear_again(number, before[number])
            return
        if curfew.begun:
            # As if nobody had ever watched: whoever sent it sees the process die of it.
            _hear_again(number, signal.SIG_DFL)
            return
        curfew.begin()
        worker.stop()

    before: dict[int, Any] = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            if old is not None:
                signal.signal(number, old)


def _hear_again(number: int, by: Any) -> None:
    """The signal *number* comes once more, and is handled by *by*."""
    signal.signal(number, signal.SIG_DFL if by is None else by)
    os.kill(os.getpid(), number)
