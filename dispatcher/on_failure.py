"""What follows a failure: a run of the workflow the failed one's code names, told what failed and with what input."""

import logging
from typing import Any, Final

import msgspec
from msgspec import Raw

from dispatcher import declarations, errors, submission
from dispatcher.queues import Queue
from dispatcher.store import Session, runs
from endpoint_sdk.wire import identity, limits
from endpoint_sdk.wire.messages import WorkflowRef

PREFIX: Final = "on_failure:"
"""How the idempotency key of a run that follows a failure begins; the failed run's id is the rest."""

_NOTHING: Final = b"null"

log = logging.getLogger(__name__)


def start(session: Session, failed: runs.Row, actor: str) -> None:
    """A run of the workflow declared as `onFailure` of the *failed* one is stored, once for it, if one is declared.

    It has the same pool and tags. The failure of such a run starts none: nothing fails for ever.
    """
    if (failed.idempotency_key or "").startswith(PREFIX):
        return
    declared = declarations.find(session, failed.namespace, failed.workflow, failed.version)
    if declared is None or declared.on_failure is None:
        return
    try:
        submission.born(session, _birth(failed, declared.on_failure), actor, session.now())
    except (errors.Unprocessable, errors.Conflict) as refusal:
        # The run has failed all the same.
        log.warning("no run follows a failure", extra={"run_id": failed.id, "cause": refusal.code})


def _birth(failed: runs.Row, follower: WorkflowRef) -> runs.Birth:
    Queue(failed.namespace, follower.name, follower.version, failed.pool).checked_key()
    return runs.Birth(
        id=identity.new("run"),
        namespace=failed.namespace,
        workflow=follower.name,
        version=follower.version,
        priority=failed.priority,
        pool=failed.pool,
        tags=failed.tags,
        idempotency_key=PREFIX + failed.id,
        request_id=None,
        input=_input(failed),
    )


def _input(failed: runs.Row) -> bytes:
    told: dict[str, Any] = {
        "runId": failed.id,
        "workflow": failed.workflow,
        "version": failed.version,
        "input": Raw(failed.input),
        "error": Raw(failed.error or _NOTHING),
    }
    encoded = msgspec.json.encode(told)
    # Each fits in a payload, both may not: the input can be read from the failed run.
    return encoded if len(encoded) <= limits.MAX_PAYLOAD else msgspec.json.encode({**told, "input": None})
