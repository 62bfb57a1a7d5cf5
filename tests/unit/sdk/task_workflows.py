"""Workflows around one task."""

from typing import Any

from endpoint_sdk import OutcomeUnknown, Run, TaskFailed, Workflow, workflow


def calling(fn: Any, *args: Any) -> Workflow[None, Any]:
    """A workflow that returns what *fn* gives back, or its failure in pieces."""

    @workflow("w")
    async def handler(run: Run) -> Any:
        try:
            return await run.task(fn, *args)
        except (TaskFailed, OutcomeUnknown) as failure:
            return [type(failure).__name__, str(failure), failure.__dict__]

    return handler
