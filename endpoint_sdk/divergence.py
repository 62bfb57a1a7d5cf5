"""Names what does not fit: recorded calls the code no longer makes, new calls it makes instead."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from endpoint_sdk import codec

_MOST: Final = 20

View = dict[str, Any]


class Watch:
    """Calls *look* once nothing has happened for *idle_seconds*."""

    def __init__(self, idle_seconds: float, look: Callable[[], None]) -> None:
        self._idle_seconds = idle_seconds
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def set(self, wanted: bool) -> None:
        """Something has happened: watches from now on, or not any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._look) if wanted else None


def details(recorded: Sequence[View], new: Sequence[View]) -> dict[str, Any]:
    """What an operator needs to see; `changed` names arguments where a new call resembles a recorded one."""
    found: dict[str, Any] = {"recorded": list(recorded[:_MOST]), "new": list(new[:_MOST])}
    if len(recorded) > _MOST:
        found["unconsumed"] = [view["seq"] for view in recorded]
    found["message"] = _sentence(recorded, new)
    twin = next((pair for pair in ((old, now) for now in new for old in recorded) if _alike(*pair)), None)
    if twin is not None and (changed := _changed(*twin)):
        found["changed"] = changed
        found["message"] += f"; changed: {', '.join(changed)}"
    return found


def unreadable(call: View, error: Exception) -> dict[str, Any]:
    """A recorded result that the task's annotation no longer fits."""
    return {"recorded": [call], "new": [], "message": f"the recorded {_name(call)} cannot be read: {error}"}


def _sentence(recorded: Sequence[View], new: Sequence[View]) -> str:
    asked = f"recorded {_name(recorded[0])} was never asked for" if recorded else "nothing recorded is left"
    return f"{asked}, {_name(new[0])} is new" if new else asked


def _name(view: View) -> str:
    return f"{view['kind']} {view['name']} {view['preview'] or ''}".rstrip()


def _alike(old: View, now: View) -> bool:
    return bool(old["kind"] == now["kind"] and old["name"] == now["name"])


def _changed(old: View, now: View) -> list[str]:
    """The arguments that differ; none when a preview was cut or is not kept."""
    try:
        before, after = (codec.from_json((view["preview"] or "").encode()) for view in (old, now))
    except ValueError:
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return []
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
