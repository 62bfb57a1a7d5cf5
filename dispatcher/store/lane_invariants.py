"""What must be true of lanes: held back is only who has a lane, and no more than its limit are not."""

from collections import Counter
from typing import Final

import msgspec
import sqlalchemy as sa

from dispatcher.store.schema import outbox_entry, run, workflow_declaration
from dispatcher.store.session import Session, Statement
from endpoint_sdk.wire.messages import ServedWorkflow

_DECODER: Final = msgspec.json.Decoder(ServedWorkflow)
_ENTRIES: Final = Statement(
    sa.select(
        run.c.id,
        run.c.workflow,
        run.c.lane,
        outbox_entry.c.lane,
        outbox_entry.c.held,
        outbox_entry.c.status,
    )
    .join_from(outbox_entry, run, run.c.id == outbox_entry.c.run_id)
    .where(sa.or_(run.c.lane.is_not(None), outbox_entry.c.lane.is_not(None), outbox_entry.c.held != 0))
)
_BORN_WITH: Final = Statement(
    sa.select(run.c.lane, sa.func.max(run.c.lane_limit)).where(run.c.lane.is_not(None)).group_by(run.c.lane)
)
_DECLARED: Final = Statement(sa.select(workflow_declaration.c.workflow, workflow_declaration.c.declared))


def check(session: Session) -> list[str]:
    """Every breach that the rows show, a sentence each.

    The limit of a lane is the highest that any run in it was born with or any version of its workflow declares: a
    lower one takes nobody's place away.
    """
    found: list[str] = []
    taken: Counter[tuple[str, str]] = Counter()
    for run_id, workflow, of_run, lane, held, status in session.all(_ENTRIES):
        if of_run != lane:
            found.append(f"lanes: {run_id} is in {of_run}, its entry in {lane}")
        if held and (lane is None or status != "pending"):
            found.append(f"lanes: {run_id} is held back, {status} in {lane}")
        if lane is not None and not held:
            taken[workflow, lane] += 1
    born = dict(session.all(_BORN_WITH)) if taken else {}
    declared = [(workflow, _DECODER.decode(text)) for workflow, text in session.all(_DECLARED)] if taken else []
    for (workflow, lane), count in taken.items():
        limits = [None if of.concurrency is None else of.concurrency.limit for name, of in declared if name == workflow]
        bound = None if None in limits else max([born[lane], *(limit for limit in limits if limit is not None)])
        if bound is not None and count > bound:
            found.append(f"lanes: {count} runs have places in {lane}, which has {bound}")
    return found
