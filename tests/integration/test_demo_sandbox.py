"""dispatcher.cli.demo.runtime_api and front: a real `awslambdaric` process serves HTTP requests."""

import asyncio
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from dispatcher.cli.demo.front import Front
from dispatcher.cli.demo.processes import Processes
from dispatcher.cli.demo.runtime_api import Sandbox

HANDLER = """
    import json, pathlib, time

    def handler(event, context):
        asked = json.loads(event["body"])
        if "fail" in asked:
            raise ValueError("as asked")
        if "until" in asked:
            while not pathlib.Path(asked["until"]).exists():
                time.sleep(0.01)
        return {"statusCode": 201, "body": json.dumps({"asked": asked, "id": context.aws_request_id})}
"""


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    (tmp_path / "function.py").write_text(textwrap.dedent(HANDLER))
    with Processes(tmp_path / "logs") as processes:
        sandboxes = [Sandbox(processes, f"fn-{number}", "function.handler", tmp_path, {}) for number in (1, 2)]
        await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
        front = Front(sandboxes, timeout=5.0)
        await front.start()
        yield front
        await front.stop()
        await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))


async def post(front: Front, body: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        return await client.post(front.url, json=body)


async def test_a_request_is_an_invocation(front: Front) -> None:
    """The handler gets the request's body and its answer comes back."""
    answer = await post(front, {"n": 1})

    assert answer.status_code == 201
    assert answer.json() == {"asked": {"n": 1}, "id": "fn-1-1"}


async def test_a_failing_handler_is_a_bad_gateway_and_stays_warm(front: Front) -> None:
    """An exception is 502, and the same process serves the next request."""
    statuses = [(await post(front, {"fail": 1})).status_code for _ in range(3)]

    assert statuses == [502, 502, 502]
    assert (await post(front, {})).json()["id"] == "fn-2-2"


async def test_no_more_requests_than_environments(front: Front, tmp_path: Path) -> None:
    """With every environment busy the front answers 429, and the busy ones finish undisturbed."""
    gate = tmp_path / "gate"
    held = [asyncio.create_task(post(front, {"until": str(gate)})) for _ in range(2)]

    async with asyncio.timeout(5):
        while front.invocations < 2:  # noqa: ASYNC110  the front is not told what tests wait for
            await asyncio.sleep(0.01)
    refused = await post(front, {})
    gate.touch()

    assert refused.status_code == 429
    assert [(await task).status_code for task in held] == [201, 201]
