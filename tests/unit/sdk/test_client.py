"""Both clients against a scripted dispatcher: what is sent, what is sent again, what comes of each answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from endpoint_sdk import AsyncClient, Client, Run, client_flows, workflow
from endpoint_sdk.errors import ConfigurationError, Conflict, PayloadError, PointsmanError, RunCancelled, RunFailed
from tests.unit.sdk.peer import Peer, answering, cut_off, serving, silent
from tests.unit.sdk.scripted import RUN_ID, do, refuses, requests, run_view, says, submitted

AnyClient = Client | AsyncClient
Connect = Callable[..., AnyClient]


@workflow("double", version="2")
async def double(run: Run, number: int) -> int:
    """A workflow with an input."""
    return number * 2


@workflow("tick")
async def tick(run: Run) -> str:
    """A workflow without an input."""
    return "tock"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from the machine the tests run on, and repeats come quickly."""
    for name in ("POINTSMAN_URL", "POINTSMAN_API_KEY", "POINTSMAN_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_flows, "_FIRST_PAUSE", 0.001)


@pytest.fixture(params=[Client, AsyncClient])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes clients of one kind for a peer."""
    made: list[AnyClient] = []

    def make(peer: Peer, **options: Any) -> AnyClient:
        options = {"url": peer.url.removesuffix("/p"), "api_key": "pmk_x", "timeout": timedelta(seconds=10)} | options
        client: AnyClient = request.param(**options)
        made.append(client)
        return client

    yield make
    for client in made:
        await do(client.close)


async def test_starting_a_run(connect: Connect) -> None:
    """A start submits workflow, version and encoded input, and returns a handle of the run."""
    async with serving(answering(submitted())) as peer:
        handle = await do(connect(peer).start, double, 21)
    assert (handle.id, handle.created) == (RUN_ID, True)
    [(line, body)] = requests(peer)
    assert line == "POST /v1/runs"
    assert body.pop("requestId").startswith("req_")
    assert body == {"workflow": "double", "version": "2", "input": 21, "priority": 5}
    assert b"authorization: Bearer pmk_x\r\n" in peer.requests[0][0]


async def test_starting_with_everything(connect: Connect) -> None:
    """Every option of a start is in the request."""
    async with serving(answering(submitted(created=False))) as peer:
        handle = await do(
            connect(peer).start,
            double,
            1,
            idempotency_key="k",
            delay=timedelta(milliseconds=1.5),
            priority=9,
            pool="gpu",
            tags={"a": "b"},
        )
    assert not handle.created
    [(_, body)] = requests(peer)
    assert {
        "idempotencyKey": "k",
        "delayMs": 2,
        "priority": 9,
        "pool": "gpu",
        "tags": {"a": "b"},
    }.items() <= body.items()


async def test_starting_by_name(connect: Connect) -> None:
    """A workflow of another code base is started by its name; its version is the dispatcher's to choose or given."""
    async with serving(answering(submitted())) as peer:
        client = connect(peer)
        await do(client.start, "elsewhere", {"a": [1]})
        await do(client.start, "elsewhere", version="7")
    first, second = (body for _, body in requests(peer))
    assert (first["input"], "version" in first) == ({"a": [1]}, False)
    assert (second["input"], second["version"]) == (None, "7")


async def test_starting_at_a_time(connect: Connect) -> None:
    """A datetime is sent in UTC; one without a time zone is refused before anything is sent."""
    async with serving(answering(submitted())) as peer:
        client = connect(peer)
        east = datetime(2027, 1, 1, 2, 0, tzinfo=timezone(timedelta(hours=2)))
        await do(client.start, tick, delay=east)
        with pytest.raises(ConfigurationError, match="time zone"):
            await do(client.start, tick, delay=east.replace(tzinfo=None))
    [(_, body)] = requests(peer)
    assert body["dueAt"] == "2027-01-01T00:00:00.000Z"


async def test_inputs_that_cannot_be_sent(connect: Connect) -> None:
    """Input that is not JSON or not what the workflow takes is refused before anything is sent."""
    async with serving(silent) as peer:
        client = connect(peer)
        for name, value in (("x", object()), ("x", float("nan")), ("x", "y" * 2**21)):
            with pytest.raises(PayloadError):
                await do(client.start, name, value)
    assert not peer.requests


LOST = {
    "no answer": b"",
    "half an answer": b"HTTP/1.1 201 Created\r\ncontent-length: 50\r\n\r\n{",
    "not HTTP": b"SSH-2.0\r\n",
    "500": says(500, {}),
    "503": refuses(503, "unavailable"),
    "408": says(408, {}),
    "429": says(429, {}, retry_after="0"),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST)
async def test_a_lost_reply_makes_no_second_run(connect: Connect, answer: bytes) -> None:
    """I6: an unknown outcome is sent again under the same request id."""
    async with serving(cut_off(answer), answering(submitted(created=False))) as peer:
        assert (await do(connect(peer).start, double, 1)).id == RUN_ID
    first, second = (body for _, body in requests(peer))
    assert first == second


async def test_the_timeout_bounds_the_repeats(connect: Connect) -> None:
    """A dispatcher that stays out of reach is an error within the timeout, with a code."""
    async with serving(cut_off(b"")) as peer:
        client = connect(peer, timeout=timedelta(seconds=0.2))
        async with asyncio.timeout(5):
            with pytest.raises(PointsmanError) as caught:
                await do(client.start, double, 1)
    assert caught.value.code == "unreachable"
    assert len(peer.requests) > 1


async def test_the_timeout_bounds_one_silent_call(connect: Connect) -> None:
    """A dispatcher that says nothing is given up within the timeout."""
    async with serving(silent) as peer:
        client = connect(peer, timeout=timedelta(seconds=0.2))
        async with asyncio.timeout(5):
            with pytest.raises(PointsmanError) as caught:
                await do(client.start, double, 1)
    assert caught.value.code == "unreachable"


async def test_an_error_that_stays_is_named(connect: Connect) -> None:
    """A dispatcher that keeps refusing for now is an error with its own code."""
    async with serving(answering(refuses(503, "unavailable"))) as peer:
        with pytest.raises(PointsmanError, match=r"No\.") as caught:
            await do(connect(peer, timeout=timedelta(seconds=0.1)).start, double, 1)
    assert caught.value.code == "unavailable"


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "malformed"), (401, "unauthorized"), (403, "forbidden"), (413, "payload_too_large"),
     (422, "version_unknown"), (422, "not_supported_yet")],
)  # fmt: skip
async def test_refusals_are_not_repeated(connect: Connect, status: int, code: str) -> None:
    """A definite refusal is PointsmanError with its code and hint, sent once."""
    async with serving(answering(refuses(status, code))) as peer:
        with pytest.raises(PointsmanError, match=r"No\. \(Do it right\.\)") as caught:
            await do(connect(peer).start, double, 1)
    assert (caught.value.code, len(peer.requests)) == (code, 1)
    assert not isinstance(caught.value, Conflict)


async def test_another_input_under_the_same_key_is_a_conflict(connect: Connect) -> None:
    """409 is Conflict with the code, and the details say which run has the key."""
    async with serving(answering(refuses(409, "idempotency_conflict", runId=RUN_ID))) as peer:
        with pytest.raises(Conflict) as caught:
            await do(connect(peer).start, double, 1, idempotency_key="k")
    assert (caught.value.code, caught.value.details) == ("idempotency_conflict", {"runId": RUN_ID})


@pytest.mark.parametrize("answer", [says(404, {}), says(302, {}), says(200, {"hello": 1}), says(201, [])])
async def test_what_is_no_dispatcher_is_named(connect: Connect, answer: bytes) -> None:
    """An answer no dispatcher gives is an error that asks about the URL, not a crash."""
    async with serving(answering(answer)) as peer:
        with pytest.raises(PointsmanError) as caught:
            await do(connect(peer).start, double, 1)
    assert (caught.value.code, len(peer.requests)) == ("bad_answer", 1)


async def test_waiting_for_a_result(connect: Connect) -> None:
    """result() polls until the run has ended and decodes what the workflow returned."""
    pending = says(202, {"status": "running"})
    async with serving(answering(submitted(), pending, pending, says(200, {"status": "completed", "result": 42}))) as p:
        handle = await do(connect(p).start, double, 21)
        assert await do(handle.result) == 42
    lines = [line for line, _ in requests(p)]
    assert lines[1:] == [f"GET /v1/runs/{RUN_ID}/result?waitMs=20000"] * 3


async def test_a_result_of_nothing(connect: Connect) -> None:
    """A run without a result has None."""
    async with serving(answering(says(200, {"status": "completed"}))) as peer:
        assert await do((await do(connect(peer).get, RUN_ID)).result) is None


async def test_a_failed_run_raises(connect: Connect) -> None:
    """RunFailed carries the error of the run."""
    error = {"type": "shop.Declined", "message": "no money", "details": {"cents": 5}, "retryable": False}
    async with serving(answering(says(200, {"status": "failed", "error": error}))) as peer:
        handle = await do(connect(peer).get, double, run_id=RUN_ID)
        with pytest.raises(RunFailed) as caught:
            await do(handle.result)
    found = caught.value
    assert (found.run_id, found.error_type, found.message, found.details) == (
        RUN_ID, "shop.Declined", "no money", {"cents": 5},
    )  # fmt: skip


async def test_a_cancelled_run_raises(connect: Connect) -> None:
    """RunCancelled carries the reason."""
    cancelled = says(200, {"status": "cancelled"})
    view = says(200, {"run": run_view("cancelled", reason="changed my mind")})
    async with serving(answering(cancelled, view)) as peer:
        with pytest.raises(RunCancelled) as caught:
            await do((await do(connect(peer).get, RUN_ID)).result)
    assert (caught.value.run_id, caught.value.reason) == (RUN_ID, "changed my mind")


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
async def test_a_result_that_takes_too_long(connect: Connect, timeout: float | timedelta) -> None:
    """After the timeout TimeoutError names the status; the server was never asked to wait longer."""
    async with serving(answering(says(202, {"status": "running"}))) as peer:
        handle = await do(connect(peer).get, RUN_ID)
        with pytest.raises(TimeoutError, match="running"):
            await do(handle.result, timeout=timeout)
    waits = [int(line.partition("waitMs=")[2]) for line, _ in requests(peer)]
    assert max(waits) <= 50


async def test_a_timeout_wins_over_an_absent_dispatcher(connect: Connect) -> None:
    """result(timeout=) ends soon after its time although the dispatcher is out of reach."""
    async with serving(cut_off(b"")) as peer:
        handle = await do(connect(peer, timeout=timedelta(seconds=60)).get, RUN_ID)
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError, match="out of reach"):
                await do(handle.result, timeout=0.1)


async def test_the_state_of_a_run(connect: Connect) -> None:
    """state() tells status, revision and reason."""
    async with serving(answering(says(200, {"run": run_view("stalled", reason="crash_loop")}))) as peer:
        state = await do((await do(connect(peer).get, RUN_ID)).state)
    assert (state.status, state.revision, state.reason) == ("stalled", 3, "crash_loop")


async def test_a_run_that_is_not_there(connect: Connect) -> None:
    """404 is PointsmanError with the dispatcher's code."""
    async with serving(answering(refuses(404, "run_not_found"))) as peer:
        with pytest.raises(PointsmanError) as caught:
            await do((await do(connect(peer).get, RUN_ID)).state)
    assert caught.value.code == "run_not_found"


async def test_cancelling(connect: Connect) -> None:
    """cancel() sends the reason and whether to fence at once."""
    async with serving(answering(says(200, {"run": run_view("cancelled")}))) as peer:
        handle = await do(connect(peer).get, RUN_ID)
        await do(handle.cancel, "wrong order")
        await do(handle.cancel, now=True)
    assert list(requests(peer)) == [
        (f"POST /v1/runs/{RUN_ID}/cancel", {"reason": "wrong order", "now": False}),
        (f"POST /v1/runs/{RUN_ID}/cancel", {"reason": "", "now": True}),
    ]


async def test_cancelling_what_is_finished(connect: Connect) -> None:
    """A run that ended otherwise cannot be cancelled: Conflict."""
    async with serving(answering(refuses(409, "run_finished"))) as peer:
        with pytest.raises(Conflict) as caught:
            await do((await do(connect(peer).get, RUN_ID)).cancel)
    assert caught.value.code == "run_finished"


async def test_finding_by_idempotency_key(connect: Connect) -> None:
    """A key finds its run; one that names none is run_not_found."""
    found = says(200, {"items": [run_view("running")], "next": None})
    async with serving(answering(found, says(200, {"items": [], "next": None}))) as peer:
        client = connect(peer)
        handle = await do(client.get, double, idempotency_key="a b&c")
        assert (handle.id, handle.created) == (RUN_ID, False)
        with pytest.raises(PointsmanError) as caught:
            await do(client.get, double, idempotency_key="none")
    assert caught.value.code == "run_not_found"
    assert next(requests(peer))[0] == "GET /v1/runs?workflow=double&idempotencyKey=a+b%26c&limit=1"


async def test_run_ids_cannot_change_the_path(connect: Connect) -> None:
    """Whatever is passed for a run id stays one segment of the path."""
    async with serving(answering(refuses(404, "run_not_found"))) as peer:
        handle = await do(connect(peer).get, "../keys?x#y")
        with pytest.raises(PointsmanError):
            await do(handle.state)
    assert next(requests(peer))[0] == "GET /v1/runs/..%2Fkeys%3Fx%23y"


async def test_the_environment_fills_in(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """URL, key and namespace come from the environment when they are not given."""
    async with serving(answering(submitted())) as peer:
        monkeypatch.setenv("POINTSMAN_URL", peer.url.removesuffix("p"))
        monkeypatch.setenv("POINTSMAN_API_KEY", "pmk_env")
        monkeypatch.setenv("POINTSMAN_NAMESPACE", "shop")
        await do(connect(peer, url=None, api_key=None).start, double, 1)
    head = peer.requests[0][0]
    assert b"authorization: Bearer pmk_env\r\n" in head
    assert b"pointsman-namespace: shop\r\n" in head
    assert head.startswith(b"POST /v1/runs HTTP/1.1")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_needs_a_url(kind: type[AnyClient]) -> None:
    """Without a URL there is no client."""
    with pytest.raises(ConfigurationError, match="POINTSMAN_URL"):
        kind()


async def test_clients_are_context_managers() -> None:
    """Leaving the block closes the connections."""
    async with serving(answering(submitted())) as peer:
        url = peer.url.removesuffix("/p")
        async with AsyncClient(url) as client:
            assert (await client.start(double, 1)).id == RUN_ID

        def blocking() -> str:
            with Client(url) as blocking_client:
                return blocking_client.start(tick).id

        assert await asyncio.to_thread(blocking) == RUN_ID
