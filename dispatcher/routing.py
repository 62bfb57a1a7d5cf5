"""Which endpoints may get a queue's deliveries, in order of preference. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from dispatcher.endpoints import RelayTarget
from dispatcher.queues import Queue
from dispatcher.settings import Route


def targets_for(queue: Queue, routes: Sequence[Route], targets: Sequence[RelayTarget]) -> list[RelayTarget]:
    """The endpoints of *queue*: those its first matching route names, in that order, else all that serve it.

    *targets* come in order of preference. A route's endpoint gets the queue whatever discovery says of it: only its own
    answer can tell.
    """
    route = next((route for route in routes if _matches(route, queue)), None)
    if route is None:
        return [target for target in targets if target.serves(queue)]
    # Of two with one name the preferred one counts: a namespace cannot shadow an endpoint of the file.
    by_name = {target.name: target for target in reversed(targets) if target.within(queue.namespace)}
    return [by_name[name] for name in route.publish if name in by_name]


def _matches(route: Route, queue: Queue) -> bool:
    return _is_any(queue.workflow, route.workflows) and _is_any(queue.pool, route.pools)


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    # A bracket stands for itself: only * and ? are patterns of ours.
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)
