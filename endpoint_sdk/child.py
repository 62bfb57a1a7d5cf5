"""Children as a workflow holds them: started runs whose ends it can wait for."""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

O = TypeVar("O")  # noqa: E741 - the output of a workflow


class _Named:
    def __init__(self, run_id: str) -> None:
        self._id = run_id

    @property
    def id(self) -> str:
        """The child's run id."""
        return self._id


class Child(_Named, Generic[O]):
    """A started child, from `Run.start_child`."""

    def __init__(self, run_id: str, outcome: Callable[[], Coroutine[Any, Any, O]]) -> None:
        super().__init__(run_id)
        self._outcome = outcome

    async def result(self) -> O:
        """What the child returned, as often as asked; the run gives its place up meanwhile.

        Raises ChildFailed when the child ended failed or cancelled.
        """
        return await self._outcome()


class SyncChild(_Named, Generic[O]):
    """A started child, from `SyncRun.start_child`."""

    def __init__(self, run_id: str, outcome: Callable[[], O]) -> None:
        super().__init__(run_id)
        self._outcome = outcome

    def result(self) -> O:
        """As `Child.result`, blocking."""
        return self._outcome()
