"""The keys of lanes: two lanes never share one, and what stands in it can be read."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher import lane_keys
from dispatcher.lane_keys import lane_of, lane_of_call, of_workflow
from endpoint_sdk.wire.messages import Concurrency, ServedWorkflow

BY_CUSTOMER = ServedWorkflow("order", "1", concurrency=Concurrency(5, "customer"))
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


def test_a_workflow_without_a_bound_has_no_lane() -> None:
    """Nothing declared, or no concurrency: no lane."""
    assert lane_of(None, "n", "order", {}) is None
    assert lane_of(ServedWorkflow("order", "1"), "n", "order", {"customer": "a"}) is None


@given(NAMES, NAMES, NAMES)
def test_a_key_can_be_read(namespace: str, workflow: str, customer: str) -> None:
    """Namespace, workflow and tag come back from the key as they are, also those with colons and `call`."""
    lane = lane_of(BY_CUSTOMER, namespace, workflow, {"customer": customer, "x": "y"})
    assert lane is not None
    assert lane.limit == 5
    if "#" not in lane.key:
        assert of_workflow(lane.key) == (namespace, workflow, f"customer={customer}")


def test_lanes_of_calls_are_none_of_a_workflow() -> None:
    """Even in a namespace called `call` no lane of a workflow is taken for that of a call."""
    call = lane_of_call("run_1", "children:ab:0:resize", 7)
    assert (call.limit, of_workflow(call.key), lane_keys.parent_of(call.key)) == (7, None, "run_1")
    named = lane_of(BY_CUSTOMER, "call", "run_1", {"customer": "children:ab:0:resize"})
    assert named is not None
    assert of_workflow(named.key) == ("call", "run_1", "customer=children:ab:0:resize")


def test_the_longest_tags_fit_an_index() -> None:
    """A tag too long once encoded is told from others by its digest."""
    long, other = "\U0001f600" * 256, "\U0001f600" * 255
    first, second = (lane_of(BY_CUSTOMER, "n", "order", {"customer": value}) for value in (long, other))
    assert first is not None
    assert second is not None
    assert first.key != second.key
    assert len(first.key) < 100
