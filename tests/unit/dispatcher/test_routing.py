"""Which endpoints a queue's deliveries go to."""

from dispatcher import routing
from dispatcher.endpoints import RelayTarget
from dispatcher.queues import Queue
from dispatcher.settings import Route
from endpoint_sdk.wire.messages import ServedWorkflow
from publishers.base import Target

ORDER = Queue("default", "order", "1", "default")


def target(name: str, *served: ServedWorkflow, namespace: str | None = None) -> RelayTarget:
    return RelayTarget(
        name=name,
        namespace=namespace,
        target=Target(name, f"https://{name}", "generic", ()),
        max_in_flight=50,
        served=list(served),
        order=0,
        endpoint_id=f"ep_{name}",
        discovered_at=None,
    )


def names(queue: Queue, routes: list[Route], targets: list[RelayTarget]) -> list[str]:
    return [found.name for found in routing.targets_for(queue, routes, targets)]


def test_without_a_route_discovery_decides() -> None:
    """Endpoints that list the workflow and version, or accept it, in order of preference."""
    targets = [
        target("b", ServedWorkflow("order", "1")),
        target("old", ServedWorkflow("order", "0")),
        target("new", ServedWorkflow("order", "2", ["1"])),
        target("other", ServedWorkflow("refund", "1")),
        target("a", ServedWorkflow("order", "1")),
        target("bare"),
    ]
    assert names(ORDER, [], targets) == ["b", "new", "a"]


def test_a_route_decides_before_discovery() -> None:
    """The route's publishers in its order, whatever discovery lists of them."""
    targets = [target("a", ServedWorkflow("order", "1")), target("b"), target("c", ServedWorkflow("order", "1"))]
    assert names(ORDER, [Route(publish=("c", "b"))], targets) == ["c", "b"]


def test_brackets_stand_for_themselves() -> None:
    """In a pattern only the asterisk and the question mark stand for something else."""
    routes = [Route(workflows=("order[1]*",), pools=("[]",), publish=("a",))]
    assert names(Queue("default", "order[1]-x", "1", "[]"), routes, [target("a")]) == ["a"]
    assert names(Queue("default", "order1", "1", "[]"), routes, [target("a")]) == []


def test_the_first_matching_route_wins() -> None:
    """Workflow and pool both have to match one of the route's patterns, case and all."""
    targets = [target(name) for name in "abcd"]
    routes = [
        Route(workflows=("Order", "ord"), publish=("a",)),
        Route(workflows=("ord*",), pools=("gpu",), publish=("b",)),
        Route(workflows=("refund", "ord*"), pools=("g?u", "default"), publish=("c",)),
        Route(publish=("d",)),
    ]
    assert names(ORDER, routes, targets) == ["c"]
    assert names(ORDER._replace(pool="gpu"), routes, targets) == ["b"]
    assert names(ORDER._replace(workflow="Order"), routes, targets) == ["a"]
    assert names(ORDER._replace(workflow="mail"), routes, targets) == ["d"]


def test_a_route_to_unknown_publishers_leads_nowhere() -> None:
    """A matching route is final: a queue it sends to nobody known is not sent elsewhere."""
    targets = [target("a", ServedWorkflow("order", "1"))]
    assert names(ORDER, [Route(publish=("gone",))], targets) == []


def test_namespaces_are_kept_apart() -> None:
    """An endpoint of another namespace is never chosen, by route or discovery; one of none serves all."""
    served = ServedWorkflow("order", "1")
    targets = [
        target("theirs", served, namespace="theirs"),
        target("ours", served, namespace="default"),
        target("all", served),
    ]
    assert names(ORDER, [], targets) == ["ours", "all"]
    assert names(ORDER, [Route(publish=("theirs", "ours"))], targets) == ["ours"]
    assert names(ORDER._replace(namespace="theirs"), [], targets) == ["theirs", "all"]


def test_a_name_in_two_namespaces_is_each_ones_own() -> None:
    """A route that names an endpoint means the one the run's namespace can see."""
    targets = [target("same", namespace="theirs"), target("same", namespace="default")]
    [found] = routing.targets_for(ORDER, [Route(publish=("same",))], targets)
    assert found.namespace == "default"


def test_a_namespace_does_not_shadow_the_file() -> None:
    """Of two endpoints with the name a route gives, the preferred one gets the queue."""
    targets = [target("orders"), target("orders", namespace="default")]
    [found] = routing.targets_for(ORDER, [Route(publish=("orders",))], targets)
    assert found.namespace is None
