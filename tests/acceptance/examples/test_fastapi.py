"""The FastAPI application: one process that starts workflows, serves them, and answers with pydantic models."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.examples.conftest import imported
from tests.faults import rig


@pytest.fixture(scope="module")
def shop(
    environment: dict[str, str], http: httpx.Client, module_environment: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    """A client of the application, whose endpoint the dispatcher knows."""
    module_environment.setenv("POINTSMAN_API_KEY", rig.ADMIN_KEY)
    serving = rig.Serving(lambda _: imported("fastapi_orders").app).open()
    described = {"name": "shop", "url": f"{serving.url}/pointsman/", "secret": rig.SECRET, "allowHttp": True}
    added = http.post("/v1/endpoints", json=described)
    assert added.json()["test"]["ok"], added.text
    with httpx.Client(base_url=serving.url, timeout=20) as client:
        yield client
    serving.stop()


def _confirmed(shop: httpx.Client, order_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        answer = shop.get(f"/orders/{order_id}").json()
        return answer["confirmation"] if answer["status"] == "completed" else None

    found: dict[str, Any] = rig.until(look, what="the order")
    return found


def test_an_order_placed_twice_is_confirmed_once(shop: httpx.Client) -> None:
    """The model that came in is the workflow's input, and its result the model that goes out."""
    order = {
        "id": "o1",
        "lines": [{"sku": "tea", "count": 3, "price": "19.90"}, {"sku": "pot", "count": 1, "price": "60"}],
    }

    first, second = (shop.post("/orders", json=order) for _ in range(2))

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert _confirmed(shop, "o1") == {"order": "o1", "total": "119.70", "payment": {"kind": "invoice", "days": 14}}


def test_the_other_payment_comes_back_as_itself(shop: httpx.Client) -> None:
    """The union's discriminator survives the record."""
    shop.post("/orders", json={"id": "o2", "lines": [{"sku": "tea", "count": 1, "price": "5"}]})

    assert _confirmed(shop, "o2")["payment"] == {"kind": "card", "last4": "4242"}


def test_what_the_model_refuses_starts_nothing(shop: httpx.Client) -> None:
    """FastAPI answers 422 before there is a run."""
    refused = shop.post("/orders", json={"id": "o3", "lines": []})

    assert refused.status_code == 422
    assert shop.get("/orders/o3").status_code == 404
