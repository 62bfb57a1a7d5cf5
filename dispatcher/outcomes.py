"""What an outcome makes of the entry its delivery was leased with: another clock, another copy, or another publisher.

Every write is a compare-and-set on (revision, push number, not claimed), so a late outcome changes nothing (I8). What a
broker did or did not take is never counted as an ending: no executor was reached (I10).
"""

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from dispatcher import backoff, endings
from dispatcher.endpoints import RelayTarget
from dispatcher.leasing import Leased
from dispatcher.settings import Publishing, Stalling
from dispatcher.store import Session, entries
from endpoint_sdk.wire.operating import PublisherType
from publishers.base import Outcome

UNKNOWN: Final = "unknown"
REPUBLISH_MS: Final[dict[PublisherType, int]] = {"sqs": 300_000, "redis": 60_000, "memory": 60_000}

_UNKNOWN_MS: Final = 5_000


class Answered(NamedTuple):
    """A leased delivery and what became of it."""

    leased: Leased
    outcome: Outcome


def write(
    session: Session, publishing: Publishing, stalling: Stalling, target: RelayTarget, answered: Sequence[Answered]
) -> None:
    """The entries *answered* were leased with have their next clock, those still published so and unclaimed.

    A push that was handed over changes nothing: its claim decides.
    """
    if target.type != "push":
        _write_copies(session, publishing, target, answered)
        return
    for leased, outcome in answered:
        if outcome.kind != "published":
            _end_push(session, publishing, stalling, leased, outcome)


def _end_push(session: Session, publishing: Publishing, stalling: Stalling, leased: Leased, outcome: Outcome) -> None:
    endings.unpublish(
        session,
        publishing,
        stalling,
        leased.entry,
        reason=outcome.row,
        counted=outcome.counted,
        delay_ms=_delay_ms(publishing, outcome),
        ways=leased.ways,
    )


def _write_copies(session: Session, publishing: Publishing, target: RelayTarget, answered: Sequence[Answered]) -> None:
    now = session.now()
    taken = [_taken(target, item, now) for item in answered if item.outcome.kind == "published"]
    ended = [_ended(publishing, item, now) for item in answered if item.outcome.kind != "published"]
    entries.note_copies(session, taken)
    entries.unpublish_copies(session, ended)


def _taken(target: RelayTarget, answered: Answered, now: int) -> entries.Handed:
    entry, unknown = answered.leased.entry, answered.outcome.row == UNKNOWN
    copies = entry.copies + 1
    first_ms = target.republish_ms or REPUBLISH_MS[target.type]
    if unknown and copies == 1:
        first_ms = min(first_ms, _UNKNOWN_MS)
    delay_ms = backoff.after_copies(copies, first_ms, random.random())  # noqa: S311 - jitter, not a secret
    return entries.Handed(entry, now + delay_ms, entry.failures if unknown else 0)


def _ended(publishing: Publishing, answered: Answered, now: int) -> entries.Handed:
    leased, outcome = answered
    failures = leased.entry.failures + 1
    delay_ms = endings.after_failure(publishing, failures, leased.ways, _delay_ms(publishing, outcome))
    return entries.Handed(leased.entry, now + delay_ms, failures)


def _delay_ms(publishing: Publishing, outcome: Outcome) -> int | None:
    if outcome.kind == "declined" and outcome.delay_ms is None:
        return publishing.declined_backoff_ms
    return outcome.delay_ms
