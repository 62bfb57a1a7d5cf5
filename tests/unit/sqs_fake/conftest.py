"""The fake its own tests call."""

from collections.abc import Iterator

import pytest

from tests.sqs_fake import SqsFake


@pytest.fixture(scope="module")
def running() -> Iterator[SqsFake]:
    """One fake for the module; every test has queues of its own."""
    pytest.importorskip("boto3")
    with SqsFake() as fake:
        yield fake


@pytest.fixture
def fake(running: SqsFake) -> SqsFake:
    """The fake without faults and calls of earlier tests."""
    running.faults.clear()
    running.calls.clear()
    return running
