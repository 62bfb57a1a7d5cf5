"""What becomes of a run in which nothing is under way: pure.

Short waits are sat out here, because claiming a run again costs more than they do. A wait for an event never is: only
the dispatcher knows of events, and it tells when a run parks.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Final, Literal

from endpoint_sdk.pending_call import Call

_LONGEST_WAIT: Final = timedelta(seconds=10)

Verdict = Literal["stay", "park", "release"]


def judge(calls: Collection[Call], *, leaving: bool, left: timedelta | None, now: int) -> Verdict:
    """Stay, park until one of *calls* is answered, or release the run so that it goes on elsewhere at once.

    *left* is the host's time, None for no limit; *now* the dispatcher's time in epoch milliseconds.
    """
    if not all(call.rests for call in calls):
        return "release" if leaving else "stay"
    if leaving:
        return "park"
    dues = [call.due_ms for call in calls if call.address.kind != "event"]
    if len(dues) < len(calls):
        return "park"
    soonest = min((due for due in dues if due is not None), default=None)
    return "park" if soonest is None or _is_long(soonest - now, left) else "stay"


def _is_long(delay_ms: int, left: timedelta | None) -> bool:
    delay = timedelta(milliseconds=min(max(delay_ms, 0), 10**14))
    return delay > _LONGEST_WAIT or (left is not None and left <= delay)
