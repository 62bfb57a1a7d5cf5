"""What workflows declare: checked when they are defined, announced by whoever serves them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from endpoint_sdk import (
    Concurrency,
    ConfigurationError,
    Cron,
    Endpoint,
    Interval,
    Run,
    Worker,
    Workflow,
    subscribers,
    workflow,
)
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Registry


def _made(**options: Any) -> Workflow[None, None]:
    @workflow("w", **options)
    async def handler(run: Run) -> None:
        """Never run."""

    return handler


@workflow("apology", version="3")
async def apology(run: Run, failure: dict[str, Any]) -> None:
    """Never run."""


def test_everything_declared_is_announced() -> None:
    """As discovery answers and worker announcements carry it, in whole milliseconds."""
    night = Cron("30 2 * * *", timezone="Europe/Berlin", overlap="allow", catch_up=3, jitter=timedelta(minutes=1))
    declared = _made(
        version="2",
        accepts=["1"],
        timeout=timedelta(hours=1, microseconds=1),
        schedule=night,
        concurrency=Concurrency(5, key="customer"),
        on_failure=apology,
    )
    served, failure = Registry([declared, apology]).served()
    assert served == messages.ServedWorkflow(
        "w",
        "2",
        ["1"],
        messages.Concurrency(5, "customer"),
        messages.Schedule("30 2 * * *", "Europe/Berlin", None, "allow", 3, 60_000),
        messages.WorkflowRef("apology", "3"),
        3_600_001,
    )
    assert failure == messages.ServedWorkflow("apology", "3")
    assert msgspec.convert(msgspec.to_builtins(served), messages.ServedWorkflow) == served


def test_an_interval_is_announced_in_milliseconds() -> None:
    """With the defaults a cron has: no overlap, one missed run made up for, no jitter."""
    (served,) = Registry([_made(schedule=Interval(timedelta(minutes=5)))]).served()
    assert served.schedule == messages.Schedule(every_ms=300_000)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Cron("every day"),
        lambda: Cron("* * * *"),
        lambda: Cron("0 * * * * *"),
        lambda: Cron("* * * * ;"),
        lambda: Cron(None),  # type: ignore[arg-type]
        lambda: Cron("0 4 * * *", timezone="Berlin"),
        lambda: Cron("0 4 * * *", timezone=""),
        lambda: Cron("0 4 * * *", overlap="queue"),  # type: ignore[arg-type]
        lambda: Cron("0 4 * * *", catch_up=101),
        lambda: Cron("0 4 * * *", catch_up=True),
        lambda: Cron("0 4 * * *", jitter=timedelta(days=2)),
        lambda: Cron("0 4 * * *", jitter=-timedelta(seconds=1)),
        lambda: Interval(timedelta(0)),
        lambda: Interval(60),  # type: ignore[arg-type]
        lambda: Interval(timedelta(days=400)),
        lambda: Concurrency(0),
        lambda: Concurrency(True),
        lambda: Concurrency(1, key=""),
        lambda: _made(concurrency=Concurrency(1, key="x" * 300)),
        lambda: _made(concurrency=5),
        lambda: _made(timeout=timedelta(0)),
        lambda: _made(timeout=30),
        lambda: _made(schedule="0 4 * * *"),
        lambda: _made(retry=3),
        lambda: _made(on_failure="apology"),
    ],
)
def test_nonsense_is_refused_when_the_workflow_is_defined(wrong: Callable[[], object]) -> None:
    """ConfigurationError at import, before anything is started."""
    with pytest.raises(ConfigurationError):
        wrong()


@pytest.mark.parametrize("expression", ["@daily", "*/5 0-6 1,15 JAN-MAR MON#1", "0 0 L * *"])
def test_usual_expressions_are_taken(expression: str) -> None:
    """Nicknames, lists, ranges, steps and names."""
    assert Cron(expression).expression == expression


def test_on_failure_has_to_be_served_beside_its_workflow() -> None:
    """Nobody could run it otherwise: refused where an endpoint or a worker is made."""
    declared = _made(on_failure=apology)
    with pytest.raises(ConfigurationError, match="on_failure="):
        Endpoint([declared])
    with pytest.raises(ConfigurationError, match="on_failure="):
        Worker([declared], subscriber=subscribers.poll(), url="http://127.0.0.1:1", api_key="pmk_x")
    Registry([declared, apology])
