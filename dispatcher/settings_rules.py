"""Rules between settings, judged on what was written so that they are reported together with every other fault."""

import difflib
from typing import Any, Final

from dispatcher import broker_url, endpoint_url, settings_schedules
from dispatcher.settings import Publishing, Recovery, Section
from dispatcher.settings_yaml import Document, FromText, Path

ENVIRONMENT_ONLY: Final = frozenset({"secretKey", "adminKey"})


def check_written(document: Document) -> None:
    """Refuses in the file what only the environment may say."""
    for name in ENVIRONMENT_ONLY & document.data.keys():
        del document.data[name]
        variable = {"secretKey": "POINTSMAN_SECRET_KEY", "adminKey": "POINTSMAN_ADMIN_KEY"}[name]
        message = f"There is no setting {name!r} here: it is not kept in a file."
        document.problems.append(document.problem((name,), "unknown_key", message, f"Set {variable}.", key=True))


def check(document: Document) -> None:
    """Adds a problem for each rule the document breaks; values of a wrong type are left to the types."""
    _idle_timeout(document)
    _backoff(document)
    _publishers(document)
    _routes(document)
    settings_schedules.check(document)


def _idle_timeout(document: Document) -> None:
    section = ("daemons", "recoverOverdueOutboxEntries")
    idle = _number(document, section, "claimIdleTimeoutMs", Recovery)
    refresh = _number(document, section, "claimRefreshIntervalMs", Recovery)
    if idle is None or refresh is None or idle >= 3 * refresh:
        return
    written = "claimIdleTimeoutMs" if (*section, "claimIdleTimeoutMs") in document.values else "claimRefreshIntervalMs"
    document.problems.append(
        document.problem(
            (*section, written),
            "idle_timeout_too_short",
            f"claimIdleTimeoutMs ({idle}) has to be at least three times claimRefreshIntervalMs ({refresh}), "
            "or a claim is lost before its third refresh.",
            f"Set claimRefreshIntervalMs to at most {max(idle // 3, 1)}, "
            f"or claimIdleTimeoutMs to at least {3 * refresh}.",
        )
    )


def _backoff(document: Document) -> None:
    section = ("daemons", "publishPendingOutboxEntries")
    base = _number(document, section, "baseBackoffMs", Publishing)
    most = _number(document, section, "maxBackoffMs", Publishing)
    if base is not None and most is not None and base > most:
        document.problems.append(
            document.problem(
                (*section, "baseBackoffMs"),
                "out_of_range",
                f"baseBackoffMs ({base}) has to be at most maxBackoffMs ({most}).",
            )
        )


def _publishers(document: Document) -> None:
    for name, publisher in _mapping(document.data.get("publishers")).items():
        kind = _mapping(publisher).get("type")
        if kind == "push":
            _plain_http(document, ("publishers", name), _mapping(publisher))
        elif kind == "sqs":
            _region(document, ("publishers", name), _mapping(publisher))


def _plain_http(document: Document, path: Path, publisher: dict[str, Any]) -> None:
    url = publisher.get("url")
    if not isinstance(url, str) or publisher.get("allowHttp") in {True, "true"}:
        return
    fault = endpoint_url.fault(url, allow_http=False)
    if fault and not endpoint_url.fault(url, allow_http=True):
        document.problems.append(document.problem((*path, "url"), "endpoint_url_refused", fault))


def _region(document: Document, path: Path, publisher: dict[str, Any]) -> None:
    url, endpoint = publisher.get("queueUrl"), publisher.get("endpointUrl")
    if publisher.get("region") is not None or not isinstance(url, str) or broker_url.queue_fault(url):
        return
    if broker_url.queue_region(url) or (isinstance(endpoint, str) and _region_of(endpoint)):
        return
    document.problems.append(
        document.problem(
            (*path, "queueUrl"),
            "region_missing",
            "The queue's URL does not name its AWS region.",
            "Write it beside the URL: region: eu-west-1 (for a local server any).",
        )
    )


def _region_of(url: str) -> str | None:
    try:
        return broker_url.queue_region(url)
    except ValueError:
        return None  # its own fault is told where it stands


def _routes(document: Document) -> None:
    publishers = _mapping(document.data.get("publishers"))
    routes = document.data.get("routes")
    for index, route in enumerate(routes if isinstance(routes, list) else []):
        names = _mapping(route).get("publish")
        for place, name in enumerate(names if isinstance(names, list) else []):
            if isinstance(name, str) and name not in publishers:
                near = difflib.get_close_matches(name, publishers, 1)
                document.problems.append(
                    document.problem(
                        ("routes", index, "publish", place),
                        "unknown_publisher",
                        f"There is no publisher {name!r}.",
                        f"Did you mean {near[0]!r}?" if near else "Describe it under publishers.",
                    )
                )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(document: Document, section: tuple[str, str], name: str, model: type[Section]) -> int | None:
    values = _mapping(_mapping(document.data.get(section[0])).get(section[1]))
    field = next(item for item in model.model_fields.values() if item.alias == name)
    value = values.get(name, field.default)
    if isinstance(value, FromText) and value.isascii() and value.isdigit():
        return int(value[:20])
    return value if isinstance(value, int) and not isinstance(value, bool) else None
