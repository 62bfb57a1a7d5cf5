"""What becomes of a run in which nothing is under way: pure.

Short waits are sat out here, because claiming a run again costs more than they do. A wait for an event or a
child never is: only the dispatcher knows of those, and it tells when a run parks.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Final, Literal

from endpoint_sdk.pending_call import Call
from endpoint_sdk.wire import messages

# Only the dispatcher knows when these end.
_ELSEWHERE: Final = messages.OF_CHILDREN | {"event"}

Verdict = Literal["stay", "park", "release"]


def judge(calls: Collection[Call], *, leaving: bool, left: timedelta | None, now: int, longest: timedelta) -> Verdict:
    """Stay, park until one of *calls* is answered, or release the run so that it goes on elsewhere at once.

    *left* is the host's time, None for no limit; *now* the dispatcher's time in epoch milliseconds; *longest* how
    long a wait may be sat out.
    """
    if not all(call.rests for call in calls):
        return "release" if leaving else "stay"
    if leaving:
        return "park"
    dues = [call.due_ms for call in calls if call.address.kind not in _ELSEWHERE]
    if len(dues) < len(calls):
        return "park"
    soonest = min((due for due in dues if due is not None), default=None)
    return "park" if soonest is None or _is_long(soonest - now, left, longest) else "stay"


def _is_long(delay_ms: int, left: timedelta | None, longest: timedelta) -> bool:
    delay = timedelta(milliseconds=min(max(delay_ms, 0), 10**14))
    return delay > longest or (left is not None and left <= delay)
