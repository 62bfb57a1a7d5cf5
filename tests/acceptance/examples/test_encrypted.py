"""The encrypted example: what the dispatcher stores and shows holds no word of a payload."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from endpoint_sdk import ChildFailed, Client, Conflict, NonRetryableError, Run, RunFailed, Worker, task, workflow
from tests.acceptance.examples.conftest import imported
from tests.faults import rig


@pytest.fixture(scope="module")
def program(
    environment: dict[str, str], serve: Callable[[Worker], None], module_environment: pytest.MonkeyPatch
) -> ModuleType:
    module_environment.setenv("PAYLOAD_KEYS", Fernet.generate_key().decode())
    module = imported("encrypted")
    serve(module.worker)
    return module


def _stored(http: httpx.Client, run_id: str) -> str:
    """Everything the dispatcher shows of the run."""
    paths = ["", "/records", "/events", "/transitions", "/why"]
    return "".join(http.get(f"/v1/runs/{run_id}{path}").text for path in paths)


def test_nothing_of_a_payload_is_readable_at_the_dispatcher(program: ModuleType, http: httpx.Client, url: str) -> None:
    """Input, argument preview, task result, event and result are all encoded, and come back as they were."""
    with Client(url, api_key=rig.ADMIN_KEY, codec=program.codec) as client:
        handle = client.start(program.diagnosis, program.Patient("Ada", "cough"), idempotency_key="ada")
        handle.send("treatment", "tea")

        assert handle.result(timeout=20) == "Ada has a cough: tea"
        again = client.start(program.diagnosis, program.Patient("Ada", "cough"), idempotency_key="ada")
        assert (again.id, again.created) == (handle.id, False)
        with pytest.raises(Conflict):
            client.start(program.diagnosis, program.Patient("Bo", "cough"), idempotency_key="ada")

    stored = _stored(http, handle.id)
    assert '"$enc"' in stored
    assert '"diagnose"' in stored
    for word in ("Ada", "cough", "tea"):
        assert word not in stored


def test_children_are_encrypted_as_their_parent_is(
    program: ModuleType,
    serve: Callable[[Worker], None],
    http: httpx.Client,
    url: str,
) -> None:
    """Their inputs and results pass through the codec of whoever executes them, and the parent reads them all."""
    batches = imported("fan_out")
    serve(Worker([batches.make_batch, batches.make_invoice], codec=program.codec))
    with Client(url, api_key=rig.ADMIN_KEY, codec=program.codec) as client:
        handle = client.start(batches.make_batch, batches.Batch("december", 3))

        assert handle.result(timeout=20) == batches.Totals(3, 300)

    children = http.get("/v1/runs", params={"workflow": "invoice-of-a-batch"}).json()["items"]
    assert len(children) == 3
    for child in children:
        assert "december" not in _stored(http, child["id"])


def test_an_error_shows_its_type_alone(program: ModuleType, http: httpx.Client, url: str) -> None:
    """Message and details of a failure are encoded too; whoever has the codec reads them."""
    with Client(url, api_key=rig.ADMIN_KEY, codec=program.codec) as client:
        handle = client.start(program.diagnosis, program.Patient("Ada", ""))
        with pytest.raises(RunFailed, match="Ada has no complaint") as failed:
            handle.result(timeout=20)

    assert failed.value.details == {
        "task": "diagnose",
        "attempt": 1,
        "type": "NonRetryableError",
        "details": {"name": "Ada"},
    }
    stored = _stored(http, handle.id)
    assert "NonRetryableError" in stored
    assert "Ada" not in stored


def test_a_key_nobody_has_any_more_stalls_the_run(program: ModuleType, http: httpx.Client, url: str) -> None:
    """Nothing is lost by a wrong key: the run waits, and goes on once the executor has the right one."""
    other = type(program.codec)(Fernet.generate_key().decode())
    with Client(url, api_key=rig.ADMIN_KEY, codec=other) as client:
        handle = client.start(program.diagnosis, program.Patient("Ada", "cough"))

        run = rig.ended(http, handle.id)

    assert run["status"] == "stalled"
    assert "the codec cannot decode what is stored (InvalidToken)" in http.get(f"/v1/runs/{handle.id}/why").text


@task
def fail(words: str) -> None:
    raise NonRetryableError(f"no {words}", details={"words": words})


@workflow("told")
async def told(run: Run, failure: Any) -> Any:
    return failure


@workflow("failing-child")
async def failing_child(run: Run, words: str) -> None:
    await run.task(fail, words)


@workflow("failing-parent", on_failure=told)
async def failing_parent(run: Run, words: str) -> list[Any]:
    try:
        await run.child(failing_child, words)
    except ChildFailed as one:
        try:
            await run.map(failing_child, [words])
        except ChildFailed as many:
            if words != "secret":
                raise
            return [[each.error_type, each.message, each.details] for each in (one, many)]
    return []


def test_a_failure_of_a_child_is_readable_to_its_parent_alone(
    program: ModuleType, serve: Callable[[Worker], None], http: httpx.Client, url: str
) -> None:
    """As without a codec, however the child was called; so is the failure that a workflow of on_failure is handed."""
    serve(Worker([failing_parent, failing_child, told], codec=program.codec))
    failed = ["TaskFailed", "task 'fail' failed at attempt 1: NonRetryableError: no secret"]
    with Client(url, api_key=rig.ADMIN_KEY, codec=program.codec) as client:
        caught = client.start(failing_parent, "secret")
        one, many = caught.result(timeout=20)
        assert one == many
        assert one[:2] == failed
        assert one[2]["details"] == {"words": "secret"}

        uncaught = client.start(failing_parent, "mystery")
        rig.ended(http, uncaught.id)
        runs = rig.until(lambda: http.get("/v1/runs", params={"workflow": "told"}).json()["items"], what="on_failure")
        handed = client.get(told, run_id=runs[0]["id"]).result(timeout=20)
        assert handed["input"] == "mystery"
        assert "no mystery" in handed["error"]["message"]

    for run_id in (caught.id, uncaught.id, runs[0]["id"]):
        assert "secret" not in _stored(http, run_id)
        assert "mystery" not in _stored(http, run_id)


@task
def one() -> int:
    return 1


@workflow("counting")
async def counting(run: Run) -> int:
    return 10 + await run.task(one)


class Failing:
    """Reverses, but cannot do so the first time it is given each value."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()

    def encode(self, data: bytes, /) -> bytes:
        if data not in self.refused:
            self.refused.add(data)
            raise ConnectionError("the key is not there yet")
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


def test_a_codec_that_cannot_encode_delays_the_run(
    environment: dict[str, str], serve: Callable[[Worker], None], client: Client
) -> None:
    """Of a record as of a result: nothing is written in the clear, and recovery has it tried again."""
    codec = Failing()
    serve(Worker([counting], codec=codec))

    stored = client.start("counting", version="1").result(timeout=60)

    assert codec.refused == {b"1", b"11"}
    assert stored == {"$enc": "MTE="}
