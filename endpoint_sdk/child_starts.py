"""Starts the children of a call, some hundreds at a time, and records a start that is refused for good."""

from endpoint_sdk import failures
from endpoint_sdk.child_call import StartCall, started
from endpoint_sdk.errors import RecordRefused
from endpoint_sdk.ledger import Ledger
from endpoint_sdk.pending_call import Outcome
from endpoint_sdk.port import Port
from endpoint_sdk.wait_call import refused
from endpoint_sdk.wire import clock, messages


class Starter:
    """Starts on behalf of every call of one run; the dispatcher records what has started."""

    def __init__(self, port: Port, ledger: Ledger) -> None:
        self._port = port
        self._ledger = ledger

    async def outcome(self, call: StartCall) -> Outcome:
        """The outcome of *call*: all of it has started, or something was refused.

        Where only some of many children have started, the next claim starts from the first again: each is found by its
        place in the call.
        """
        first: str | None = None
        for chunk in call.chunks():
            await self._ledger.boundary(call)
            try:
                children = await self._port.start_children(chunk)
            except RecordRefused as refusal:
                return await self._refused(call, failures.refused(refusal))
            error = next((child.error for child in children if child.error is not None), None)
            if error is not None:
                return await self._refused(call, error)
            first = first or children[0].id
        return started(first if call.kind == "child" else None)

    async def _refused(self, call: StartCall, error: messages.ErrorObject) -> Outcome:
        now = self._ledger.now()
        record = await self._ledger.write(call, self._ledger.ended(call, 1, now, error=error))
        return Outcome(None, refused(record), clock.known_ms(record.finished_at))
