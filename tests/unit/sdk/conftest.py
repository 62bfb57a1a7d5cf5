"""Nothing of the developer's own environment reaches the SDK's tests."""

import os

import pytest

from tests.unit.sdk.gated_worker import fleet

__all__ = ["fleet"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("POINTSMAN_") and not name.startswith("POINTSMAN_TEST_"):
            monkeypatch.delenv(name)
