"""What becomes of a run in which nothing is under way."""

from datetime import timedelta

import pytest

from endpoint_sdk import task
from endpoint_sdk.pending_call import Call, Stage
from endpoint_sdk.standstill import Verdict, judge
from endpoint_sdk.task_call import TaskCall
from endpoint_sdk.wait_call import EventCall, SleepCall

NOW = 1_000_000


@task
async def step() -> None:
    """A task."""


def call(kind: str, stage: Stage, seconds: float | None = None) -> Call:
    """A call that is due in *seconds*."""
    made: Call
    match kind:
        case "event":
            made = EventCall("e", None)
        case "sleep":
            made = SleepCall("s", timedelta(0))
        case _:
            made = TaskCall(step.definition, (), {})
    made.stage = stage
    made.due_ms = None if seconds is None else NOW + int(seconds * 1000)
    return made


@pytest.mark.parametrize(
    ("calls", "leaving", "left", "verdict"),
    [
        ([call("sleep", "waiting", 10)], False, None, "stay"),
        ([call("sleep", "waiting", 10.001)], False, None, "park"),
        ([call("sleep", "waiting", -5)], False, None, "stay"),
        ([call("sleep", "waiting", 5)], False, 5, "park"),
        ([call("sleep", "waiting", 5)], False, 5.001, "stay"),
        ([call("sleep", "waiting", 1)], True, None, "park"),
        ([call("task", "retry", 3_600), call("sleep", "waiting", 1)], False, None, "stay"),
        ([call("task", "retry", 3_600), call("sleep", "waiting", 60)], False, None, "park"),
        ([call("event", "waiting"), call("sleep", "waiting", 1)], False, None, "park"),
        ([call("event", "waiting", 1)], False, None, "park"),
        ([call("task", "held")], False, None, "stay"),
        ([call("task", "held")], True, None, "release"),
        ([call("task", "held"), call("sleep", "waiting", 60)], True, None, "release"),
        ([call("task", "parked"), call("sleep", "waiting", 60)], False, None, "stay"),
    ],
)
def test_the_verdict(calls: list[Call], leaving: bool, left: float | None, verdict: Verdict) -> None:
    """Ten seconds and what the host has left are sat out; events never; what could go on elsewhere is released."""
    host = None if left is None else timedelta(seconds=left)

    assert judge(calls, leaving=leaving, left=host, now=NOW, longest=timedelta(seconds=10)) == verdict
