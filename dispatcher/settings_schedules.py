"""What `schedules:` has to mean, beyond its types: one rule each, in a zone that exists, with an input that is JSON."""

import difflib
import json
import zoneinfo
from typing import Any

from dispatcher import errors, schedules
from dispatcher.queues import Queue
from dispatcher.settings_yaml import Document, Path
from dispatcher.store.endpoints import EVERYWHERE
from endpoint_sdk.wire import limits


def check(document: Document) -> None:
    """Adds a problem for each schedule that cannot start anything; values of a wrong type are left to the types."""
    found = document.data.get("schedules")
    for name, given in found.items() if isinstance(found, dict) else ():
        if isinstance(given, dict):
            path = ("schedules", name)
            _rule(document, path, given)
            _timezone(document, path, given.get("timezone"))
            _input(document, path, given.get("input"))
            _namespace(document, path, given.get("namespace"))
            _queue(document, path, given)


def _rule(document: Document, path: Path, given: dict[str, Any]) -> None:
    cron, every = given.get("cron"), given.get("everyMs")
    if cron is None and every is None:
        hint = 'Write cron: "0 7 * * *", or everyMs: 60000.'
        _add(document, path, "missing", f"{path[-1]} says neither cron nor everyMs.", hint)
    elif cron is not None and every is not None:
        _add(document, (*path, "everyMs"), "schedule_invalid", "cron and everyMs exclude one another.", "Remove one.")
    if isinstance(cron, str) and len(cron) <= 200 and (fault := schedules.cron_fault(cron)):
        _add(document, (*path, "cron"), "schedule_invalid", fault, "For example 0 7 * * 1-5: at seven on weekdays.")


def _timezone(document: Document, path: Path, name: Any) -> None:
    if not isinstance(name, str) or len(name) > 100:
        return
    if fault := schedules.timezone_fault(name):
        hint = f"Did you mean {near!r}?" if (near := nearest_timezone(name)) else "For example Europe/Berlin, or UTC."
        _add(document, (*path, "timezone"), "timezone_unknown", fault, hint)


def nearest_timezone(name: str) -> str | None:
    """The time zone whose name is most like *name*, None when none is like it."""
    known = {zone.lower(): zone for zone in zoneinfo.available_timezones()}
    near = difflib.get_close_matches(name.lower().replace(" ", "_"), known, 1)
    return known[near[0]] if near else None


def _input(document: Document, path: Path, value: Any) -> None:
    try:
        size = len(payload(value))
    except ValueError:
        _add(document, (*path, "input"), "wrong_type", "input has to be JSON: .nan and .inf are no numbers there.")
        return
    if size > limits.MAX_PAYLOAD:
        message = f"input has {size} bytes as JSON, at most {limits.MAX_PAYLOAD}."
        _add(document, (*path, "input"), "out_of_range", message)


def payload(value: Any) -> bytes:
    """*value*, as the YAML had it, as JSON. Raises ValueError for what JSON has no words for."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _namespace(document: Document, path: Path, name: Any) -> None:
    if name == EVERYWHERE:
        message = f"A schedule is in one namespace, and {EVERYWHERE} is none."
        hint = "Name one namespace; without a name it is default."
        _add(document, (*path, "namespace"), "invalid_value", message, hint)


def _queue(document: Document, path: Path, given: dict[str, Any]) -> None:
    defaults = {"namespace": "default", "workflow": None, "version": "", "pool": "default"}
    parts: list[Any] = [given.get(name) or default for name, default in defaults.items()]
    if all(isinstance(part, str) for part in parts):
        try:
            Queue(*parts).checked_key()
        except errors.Unprocessable as refusal:
            _add(document, (*path, "workflow"), refusal.code, refusal.message, refusal.hint)


def _add(document: Document, path: Path, code: str, message: str, hint: str | None = None) -> None:
    document.problems.append(document.problem(path, code, message, hint))
