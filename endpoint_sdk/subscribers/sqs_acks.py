"""Says in the background what became of messages: deletes and changes of their hold, ten to a call, in a thread.

Failing to say it costs a duplicate, which its run's claim refuses: nothing here raises.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from endpoint_sdk.subscribers import sqs_client
from endpoint_sdk.subscribers.sqs_visibility import BATCH, Hold, Verdict

_log: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_PAUSE: Final = 0.2
# The message is somebody else's by now, or gone, or was hidden for as long as it may be.
_STALE: Final = {"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"}


class Ack(Struct, eq=False):
    """One thing to say about the message of *handle*: hide it for *seconds*, or delete it when that is None.

    *ready* is called right before it is hidden, in the thread; *said* afterwards, whatever came of it.
    """

    handle: str
    seconds: int | None
    ready: Callable[[], None]
    said: Callable[[], None]


class Acks:
    """Sends acknowledgements for one queue through *client*, a boto3 SQS client, in the order they were given."""

    def __init__(self, client: Any, queue_url: str) -> None:
        self._client = client
        self._url = queue_url
        self._waiting: queue.SimpleQueue[Ack | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def send(self, handle: str, seconds: int | None, ready: Callable[[], None], patience: float) -> None:
        """Says it; waits at most *patience* seconds for SQS's answer and leaves the rest to the thread.

        After `close` nothing is said.
        """
        if self._closed:
            return
        loop, said = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(said.set)

        self._waiting.put(Ack(handle, seconds, ready, tell))
        self._start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(said.wait(), patience)

    def close(self) -> threading.Thread | None:
        """The thread ends when everything given was said; it is returned if there is one."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
        return thread

    def change(self, holds: Sequence[Hold]) -> dict[str, Verdict]:
        """Hides up to ten messages, each for its seconds; the verdict on each. Raises what boto3 raises."""
        entries = [
            {"Id": str(number), "ReceiptHandle": hold.handle, "VisibilityTimeout": hold.seconds}
            for number, hold in enumerate(holds)
        ]
        answer = self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
        return _verdicts([hold.handle for hold in holds], answer)

    def delete(self, handles: Sequence[str]) -> dict[str, Verdict]:
        """Deletes up to ten messages; the verdict on each. Raises what boto3 raises."""
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        answer = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
        return _verdicts(handles, answer)

    def give_back(self, handles: Sequence[str]) -> None:
        """Up to ten messages may be received by somebody else at once. Blocks; never raises."""
        try:
            self.change([Hold(handle, 0) for handle in handles])
        except Exception as error:
            _log.warning("messages come again only when their hold ends: %s", sqs_client.code(error))

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pointsman-sqs-acks", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = self._gather(first)
            for deleting in (True, False):
                if kind := [ack for ack in batch if (ack.seconds is None) is deleting]:
                    self._say(kind, deleting)
            if last:
                return

    def _gather(self, first: Ack) -> tuple[list[Ack], bool]:
        batch = [first]
        while len(batch) < BATCH:
            try:
                ack = self._waiting.get_nowait()
            except queue.Empty:
                break
            if ack is None:
                return batch, True
            batch.append(ack)
        return batch, False

    def _say(self, batch: list[Ack], deleting: bool) -> None:
        if not deleting:
            for ack in batch:
                ack.ready()
        left = {ack.handle: ack for ack in batch}
        why = "InternalError"
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)  # in a thread of our own
            try:
                verdicts = self._call(list(left.values()), deleting)
            except Exception as error:
                why = sqs_client.code(error)
                break  # the client has tried again by itself
            left = {handle: ack for handle, ack in left.items() if verdicts.get(handle) == "failed"}
            if not left:
                break
        if left:
            _log.warning("messages may come again: %s", why, extra={"count": len(left)})
        for ack in batch:
            ack.said()

    def _call(self, batch: list[Ack], deleting: bool) -> dict[str, Verdict]:
        if deleting:
            return self.delete([ack.handle for ack in batch])
        return self.change([Hold(ack.handle, ack.seconds or 0) for ack in batch])


def _verdicts(handles: Sequence[str], answer: Any) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = dict.fromkeys(handles, "failed")
    for entry in answer.get("Successful", ()):
        verdicts[handles[int(entry["Id"])]] = "held"
    for entry in answer.get("Failed", ()):
        stale = str(entry.get("Code")).rpartition(".")[2] in _STALE
        verdicts[handles[int(entry["Id"])]] = "lost" if stale else "failed"
    return verdicts
