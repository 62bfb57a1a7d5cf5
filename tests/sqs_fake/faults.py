"""What goes wrong in the fake, because a test asked for it."""

import threading
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["fail", "lose_reply", "hang", "entry"]

ANY: Final = "*"


@dataclass
class Fault:
    """One thing to go wrong, *times* times, at calls of *action* ("*" is any)."""

    kind: Kind
    action: str
    times: int
    code: str = ""
    status: int = 400


class Faults:
    """The faults that are still to come; every method may be called while the fake serves."""

    def __init__(self) -> None:
        self.reorder = False
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._lost = 0
        self._doubled = 0

    def fail(self, action: str, code: str, status: int = 400, times: int = 1) -> None:
        """The next *times* calls of *action* are refused with *code* and *status*, and not performed."""
        self._add(Fault("fail", action, times, code, status))

    def lose_reply(self, action: str = ANY, times: int = 1) -> None:
        """The next *times* calls of *action* are performed, and their connections closed without an answer."""
        self._add(Fault("lose_reply", action, times))

    def hang(self, action: str = ANY, times: int = 1) -> None:
        """The next *times* calls of *action* are performed and not answered until the fake's `release` or `stop`."""
        self._add(Fault("hang", action, times))

    def fail_entries(self, action: str, code: str = "InternalError", times: int = 1) -> None:
        """The next *times* entries of batches of *action* are not performed and land in Failed[] with *code*."""
        self._add(Fault("entry", action, times, code))

    def lose(self, count: int = 1) -> None:
        """The next *count* messages are accepted and vanish."""
        with self._lock:
            self._lost += count

    def duplicate(self, count: int = 1) -> None:
        """The next *count* messages to standard queues are stored twice."""
        with self._lock:
            self._doubled += count

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self.reorder = False
            self._faults.clear()
            self._lost = self._doubled = 0

    def next(self, action: str, *kinds: Kind) -> Fault | None:
        """The next fault of these kinds for a call of *action*, used up."""
        with self._lock:
            for fault in self._faults:
                if fault.kind in kinds and fault.action in (ANY, action):
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
                    return fault
            return None

    def copies(self, fifo: bool) -> int:
        """How many copies of the message being sent are stored: 1, unless a test asked for none or two."""
        with self._lock:
            if self._lost:
                self._lost -= 1
                return 0
            if self._doubled and not fifo:
                self._doubled -= 1
                return 2
            return 1

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)
