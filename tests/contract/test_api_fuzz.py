"""Whatever is sent to whatever route, the answer is a 401 or another 4xx with a code, and nothing is stored (I13)."""

from typing import Any

import msgspec
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher import errors
from dispatcher.store import Session, Statement, schema
from endpoint_sdk.wire import identity
from tests.contract.api import World

RUN = identity.new("run")
TEMPLATES = [
    ("POST", "/v1/runs"),
    ("POST", "/v1/runs/batch"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/runs/{}"),
    ("GET", "/v1/runs/{}/transitions"),
    ("GET", "/v1/runs/{}/records"),
    ("GET", "/v1/runs/{}/result"),
    ("GET", "/v1/runs/{}/why"),
    ("POST", "/v1/runs/{}/cancel"),
    ("POST", "/v1/runs/{}/release"),
    ("POST", "/v1/runs/{}/requeue"),
    ("POST", "/v1/runs/{}/restart"),
    ("POST", "/v1/runs/actions"),
    ("GET", "/v1/runs/actions/{}"),
    ("POST", "/v1/runs/{}/wake"),
    ("POST", "/v1/runs/{}/pause"),
    ("POST", "/v1/runs/{}/resume"),
    ("POST", "/v1/runs/{}/events"),
    ("GET", "/v1/runs/{}/events"),
    ("POST", "/v1/events"),
    ("POST", "/v1/runs/{}/claim"),
    ("POST", "/v1/runs/{}/progress"),
    ("POST", "/v1/claims"),
    ("POST", "/v1/claims/refresh"),
    ("POST", "/v1/runs/{}/children"),
    ("GET", "/v1/runs/{}/children"),
    ("GET", "/v1/runs/{}/children/outcomes"),
    ("GET", "/v1/schedules"),
    ("PUT", "/v1/schedules/{}"),
    ("GET", "/v1/schedules/{}"),
    ("DELETE", "/v1/schedules/{}"),
    ("POST", "/v1/schedules/{}/run-now"),
    ("POST", "/v1/schedules/{}/pause"),
    ("POST", "/v1/schedules/{}/resume"),
    ("POST", "/v1/schedules/{}/backfill"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/executors"),
    ("POST", "/v1/endpoints"),
    ("GET", "/v1/endpoints"),
    ("GET", "/v1/endpoints/{}"),
    ("POST", "/v1/endpoints/{}/test"),
    ("GET", "/v1/publishers"),
    ("GET", "/v1/publishers/{}"),
    ("POST", "/v1/keys"),
    ("GET", "/v1/keys"),
    ("DELETE", "/v1/keys/{}"),
]
FIELDS = [
    *("workflow", "version", "input", "idempotencyKey", "dueAt", "delayMs", "priority", "pool", "tags", "requestId"),
    *("runs", "expectedRevision", "claimId", "executor", "id", "kind", "refreshIntervalMs", "pushNumber", "records"),
    *("ending", "result", "error", "claims", "runId", "token", "reason", "now", "name", "url", "secret", "scopes"),
    *("from", "action", "filter", "status", "ids", "stuckForMs", "dryRun", "discardUnconsumed", "declares", "step"),
    *("workflows", "versions", "pools", "limit", "waitMs", "value", "targets", "eventId", "waits", "deadline"),
    *("children", "argsHash", "ordinal", "index", "total", "cron", "timezone", "everyMs", "overlap", "jitterMs", "to"),
]
ODD = st.sampled_from(
    ["", "\x00", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "a" * 300, "é", "\u2028", RUN]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.binary(max_size=40) | JSON.map(msgspec.json.encode)
SEGMENTS = st.sampled_from([RUN, "run_x", "%", "%00", "%ff", "..", "%2e%2e%2f", "é", "a" * 500, "{}", "x?y"])
QUERIES = st.sampled_from(
    [
        "",
        "limit=x",
        "after=%00",
        "after=-1",
        "a=%ff",
        "limit=1&limit=1",
        "waitMs=0",
        "&&=&",
        "tag.a=%00",
        "after=" + RUN,
    ]
)
HEADERS = st.dictionaries(
    st.sampled_from([b"authorization", b"pointsman-namespace", b"content-length", b"content-type", b"x"]),
    st.binary(max_size=20).filter(lambda value: b"\n" not in value and b"\r" not in value),
    max_size=3,
)
COUNTS = [
    Statement(sa.select(sa.func.count()).select_from(table))
    for table in (
        schema.run,
        schema.outbox_entry,
        schema.endpoint,
        schema.signing_key,
        schema.api_key,
        schema.record,
        schema.event,
        schema.schedule,
        schema.bulk_action,
    )
]


def counts(session: Session) -> list[Any]:
    return [session.all(statement) for statement in COUNTS]


QUIET = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@QUIET
@given(st.sampled_from(TEMPLATES), SEGMENTS, QUERIES, HEADERS, BODIES)
async def test_without_a_credential(
    world: World, route: tuple[str, str], segment: str, query: str, headers: dict[bytes, bytes], body: bytes
) -> None:
    """Without a good credential nothing but a refresh, which carries its own, is more than a 4xx."""
    method, template = route
    before = await world.store.transact(counts)
    answer = await world.client.request(
        method, f"{template.replace('{}', segment)}?{query}", headers=list(headers.items()), content=body
    )

    if answer.status_code != 200 or template != "/v1/claims/refresh":
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["code"] in errors.CODES
    assert await world.store.transact(counts) == before


@QUIET
@given(st.sampled_from(TEMPLATES), SEGMENTS, QUERIES, BODIES)
async def test_with_the_admin_key(world: World, route: tuple[str, str], segment: str, query: str, body: bytes) -> None:
    """An admin's malformed request is a 4xx with a code that stores nothing; what is accepted is a 2xx."""
    method, template = route
    before = await world.store.transact(counts)
    answer = await world.admin(method, f"{template.replace('{}', segment)}?{query}", content=body)

    assert answer.status_code < 500, (route, segment, query, body, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["error"]["code"] in errors.CODES
        assert await world.store.transact(counts) == before


@QUIET
@given(
    st.dictionaries(
        st.sampled_from(["expectedRevision", "claimId", "requestId", "records", "ending", "note", "signalSeq"]),
        JSON | st.just([{"kind": "task"}]) | st.just({"kind": "complete", "result": 1}),
        max_size=5,
    )
)
async def test_progress_of_a_claim_holder(world: World, change: dict[str, Any]) -> None:
    """A claim holder's malformed write is a 4xx, whatever is wrong with it."""
    grant = await world.held()
    base = {"expectedRevision": 1, "claimId": grant["claimId"], "requestId": "r", "records": [], "ending": None}
    answer = await world.bearer(grant["token"])(
        "POST", f"/v1/runs/{grant['run']['id']}/progress", content=msgspec.json.encode({**base, **change})
    )

    assert answer.status_code < 500, (change, answer.text)


@QUIET
@given(
    st.dictionaries(
        st.sampled_from(["workflows", "pools", "limit", "requestId", "executor", "refreshIntervalMs"]),
        JSON | st.just([{"name": "order", "versions": ["1"]}]),
        max_size=5,
    ),
    st.text(min_size=1, max_size=8),
)
async def test_polls(world: World, change: dict[str, Any], odd: str) -> None:
    """A poller's malformed request is a 400, whatever is wrong with it; no text it sends makes the database fail."""
    caller = await world.caller("execute")
    base = {"workflows": [{"name": odd, "versions": [odd]}], "requestId": odd, "executor": {"id": odd}, "limit": 0}
    for limit in (0, 1):
        body = {**base, "limit": limit, "pools": [odd], "refreshIntervalMs": 1, **change}
        answer = await caller("POST", "/v1/claims", content=msgspec.json.encode(body))
        assert answer.status_code in {200, 400}, (body, answer.text)


TEXTS = st.text(max_size=6) | st.sampled_from(["\x00", "a\x00b", "\u2028", "\x85"])


@QUIET
@given(TEXTS, TEXTS, TEXTS, TEXTS)
async def test_odd_texts_of_executors(world: World, first: str, second: str, third: str, fourth: str) -> None:
    """No text an executor sends, control characters included, makes the database fail."""
    run = await world.submit()
    executor = {"id": first or "x", "kind": second, "host": third, "sdk": fourth}
    body = {"expectedRevision": 0, "claimId": second or "c", "executor": executor, "refreshIntervalMs": 1}
    caller = world.bearer(world.keys.claim_token(run["id"], 0))
    claimed = await caller("POST", f"/v1/runs/{run['id']}/claim", content=msgspec.json.encode(body))
    assert claimed.status_code in {200, 400}, claimed.text
    if claimed.status_code == 200:
        record = {
            "kind": "task",
            "name": first or "x",
            "argsHash": third,
            "ordinal": 0,
            "phase": "ended",
            "attempt": 1,
            "state": "failed",
            "error": {"type": second, "message": third, "details": fourth},
            "preview": fourth,
            "startedAt": second,
            "finishedAt": "2026-12-01T10:00:00Z",
        }
        answer = await world.progress(claimed.json(), records=[record], note=fourth, requestId=third or "r")
        assert answer.status_code < 500, answer.text
