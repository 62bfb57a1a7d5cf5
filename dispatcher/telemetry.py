"""Logs: one JSON object a line on stderr, never a payload or a secret.

Exceptions are told by type and place only: their messages may quote what a database or a decoder was given.
"""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from dispatcher.errors import DispatcherError

# Below these levels they say too much: brokers' clients log whole requests, with the claim tokens in them.
_FLOORS: Final = {
    logging.WARNING: ("alembic", "asyncio", "httpx", "uvicorn"),
    logging.INFO: ("boto3", "botocore", "redis", "s3transfer", "urllib3"),
}


def configure(level: str) -> None:
    """Everything the process logs, uvicorn included, goes to stderr as JSON from *level* on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter())
    logging.getLogger().handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Everything is logged from *level* on, and what would tell secrets never; where to does not change."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for floor, names in _FLOORS.items():
        for name in names:
            logging.getLogger(name).setLevel(max(root.level, floor))


def formatter() -> logging.Formatter:
    """Makes a log record one JSON object: event, level, logger, timestamp, and the record's extra fields."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            _without_message,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=_word),
        ],
    )


def _without_message(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    found = event.pop("exc_info", None)
    error = found[1] if isinstance(found, tuple) else found
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["at"] = "".join(traceback.format_tb(error.__traceback__))
        if isinstance(error, DispatcherError):
            event["message"] = str(error)
        if (sqlstate := getattr(error, "sqlstate", None)) is not None:
            event["sqlstate"] = sqlstate
    return event


def _word(value: object) -> str:
    return type(value).__name__
