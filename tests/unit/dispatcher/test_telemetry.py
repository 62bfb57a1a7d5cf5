"""Logs are JSON with fields, and tell exceptions without what they say."""

import json
import logging
import sys

from dispatcher import errors, telemetry


def raise_(error: Exception | None) -> None:
    if error is not None:
        raise error


def line(message: str, *, error: Exception | None = None, **extra: object) -> dict[str, object]:
    info = None
    try:
        raise_(error)
    except Exception:
        info = sys.exc_info()
    record = logging.LogRecord("dispatcher.x", logging.WARNING, "x.py", 1, message, (), info)
    record.__dict__.update(extra)
    found: dict[str, object] = json.loads(telemetry.formatter().format(record))
    return found


def test_fields() -> None:
    """A line has event, level, logger, time and the fields it was logged with."""
    found = line("claim released", run_id="run_1", revision=3)

    assert found["event"] == "claim released"
    assert (found["level"], found["logger"]) == ("warning", "dispatcher.x")
    assert (found["run_id"], found["revision"]) == ("run_1", 3)
    assert str(found["timestamp"]).endswith("Z")


def test_exceptions_are_told_by_type_and_place() -> None:
    """An exception's message, which may quote a payload, is left out; our own sentences are kept."""
    found = line("tick failed", error=ValueError("hunter22"))
    own = line("tick failed", error=errors.Unavailable("unavailable", "the database does not answer"))

    assert found["error"] == "ValueError"
    assert "test_telemetry" in str(found["at"])
    assert "hunter22" not in json.dumps(found)
    assert own["message"] == "the database does not answer"


def test_odd_fields_are_named_by_type() -> None:
    """A field that is not JSON never breaks a line or shows its content."""
    assert line("x", secret=object())["secret"] == "object"
