"""An executor in small, for the state machine of waits: what it has been told, and what it asks for next."""

from collections.abc import Sequence

from endpoint_sdk.wire.messages import Grant, Progressed, Record, WaitFor
from tests.integration.world import Claim, World


class Executor:
    """The holder of a claim, which does what the contract says: it waits only for what it has no record of."""

    def __init__(self, world: World, grant: Grant) -> None:
        self.world = world
        self.claim = Claim(grant.run.id, grant.revision, grant.claim_id, grant.token)
        self.known = {self._address(record) for record in grant.records}
        self.last_seq = max((record.seq for record in grant.records), default=0)
        self.signal_seq = grant.signal_seq
        self.stop = grant.stop

    def wants(self, kinds: Sequence[str]) -> list[WaitFor]:
        """The next waits of these kinds: `sleep`, `retry`, or an event by its name."""
        found = []
        for kind in kinds:
            if kind == "sleep":
                found.append(self.world.sleep(60_000, ordinal=self._next("sleep", "rest")))
            elif kind == "retry":
                found.append(self.world.retry(30_000))
            elif kind == "late":
                found.append(self.world.event("late", self._next("event", "late"), within_ms=90_000))
            else:
                found.append(self.world.event(kind, self._next("event", kind)))
        return found

    def hears(self, answer: Progressed) -> bool:
        """Whether the answer brought an outcome it lacked."""
        new = [signal for signal in answer.signals if signal.seq > self.last_seq]
        self.known |= {self._address(signal) for signal in new}
        self.last_seq = max([self.last_seq, *(signal.seq for signal in new)])
        self.signal_seq = answer.signal_seq
        self.stop = answer.stop
        return bool(new)

    def _next(self, kind: str, name: str) -> int:
        return len([known for known in self.known if known[:2] == (kind, name)])

    def _address(self, record: Record) -> tuple[str, str, int]:
        return (record.kind, record.name, record.ordinal)
