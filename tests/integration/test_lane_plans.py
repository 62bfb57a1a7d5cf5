"""Which index answers what is asked of the outbox: those of what is pending hold nothing that is held back."""

from typing import Any

import pytest

from dispatcher.store import Session, backlog, lanes, polling
from dispatcher.store.session import Statement
from tests.integration.world import World

MANY: dict[str, Any] = {
    "b_queue": "q",
    "b_now": 1,
    "b_until": 2,
    "b_limit": 5,
    "b_id": "e",
    "b_route": "push",
    "b_way": 0,
    "b_ways": 1,
    "b_prefix": "req_",
    "b_executor": "{}",
    "b_keys": '["q"]',
    "b_published_before": 0,
    "b_lane": "a:b:c",
    "b_after": "",
    "b_rank": 1,
    "b_run_id": "run_",
}
PENDING, HELD, TAKEN = "outbox_entry_pending", "outbox_entry_held", "outbox_entry_lane"


def _plan(session: Session, statement: Statement) -> str:
    """How the database would answer *statement*, told not to read whole tables while there is another way."""
    text, fixed = statement.compiled(session.dialect)
    postgres = session.dialect == "postgresql"
    if postgres:
        session._cursor.execute("SET LOCAL enable_seqscan = off")
    session._cursor.execute(f"{'EXPLAIN' if postgres else 'EXPLAIN QUERY PLAN'} {text}", {**fixed, **MANY})
    return "\n".join(str(row[-1]) for row in session._cursor.fetchall())


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("backlog._QUEUES", PENDING),
        ("backlog._LEASE_ALL", PENDING),
        ("backlog._LEASE_TURN", PENDING),
        ("polling._HEADS", PENDING),
        ("polling._CLAIM", PENDING),
        ("lanes._TAKEN", TAKEN),
        ("lanes._FIRST", HELD),
        ("lanes._OPEN", HELD),
        ("lanes._AHEAD", HELD),
        ("lanes._WAITING", HELD),
        ("lanes._WAITING", TAKEN),
    ],
)
def test_a_partial_index_answers(world: World, name: str, index: str) -> None:
    """Each looks its entries up in the index made for it, on both databases: its words are the index's own."""
    found = {
        "backlog._QUEUES": backlog._QUEUES,
        "backlog._LEASE_ALL": backlog._LEASE_ALL,
        "backlog._LEASE_TURN": backlog._LEASE_TURN,
        "polling._HEADS": polling._HEADS[world.store.dialect],
        "polling._CLAIM": polling._CLAIM["pending"],
        "lanes._TAKEN": lanes._TAKEN,
        "lanes._FIRST": lanes._FIRST,
        "lanes._OPEN": lanes._OPEN,
        "lanes._AHEAD": lanes._AHEAD,
        "lanes._WAITING": lanes._WAITING,
    }[name]
    assert index in world.store.transact_blocking(lambda session: _plan(session, found))
