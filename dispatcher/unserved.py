"""Versions in use that nobody serves: their runs wait, and are told of everywhere, until somebody does.

They are delayed, never failed: a redeploy must cost no run anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dispatcher import routing
from dispatcher.endpoints import RelayTarget
from dispatcher.pollers import ABSENT_MS
from dispatcher.queues import Queue
from dispatcher.settings import Route
from dispatcher.store import Session, overview, served
from endpoint_sdk.wire.operating import Warned

CODE: Final = "version_unserved"

_PAGE: Final = 500
_SHOWN: Final = 5

Polled = Mapping[tuple[str, str], int]


class Serving:
    """Who serves what in a namespace, as of *now*: endpoints by their discovery, pollers by what they asked for."""

    def __init__(self, routes: Sequence[Route], targets: Sequence[RelayTarget], polled: Polled, now: int) -> None:
        self._routes = routes
        self._targets = targets
        self._polled = {pair for pair, seen_at in polled.items() if now - seen_at <= ABSENT_MS}

    def serves(self, queue: Queue) -> bool:
        """Whether anybody may execute runs of *queue*.

        A broker, and an endpoint that never answered discovery, may: only their executors know.
        """
        if (queue.workflow, queue.version) in self._polled:
            return True
        found = routing.targets_for(queue, self._routes, self._targets)
        return any(item.type != "push" or item.discovered_at is None or item.serves(queue) for item in found)

    def versions(self, namespace: str, workflow: str) -> list[str]:
        """The versions of *workflow* somebody serves."""
        within = [item for item in self._targets if item.within(namespace)]
        found = {each.version for item in within for each in item.served if each.name == workflow}
        return sorted(found | {version for name, version in self._polled if name == workflow})

    def warning(self, queue: Queue, waiting: int) -> Warned | None:
        """What to tell of *waiting* runs in *queue*, None if there are none or somebody serves them."""
        if not waiting or self.serves(queue):
            return None
        what = f"Nobody serves {queue.workflow} {queue.version}"
        waits = f"{waiting} run{' of it waits' if waiting == 1 else 's of it wait'}"
        others = self.versions(queue.namespace, queue.workflow)
        if not others:
            return Warned(
                CODE,
                f"{what}: no endpoint lists it, no poller asks for it; {waits}.",
                "Add the endpoint with `pointsman endpoint add`, or start a worker that serves it.",
            )
        return Warned(
            CODE,
            f"{what}, only {_listed(others)}; {waits}.",
            f'If the code served can continue them, declare accepts=["{queue.version}"]; else deploy it again.',
        )


def warnings(session: Session, routes: Sequence[Route], targets: Sequence[RelayTarget]) -> list[Warned]:
    """One for each queue of any namespace whose runs wait for somebody who serves their version."""
    now, found = session.now(), []
    polled: dict[str, Polled] = {}
    for row in _rows(session):
        queue = Queue.from_key(row.queue)
        if queue.namespace not in polled:
            polled[queue.namespace] = served.seen_in(session, queue.namespace)
        serving = Serving(routes, targets, polled[queue.namespace], now)
        found.append(serving.warning(queue, row.pending + row.published + row.held))
    return [warned for warned in found if warned is not None]


def _rows(session: Session) -> Iterable[overview.QueueRow]:
    seen = 0
    while page := overview.queues(session, "", limit=_PAGE, offset=seen):
        yield from page
        seen += len(page)


def _listed(versions: Sequence[str]) -> str:
    return ", ".join(versions[:_SHOWN]) + (" and more" if len(versions) > _SHOWN else "")
