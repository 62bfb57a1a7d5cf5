"""The same life of a run over every route: it completes, survives a kill, refuses a zombie and a duplicate, drains."""

import json
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from tests.acceptance.routes.site import IDLE_SECONDS, PUBLISHERS, ROUTES, Function, Process, Site
from tests.faults import rig

ORDER = ["pay", "reserve", "ship"]


def names(site: Site, run_id: str) -> list[str]:
    """The task bodies that began for the run, without their executor."""
    return [line.split(":")[0] for line in site.lines(run_id)]


def test_runs_complete(one_way: Site, route: str) -> None:
    """Thirty runs complete, each recorded task having run once."""
    one_way.executor(route, "A")
    ids = [rig.submit(one_way.client, "order", version="1", input=f"o{number}") for number in range(30)]

    for number, run_id in enumerate(ids):
        run = one_way.ended(run_id, 60)
        assert run["result"] == [f"reserved o{number}", f"paid o{number}", f"shipped o{number}"]
        assert sorted(names(one_way, run_id)) == ORDER
        assert run["revision"] == 2


def test_a_killed_executor_is_recovered_from(one_way: Site, route: str) -> None:
    """kill -9 while runs are held: each is released, redelivered by the same route and completed elsewhere."""
    a = one_way.executor(route, "A")
    # A sandbox takes one batch at a time.
    held = Function.SANDBOXES if route == "lambda" else 5
    ids = [rig.submit(one_way.client, "gated", version="1", input=None) for _ in range(held)]
    for run_id in ids:
        one_way.saw(run_id, "hold")
    a.kill()
    one_way.executor(route, "B")
    for run_id in ids:
        one_way.held_by("B", run_id)
    one_way.gate.touch()

    for run_id in ids:
        run = one_way.ended(run_id, 40)
        assert run["result"] == ["A", "B", "B"], "what was recorded stays"
        assert Counter(names(one_way, run_id)) == {"first": 1, "hold": 2, "held": 1, "last": 1}


def test_a_zombie_is_refused(one_way: Site, route: str) -> None:
    """An executor stopped past the idle timeout and woken starts no task body and writes nothing."""
    a = one_way.executor(route, "A")
    run_id = rig.submit(one_way.client, "gated", version="1", input=None)
    one_way.saw(run_id, "hold")
    a.send(signal.SIGSTOP)
    one_way.executor(route, "B")
    one_way.held_by("B", run_id)
    one_way.gate.touch()
    run = one_way.ended(run_id, 40)
    a.send(signal.SIGCONT)

    again = one_way.ended(rig.submit(one_way.client, "gated", version="1", input=None), 40)
    assert again["status"] == "completed"
    assert run["result"] == ["A", "B", "B"]
    assert "last:A" not in one_way.lines(run_id)
    assert "Traceback" not in a.output()


@pytest.mark.parametrize("route", PUBLISHERS, indirect=True)
def test_a_duplicate_delivery_is_settled(one_way: Site, route: str, redis_url: str, sqs: Any) -> None:
    """C07, C13: each message twice, some of them again after the end: no second execution, nothing left behind."""
    ids = [rig.submit(one_way.client, "order", version="1", input=f"o{number}") for number in range(10)]
    doubled = _double_redis(redis_url, ids) if route == "redis" else _double_sqs(one_way, sqs, ids)
    one_way.executor(route, "A")
    for run_id in ids:
        assert one_way.ended(run_id, 40)["status"] == "completed"
    doubled()
    later = rig.submit(one_way.client, "order", version="1", input="later")
    assert one_way.ended(later, 40)["status"] == "completed"

    for run_id in ids:
        assert sorted(names(one_way, run_id)) == ORDER


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "lambda"], indirect=True)
def test_drain_keeps_the_claim_and_finishes(one_way: Site, route: str) -> None:
    """C15: after SIGTERM the claim is held for longer than the idle timeout, and the task body ends where it began."""
    a = one_way.executor(route, "A")
    assert isinstance(a, Process)
    run_id = rig.submit(one_way.client, "gated", version="1", input=None)
    one_way.saw(run_id, "hold")
    a.send(signal.SIGTERM)
    threading.Event().wait(IDLE_SECONDS * 1.5)
    assert rig.run_of(one_way.client, run_id)["revision"] == 1, one_way.told(run_id)
    one_way.executor(route, "B")
    one_way.gate.touch()
    run = one_way.ended(run_id, 40)

    # uvicorn raises the signal again once it has shut down.
    assert a.process.wait(30) in ({0, -signal.SIGTERM} if route == "push" else {0}), a.output()
    assert run["result"][:2] == ["A", "A"]
    assert names(one_way, run_id).count("hold") == 1
    assert run["kills"] == 0


def test_a_released_run_is_seen_by_every_route_at_once(every_way: Site) -> None:
    """Four executors, one a route, hold what they can; two are killed, and the others complete all of it."""
    routes = {"A": "push", "R": "redis", "S": "sqs", "P": "poll"}
    executors = {who: every_way.executor(route, who) for who, route in routes.items()}
    ids = [rig.submit(every_way.client, "gated", version="1", input=None) for _ in range(24)]
    holders = {run_id: every_way.saw(run_id, "hold", 60) for run_id in ids}
    for who in "RA":
        executors[who].kill()
    every_way.gate.touch()

    for run_id in ids:
        run = every_way.ended(run_id, 60)
        assert run["status"] == "completed"
        assert run["result"][1] in ("SP" if holders[run_id] in "RA" else holders[run_id])
        assert names(every_way, run_id).count("first") == 1
    assert {"A", "R"} < set(holders.values()), "the killed held some, and not all"


def _double_redis(url: str, ids: list[str]) -> Any:
    import redis

    client = redis.Redis.from_url(url)
    key = "pointsman:default:order:1:default"
    members = rig.until(lambda: len(found := client.zrange(key, 0, -1)) == len(ids) and found, 30, "the messages")
    # The same delivery under another signature: to Redis another member.
    copies = {json.dumps({**json.loads(member), "copy": True}): 0 for member in members}
    client.zadd(key, copies)
    return lambda: client.zadd(key, copies)


def _double_sqs(site: Site, sqs: Any, ids: list[str]) -> Any:
    url = site.brokers.queue_url

    def waiting() -> bool:
        attributes = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        return int(attributes["Attributes"]["ApproximateNumberOfMessages"]) >= len(ids)

    rig.until(waiting, 30, "the messages")
    taken: list[dict[str, Any]] = []
    while len({message["MessageId"] for message in taken}) < len(ids):
        answer = sqs.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"]
        )
        taken += answer.get("Messages", [])
    unique = {message["MessageId"]: message for message in taken}.values()

    def send() -> None:
        for message in unique:
            attributes = {
                name: {"DataType": "String", "StringValue": value["StringValue"]}
                for name, value in message["MessageAttributes"].items()
            }
            sqs.client.send_message(QueueUrl=url, MessageBody=message["Body"], MessageAttributes=attributes)

    send()
    return send
