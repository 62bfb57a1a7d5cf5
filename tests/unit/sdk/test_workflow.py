"""Declaring workflows, and finding them by name and version."""

from typing import TYPE_CHECKING, Any

import pytest

from endpoint_sdk import ConfigurationError, PayloadError, Run, SyncRun, Workflow, workflow
from endpoint_sdk.wire import messages
from endpoint_sdk.workflow import Registry

if TYPE_CHECKING:
    from fractions import Fraction


def _order(version: str, *accepts: str) -> Workflow[int, int]:
    @workflow("order", version=version, accepts=accepts)
    async def order(_: Run, count: int) -> int:
        return count

    return order


def test_the_registry_prefers_the_very_version() -> None:
    """An exact version wins over one that accepts it; unknown ones are None."""
    old, new = _order("1.0"), _order("2.0", "1.0", "0.9")
    registry = Registry([new, old])

    assert registry.find("order", "1.0") is old
    assert registry.find("order", "2.0") is new
    assert registry.find("order", "0.9") is new
    assert registry.find("order", "3.0") is None
    assert registry.find("other", "1.0") is None
    assert registry.served() == [
        messages.ServedWorkflow("order", "2.0", ["1.0", "0.9"]),
        messages.ServedWorkflow("order", "1.0", []),
    ]


def test_one_version_is_served_once() -> None:
    """Two workflows of one name and version are a configuration error."""
    with pytest.raises(ConfigurationError, match=r"'order' version '1\.0' is served twice"):
        Registry([_order("1.0"), _order("1.0")])


def test_input_and_result_are_checked_both_ways() -> None:
    """Codecs follow the handler's annotations."""
    order = _order("1.0")

    assert order.decode_input(order.encode_input(3)) == 3
    assert order.decode_result(order.encode_result(4)) == 4
    with pytest.raises(PayloadError, match="input of workflow 'order'"):
        order.decode_input(b'"three"')


def test_a_workflow_without_input_takes_none() -> None:
    """Its input is null, and giving it another is refused."""

    @workflow("tick")
    def tick(_: SyncRun) -> None: ...

    assert tick.encode_input(None) == b"null"
    assert tick.decode_input(b"5") is None
    assert repr(tick) == "<Workflow 'tick' 1>"
    with pytest.raises(ConfigurationError, match="takes no input"):
        tick.encode_input(1)


def test_handlers_that_cannot_work_are_refused_at_import() -> None:
    """The wrong run class, too many inputs, generators and unresolvable annotations fail where they are written."""

    def wrong_run(run: Run) -> None: ...
    async def wrong_sync(run: SyncRun) -> None: ...
    async def three(run: Run, one: int, two: int) -> None: ...
    async def keyword(run: Run, *, one: int) -> None: ...
    async def nothing() -> None: ...
    async def generator(run: Run) -> Any:
        yield 1

    async def unresolvable(run: Run, part: "Fraction") -> None: ...
    async def foreign(run: Run) -> complex:
        return 1j

    for handler in (wrong_run, wrong_sync, three, keyword, nothing, generator, unresolvable, foreign):
        with pytest.raises(ConfigurationError, match="workflow 'w'"):
            workflow("w")(handler)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"version": ""}, {"version": "1\n"}, {"accepts": "1.0"}, {"accepts": [""]}])
def test_versions_are_names(options: dict[str, Any]) -> None:
    """A version the dispatcher would refuse is refused at decoration."""
    with pytest.raises(ConfigurationError):
        workflow("w", **options)
    with pytest.raises(ConfigurationError):
        workflow("")
