"""Runs delivered by SQS to a Lambda function: the real runtime client behind a small event source mapping."""

import threading

import pytest

from endpoint_sdk.wire import signature
from tests.acceptance.esm.conftest import AUDIENCE, Site
from tests.acceptance.esm.mapping import Polled
from tests.faults.rig import until
from tests.unit.sdk.dispatcher_double import DispatcherDouble
from tests.unit.sdk.http_dispatcher import serving


def test_a_batch_of_runs_completes(site: Site) -> None:
    """Every message is claimed, executed and deleted; the answer says explicitly that nothing failed."""
    runs = [site.deliver()[0] for _ in range(5)]
    polled = site.mapping().poll(at_least=5)

    assert polled.invocation.payload == {"batchItemFailures": []}
    assert [site.run(run_id)["status"] for run_id in runs] == ["completed"] * 5
    assert [site.marks(run_id) for run_id in runs] == [["first", "second"]] * 5
    assert site.left() == (0, 0)


def test_c06_a_slow_queue_makes_no_message_too_old(site: Site) -> None:
    """C06: consumed 20 minutes after sending, judged at SentTimestamp; a stale revision is still refused."""
    run_id, first = site.deliver(age=1_200)
    second = site.send(run_id, age=1_200)
    mapping = site.mapping(age=1_200)
    polled = mapping.poll(at_least=2)

    assert sorted(polled.deleted) == sorted([first, second])
    assert site.run(run_id)["status"] == "completed"
    assert site.marks(run_id) == ["first", "second"]


def test_c06_a_signature_older_than_its_message_is_refused(site: Site) -> None:
    """C06: the queue's own time is what excuses age: something captured and sent again is too old."""
    run_id, message_id = site.deliver(age=1_200)
    polled = site.mapping().poll()

    assert polled.failed == [message_id]
    assert site.run(run_id)["revision"] == 0


def test_c51_a_batch_that_outlives_its_visibility_runs_once(site: Site) -> None:
    """C51: the copies that come while the first batch still runs are refused by the claims, and run nothing."""
    site.queue = site.sqs.queue(visibility=5)
    runs = [site.deliver("waiting")[0] for _ in range(2)]
    slow, other = site.mapping(timeout=60), site.mapping(timeout=60)
    first: list[Polled] = []
    polling = threading.Thread(target=lambda: first.append(slow.poll(at_least=2)))
    polling.start()
    until(lambda: all(site.marks(run_id) for run_id in runs), what="both bodies")
    copies = other.poll(at_least=2, within=30)
    still = [site.run(run_id)["status"] for run_id in runs]
    site.let_go()
    polling.join(30)

    assert copies.failed == []
    assert still == ["running"] * 2
    assert first[0].failed == []
    assert [site.marks(run_id) for run_id in runs] == [["wait"]] * 2
    assert [site.run(run_id)["status"] for run_id in runs] == ["completed"] * 2


def test_c53_a_batch_of_failures_is_reported_not_raised(site: Site) -> None:
    """C53: every id is returned, nothing is deleted, nothing was claimed."""
    sent = [site.deliver(secret=signature.new_secret()) for _ in range(3)]
    polled = site.mapping().poll(at_least=3)

    assert polled.invocation.kind == "response"
    assert [each["itemIdentifier"] for each in polled.invocation.payload["batchItemFailures"]] == polled.received
    assert sorted(polled.received) == sorted(message_id for _, message_id in sent)
    assert {site.run(run_id)["revision"] for run_id, _ in sent} == {0}
    assert site.left() == (0, 3)


def test_c54_a_failed_message_comes_again_after_its_own_backoff(site: Site) -> None:
    """C54: in seconds, where the queue's visibility timeout is ten minutes."""
    run_id, message_id = site.deliver()
    failed = site.mapping("functions.without_secret").poll()
    again = site.mapping().poll(within=30)

    assert failed.failed == [message_id]
    assert again.received == again.deleted == [message_id]
    assert site.run(run_id)["status"] == "completed"


def test_c54_without_the_means_a_failed_message_waits_and_the_log_says_so_once(site: Site) -> None:
    """C54: no SQS to be reached: the report is what counts, and comes all the same."""
    mapping = site.mapping(environment={"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:9"})
    for _ in range(2):
        _, message_id = site.deliver(secret=signature.new_secret())
        assert mapping.poll().failed == [message_id]

    assert site.output.count("failed messages cannot be put off") == 1


def test_an_unreachable_dispatcher_is_reported_in_time(site: Site) -> None:
    """The function gives up before its timeout: killed, the whole batch would wait for the visibility timeout."""
    _, message_id = site.deliver()
    polled = site.mapping(timeout=4, environment={"POINTSMAN_URL": "http://127.0.0.1:9"}).poll()

    assert (polled.invocation.kind, polled.failed) == ("response", [message_id])


@pytest.mark.parametrize("call", ["claim", "progress"])
def test_a_dispatcher_that_hangs_is_reported_in_time(site: Site, call: str) -> None:
    """It takes the call and says nothing: the last wait ends, and the refresher's, while there is time to answer."""
    let_go = threading.Event()
    with serving(DispatcherDouble(version="1")) as dispatcher:
        dispatcher.double.before[call] = lambda: let_go.wait(30)
        message_id = site.send_delivery(dispatcher.double.delivery(url=dispatcher.url, audience=AUDIENCE))
        # Less than the function has, so that a busy machine is no cause of a timeout.
        polled = site.mapping(timeout=8, environment={"POINTSMAN_MAX_DURATION": "5"}).poll()
        let_go.set()

    assert (polled.invocation.kind, polled.failed) == ("response", [message_id])


def test_one_bad_message_fails_alone(site: Site) -> None:
    """Settled messages of the batch are deleted, the others stay, each with its own backoff."""
    good, good_message = site.deliver()
    _, forged = site.deliver(secret=signature.new_secret())
    _, unknown = site.deliver(workflow="unheard-of")
    polled = site.mapping().poll(at_least=3)

    assert polled.deleted == [good_message]
    assert sorted(polled.failed) == sorted([forged, unknown])
    assert site.run(good)["status"] == "completed"
    assert site.left() == (0, 2)


def test_c55_the_function_never_sends(site: Site) -> None:
    """C55: a run longer than its function is handed off; the queue stays empty until the dispatcher sends again."""
    run_id, _ = site.deliver("long")
    mapping = site.mapping(timeout=4)
    invocations = 0
    while True:
        polled = mapping.poll()
        invocations += 1
        assert polled.failed == []
        assert site.left() == (0, 0)
        if site.run(run_id)["status"] == "completed":
            break
        assert site.run(run_id)["status"] == "queued"
        assert invocations < 20
        site.send(run_id)

    assert invocations > 1
    assert site.marks(run_id) == ["pause"] * 8


def test_c56_a_socket_that_died_while_frozen_costs_nothing(site: Site) -> None:
    """C56: frozen after a batch, the dispatcher hangs up, thawed with the next: its first call succeeds."""
    mapping = site.mapping(freezing=True)
    with serving(DispatcherDouble(version="1")) as dispatcher:
        for _ in range(2):
            double = dispatcher.double = DispatcherDouble(version="1")
            site.send_delivery(double.delivery(url=dispatcher.url, audience=AUDIENCE))
            assert mapping.poll().failed == []
            assert double.result == b'"second"'
            assert len(double.sent("claim")) == 1
            assert dispatcher.hang_up() == 1


def test_c58_a_timed_out_run_is_claimed_again_once_its_claim_is_stale(site: Site) -> None:
    """C58: the message's own copy is refused while the claim lives; the next delivery finds the run free at once."""
    site.queue = site.sqs.queue(visibility=3)
    run_id, message_id = site.deliver("endless")
    mapping = site.mapping(timeout=6)
    killed = mapping.poll()
    copy = mapping.poll()
    until(lambda: site.run(run_id)["status"] == "queued", what="the release of the stale claim")
    site.send(run_id)
    fresh = mapping.poll()

    assert (killed.invocation.kind, killed.failed) == ("timeout", [message_id])
    assert copy.deleted == [message_id]
    assert fresh.failed == []
    assert site.run(run_id)["status"] == "completed"
    assert site.marks(run_id) == ["first", "hang", "hang"]


def test_a_kill_in_mid_batch_runs_nothing_recorded_twice(site: Site) -> None:
    """The whole batch comes again: what had completed is refused and deleted, no body ran a second time."""
    site.queue = site.sqs.queue(visibility=5)
    runs = [site.deliver()[0] for _ in range(3)]
    hanging, _ = site.deliver("endless")
    mapping = site.mapping(timeout=6)
    killed = mapping.poll(at_least=4)
    again = mapping.poll(at_least=4)

    assert killed.invocation.kind == "timeout"
    assert sorted(again.deleted) == sorted(killed.failed)
    assert [site.run(run_id)["status"] for run_id in runs] == ["completed"] * 3
    assert [site.marks(run_id) for run_id in runs] == [["first", "second"]] * 3
    assert site.marks(hanging) == ["first", "hang"]


def test_a_fifo_group_stops_at_its_first_failure(site: Site) -> None:
    """In order within a group; behind the failure nothing is started, and other groups are untouched."""
    site.queue = site.sqs.queue(fifo=True, visibility=600, ContentBasedDeduplication="false")
    head, head_message = site.deliver(group="a")
    _, forged = site.deliver(group="a", secret=signature.new_secret())
    behind, behind_message = site.deliver(group="a")
    other, other_message = site.deliver(group="b")
    polled = site.mapping().poll(at_least=4)

    assert sorted(polled.deleted) == sorted([head_message, other_message])
    assert polled.failed == [forged, behind_message]
    assert [site.run(run_id)["status"] for run_id in (head, other)] == ["completed"] * 2
    assert site.run(behind)["revision"] == 0


def test_records_without_time_are_left_for_the_next_batch(site: Site) -> None:
    """One place and little time: the first run is handed off in time, the others are not even claimed."""
    sent = [site.deliver("long") for _ in range(4)]
    polled = site.mapping("functions.one_at_a_time", timeout=4).poll(at_least=4)
    untouched = [run_id for run_id, _ in sent if site.run(run_id)["revision"] == 0]

    assert polled.invocation.kind == "response"
    assert len(polled.failed) == len(untouched) >= 2
    assert {site.run(run_id)["status"] for run_id, _ in sent} <= {"queued", "completed"}


# --- beside a handler of the user's ----------------------------------------------------------------------------------
def test_a_mixed_batch_goes_to_both(site: Site) -> None:
    """Ours first, then the user's handler with only its own; the failures of both are reported."""
    run_id, ours = site.deliver()
    _, forged = site.deliver(secret=signature.new_secret())
    good, bad = site.send_foreign("good"), site.send_foreign("bad")
    polled = site.mapping("functions.over").poll(at_least=4)

    assert sorted(polled.deleted) == sorted([ours, good])
    assert sorted(polled.failed) == sorted([forged, bad])
    assert site.run(run_id)["status"] == "completed"
    assert sorted(site.marks("theirs")) == ["bad", "good"]


def test_the_users_exception_stays_an_exception(site: Site) -> None:
    """Lambda sees it and keeps the whole batch; ours is settled already, and a copy of it runs nothing."""
    site.queue = site.sqs.queue(visibility=3)
    run_id, ours = site.deliver()
    theirs = site.send_foreign("raise")
    mapping = site.mapping("functions.over")
    polled = mapping.poll(at_least=2)
    assert (polled.invocation.kind, polled.invocation.payload["errorType"]) == ("error", "ValueError")
    assert sorted(polled.failed) == sorted([ours, theirs])
    assert site.run(run_id)["status"] == "completed"
    mapping.poll(at_least=2)

    assert site.marks(run_id) == ["first", "second"]


@pytest.mark.parametrize(("body", "kept"), [("fine", False), ("done", True)])
def test_an_answer_without_a_report_is_read_as_lambda_reads_it(site: Site, body: str, kept: bool) -> None:
    """None is success; an answer that is no report fails the user's messages, and none of ours."""
    _, ours = site.deliver()
    theirs = site.send_foreign(body)
    polled = site.mapping("functions.over").poll(at_least=2)

    assert ours in polled.deleted
    assert polled.failed == ([theirs] if kept else [])


def test_an_async_handler_takes_its_part_of_a_mixed_batch(site: Site) -> None:
    """`async def` handlers are run, and their failures merged."""
    _, ours = site.deliver()
    theirs = site.send_foreign("any")
    polled = site.mapping("functions.over_async").poll(at_least=2)

    assert (polled.deleted, polled.failed) == ([ours], [theirs])
    assert site.marks("theirs") == ["any"]


def test_a_batch_of_the_users_alone_passes_through(site: Site) -> None:
    """Without a message of ours the answer is the user's own, None included."""
    site.send_foreign("fine")
    polled = site.mapping("functions.over").poll()

    assert polled.invocation.payload is None
    assert polled.failed == []


def test_without_a_handler_foreign_messages_stay_in_the_queue(site: Site) -> None:
    """Nothing is lost: they are reported as failures, and the log says what to do."""
    run_id, ours = site.deliver()
    theirs = site.send_foreign("fine")
    polled = site.mapping().poll(at_least=2)

    assert (polled.deleted, polled.failed) == ([ours], [theirs])
    assert site.run(run_id)["status"] == "completed"
    assert "@endpoint.lambda_handler" in site.output
