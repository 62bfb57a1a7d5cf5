"""What a review found in polls over HTTP, on both databases."""

import random

import pytest

from tests.contract.api import World, refused
from tests.contract.test_api_polling import claims, ids, poll


def _name(seed: int) -> str:
    """As long a name as there may be, of characters that neither UTF-8 nor a database makes shorter."""
    letters = random.Random(seed)
    return "".join(chr(letters.randrange(0x10000, 0x2FFFF)) for _ in range(200))


async def test_names_too_long_for_a_queue(world: World) -> None:
    """Names that are too long together are refused where a run is submitted and where it is polled for, for good."""
    workflow, version, pool = (_name(seed) for seed in range(3))
    named = {"workflow": workflow, "version": version, "pool": pool}

    told = refused(await world.admin("POST", "/v1/runs", named), 422, "queue_too_long")
    assert "2500" in told["message"]
    batch = (await world.admin("POST", "/v1/runs/batch", {"runs": [named, {"workflow": "a", "version": "1"}]})).json()
    assert [item.get("error", {}).get("code") for item in batch["results"]] == ["queue_too_long", None]

    body = poll(workflows=[{"name": workflow, "versions": [version]}], pools=[pool])
    refused(await (await world.caller("execute"))("POST", "/v1/claims", body), 422, "queue_too_long")


@pytest.mark.parametrize("part", ["workflow", "version", "pool"])
async def test_one_long_name_is_fine(world: World, part: str) -> None:
    """Each name may have its 200 characters, whatever they are."""
    named = {"workflow": "order", "version": "1", "pool": "default", part: _name(4)}
    run = await world.submit(**named)
    body = poll(workflows=[{"name": named["workflow"], "versions": [named["version"]]}], pools=[named["pool"]])

    assert ids(await claims(await world.caller("execute"), body)) == [run["id"]]
