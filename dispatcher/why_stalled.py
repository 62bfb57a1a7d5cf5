"""Why a run will not move by itself: it is stalled, for one of five reasons, or it has ended."""

from typing import Any, Final

from dispatcher import lifecycle
from dispatcher.store import runs
from endpoint_sdk.wire.operating import Why

_WORDS: Final = {
    "killed_at_step": "its executor died {kills} times in the task {step!r} (last: {cause}; last record: {last});"
    " split the task or give its host more time or memory",
    "crash_loop": "its executor died {kills} times with nothing recorded between (last: {cause}; last record: {last});"
    " split what follows that record, or give its host more time or memory",
    "undeliverable": "{deliveries} deliveries and {endings} endings brought no progress{outcome};"
    " make what serves {workflow} {version} answer",
    "too_old": "it waited {waited} ms and nobody claimed it; make sure that somebody serves {workflow} {version}",
    "divergence": "its code does not fit what is recorded ({message}); deploy code that does, requeue it on a version"
    " that does (--version), or forget what is not asked for (--discard-unconsumed)",
}


def stalled(run: runs.Row, details: dict[str, Any]) -> Why:
    """The sentence for a stalled run, whose stall has these *details*; what an executor wrote may be anything."""
    facts = {"status": run.status, "reason": run.reason, **details}
    too_old = run.reason == "undeliverable" and "waitedMs" in details and not details.get("endings")
    killed = _mapping(details.get("killed"))
    words = _WORDS.get("too_old" if too_old else run.reason or "", "{reason}").format(
        workflow=run.workflow,
        version=run.version,
        waited=details.get("waitedMs"),
        kills=details.get("kills", "several"),
        endings=details.get("endings", "too many"),
        deliveries=details.get("deliveries", run.deliveries),
        outcome=f", the last {details['lastOutcome']}" if details.get("lastOutcome") else "",
        step=killed.get("step"),
        cause=_cause(killed),
        last=_mapping(details.get("lastRecord")).get("name", "none"),
        message=_message(details),
        reason=run.reason,
    )
    return Why(f"The run is stalled: {words}.", facts, f"pointsman run requeue {run.id}")


def ended(run: runs.Row, details: dict[str, Any]) -> Why:
    """The sentence for a run that has ended; the run it was restarted as is named."""
    assert lifecycle.is_terminal(run.status)
    facts = {"status": run.status, "reason": run.reason, **details}
    if run.reason == "restarted_as" and (new := details.get("runId")):
        return Why(f"The run is cancelled: it was restarted as {new}.", facts, f"pointsman run show {new}")
    because = f" ({run.reason})" if run.reason else ""
    return Why(f"The run is {run.status}{because}: nothing is left to do.", facts, None)


def _cause(killed: dict[str, Any]) -> str:
    cause = killed.get("cause")
    return f"silent, {killed.get('heldMs')} ms after its claim" if cause == "claim_stale" else str(cause or "unknown")


def _message(details: dict[str, Any]) -> str:
    message = details.get("message")
    return message if isinstance(message, str) and message else "it asks for other tasks than the ones recorded"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
