"""Every pair of statuses is legal or not, exactly as the protocol's table says."""

from typing import get_args

import pytest

from dispatcher import lifecycle
from endpoint_sdk.wire.messages import Status

STATUSES: tuple[Status, ...] = get_args(Status)

# A row per status before (first: not yet born), a column per status after, in the order of `Status`.
MATRIX = """
                 scheduled queued running paused sleeping event retry child stalled completed failed cancelled
-                    x       x      .       .       .       .     .     .      .        .       .       .
scheduled            .       x      .       x       .       .     .     .      .        .       .       x
queued               .       .      x       x       .       .     .     .      x        .       .       x
running              .       x      .       x       x       x     x     x      x        x       x       x
paused               x       x      .       .       x       x     x     x      .        .       .       x
sleeping             .       x      .       x       .       .     .     .      .        .       .       x
awaiting_event       .       x      .       x       .       .     .     .      .        .       .       x
awaiting_retry       .       x      .       x       .       .     .     .      .        .       .       x
awaiting_child       .       x      .       x       .       .     .     .      .        .       .       x
stalled              .       x      .       .       .       .     .     .      .        .       .       x
completed            .       .      .       .       .       .     .     .      .        .       .       .
failed               .       .      .       .       .       .     .     .      .        .       .       .
cancelled            .       .      .       .       .       .     .     .      .        .       .       .
"""


def _expected() -> dict[tuple[str, str], bool]:
    rows = [line.split() for line in MATRIX.strip().splitlines()[1:]]
    return {(row[0], after): mark == "x" for row in rows for after, mark in zip(STATUSES, row[1:], strict=True)}


@pytest.mark.parametrize("before", [None, *STATUSES])
@pytest.mark.parametrize("after", STATUSES)
def test_every_pair(before: Status | None, after: Status) -> None:
    """A move is legal if and only if the matrix has it."""
    assert lifecycle.is_legal(before, after) == _expected()[before or "-", after]


def test_the_matrix_is_whole() -> None:
    """The matrix has a cell for every pair, and the table a row for every status."""
    assert len(_expected()) == 13 * 12
    assert set(lifecycle.LEGAL) == {None, *STATUSES}


def test_terminal_statuses_are_where_nothing_leads_on() -> None:
    """A status is terminal if and only if no move leaves it; every other can be cancelled within two moves."""
    for status in STATUSES:
        assert lifecycle.is_terminal(status) == (not lifecycle.LEGAL[status])
        if not lifecycle.is_terminal(status):
            assert "cancelled" in lifecycle.LEGAL[status]


def test_sets_fit_the_table() -> None:
    """Parked, deliverable and terminal statuses are disjoint, and only `running` parks or finishes."""
    assert not lifecycle.PARKED & lifecycle.DELIVERABLE
    assert not lifecycle.PARKED & lifecycle.TERMINAL
    for status in STATUSES:
        if lifecycle.LEGAL[status] & {"completed", "failed"}:
            assert status == "running"


def test_no_status_moves_to_itself() -> None:
    """Every move changes the status: the revision counts moves and nothing else."""
    assert all(status not in lifecycle.LEGAL[status] for status in STATUSES)
