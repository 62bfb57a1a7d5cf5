"""Fixtures of the contract suites."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dispatcher.store import Store
    from tests.contract.api import World


@pytest.fixture
async def world(store: "Store") -> AsyncIterator["World"]:
    """The API of a dispatcher, once on each database."""
    from tests.contract import api

    async with api.world(store) as made:
        yield made
