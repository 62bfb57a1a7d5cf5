"""The whole way: a dispatcher publishes to SQS, an event source mapping polls, the real runtime client executes."""

from tests.acceptance.esm.conftest import Site
from tests.acceptance.esm.mapping import EventSourceMapping, Polled


def polled_until_completed(site: Site, mapping: EventSourceMapping, *runs: str) -> list[Polled]:
    """Every batch there was until all of *runs* had completed."""
    batches: list[Polled] = []
    while any(site.run(run_id)["status"] != "completed" for run_id in runs):
        assert len(batches) < 40
        batches.append(mapping.poll(within=60))
    return batches


def test_what_the_dispatcher_publishes_runs_on_the_function(published: Site) -> None:
    """Its messages are recognised, verify, and are settled; each body runs once."""
    runs = [published.submit() for _ in range(5)]
    batches = polled_until_completed(published, published.mapping(), *runs)

    assert [failed for batch in batches for failed in batch.failed] == []
    assert [published.marks(run_id) for run_id in runs] == [["first", "second"]] * 5
    assert published.left() == (0, 0)


def test_a_run_longer_than_its_function_goes_on_by_further_messages(published: Site) -> None:
    """C55: each hand-off is answered by the dispatcher's next message; the function sends nothing."""
    run_id = published.submit("long")
    batches = polled_until_completed(published, published.mapping(timeout=4), run_id)

    assert len(batches) > 1
    assert published.marks(run_id) == ["pause"] * 8


def test_c58_a_timed_out_run_completes_by_itself(published: Site) -> None:
    """C58: killed in mid-body, released once its claim is stale, delivered afresh, completed; no record twice."""
    run_id = published.submit("endless")
    batches = polled_until_completed(published, published.mapping(timeout=6), run_id)

    assert batches[0].invocation.kind == "timeout"
    assert published.marks(run_id) == ["first", "hang", "hang"]
