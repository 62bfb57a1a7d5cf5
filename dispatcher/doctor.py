"""Whether a dispatcher would work with these settings here: a finding for each thing that can be wrong, and its remedy.

Nothing is changed: no schema is made, no key written, nothing delivered.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from dispatcher import app, broker_clients, endpoint_url, endpoints, errors, schedule_checks, secrets, unserved
from dispatcher.broker_clients import BrokerClients
from dispatcher.settings import BrokerPublisher, Publisher, PushPublisher, Settings
from dispatcher.store import Store, migrating
from endpoint_sdk.transport import AsyncTransport
from endpoint_sdk.wire import signature
from publishers import discovery
from publishers.base import Target

_SKEW_MS: Final = 2_000
_MOST_SKEW_MS: Final = 60_000
_PROBE_SECONDS: Final = 20.0

Status = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's: what was looked at, how it is, and what to do unless all is well."""

    check: str
    status: Status
    message: str
    todo: str | None = None


def examine(settings: Settings) -> list[Finding]:
    """Every finding about extras, database, clock, keys, schedules, versions, the public URL and each publisher."""
    found = [*_extras(settings)]
    store = None
    try:
        store = _open(settings, found)
        found += _keys(settings, store)
        if store is not None:
            found += _schedules(store)
            found += _versions(settings, store)
    finally:
        if store is not None:
            store.close()
    found.append(_public_url(settings))
    return found + asyncio.run(_publishers(settings))


def _extras(settings: Settings) -> Iterator[Finding]:
    for name, publisher in settings.broker_publishers.items():
        missing = broker_clients.missing_extra({name: publisher})
        if missing is not None:
            yield Finding("extras", "fail", missing.message, missing.hint)
            return
    kinds = sorted({publisher.type for publisher in settings.broker_publishers.values()})
    yield Finding("extras", "ok", f"installed: server{''.join(f', {kind}' for kind in kinds)}")


def _open(settings: Settings, found: list[Finding]) -> Store | None:
    """The store if it can be used; what is wrong otherwise, or with its schema or clock, is added to *found*."""
    file = _file(settings)
    if file is not None and not file.exists():
        found.append(Finding("database", "ok", f"{file} is made at the first start"))
        return None
    try:
        store = Store.open(settings.database.url)
    except errors.StartUpError as error:
        held = error.code == "database_in_use"
        status: Status = "ok" if held else "fail"
        found.append(Finding("database", status, error.message, None if held else error.hint))
        return None
    try:
        asked = int(time.time() * 1_000)
        told = store.transact_blocking(lambda session: session.now())
        found.append(Finding("database", "ok", f"{store.dialect} answers"))
        answered = int(time.time() * 1_000)
        found += [_schema(store), _clock(told, asked, answered)]
    except (errors.StartUpError, errors.Unavailable) as error:
        found.append(Finding("database", "fail", error.message, error.hint or "Is its URL right, and does it run?"))
        store.close()
        return None
    return store


def _schema(store: Store) -> Finding:
    try:
        store.check_schema()
    except errors.StartUpError as error:
        if migrating.current(store) == 0 or (store.dialect == "sqlite" and error.code == "schema_too_old"):
            return Finding("schema", "ok", "is made or brought up to date at the next start")
        return Finding("schema", "fail", error.message, error.hint)
    return Finding("schema", "ok", f"version {migrating.current(store)}")


def _clock(told: int, asked: int, answered: int) -> Finding:
    skew = max(asked - told, told - answered, 0)
    if skew < _SKEW_MS:
        return Finding("clock", "ok", "this host and the database agree")
    direction = "behind" if told > answered else "ahead of"
    return Finding(
        "clock",
        "warn" if skew < _MOST_SKEW_MS else "fail",
        f"this host is {skew / 1_000:.1f} s {direction} the database",
        "Set both by NTP: signatures are refused when they are 300 s off, and times shown will not agree.",
    )


def _keys(settings: Settings, store: Store | None) -> Iterator[Finding]:
    file = _file(settings)
    if settings.secret_key is None and file is not None and not file.with_name(f"{file.name}.key").exists():
        yield Finding("secret key", "ok", f"{file}.key is made at the first start")
        return
    try:
        given = settings.secret_key.get_secret_value() if settings.secret_key else None
        keys = secrets.open_keys(settings.database.url, given)
        if store is not None and migrating.current(store):
            asyncio.run(endpoints.targets(store, keys))
    except (errors.StartUpError, errors.Unavailable) as error:
        yield Finding("secret key", "fail", error.message, error.hint)
        return
    except Exception as error:
        yield Finding("secret key", "warn", f"could not be tried on the stored secrets: {type(error).__name__}")
        return
    yield Finding("secret key", "ok", "reads the stored signing secrets" if store else "is there")


def _schedules(store: Store) -> Iterator[Finding]:
    try:
        store.check_schema()
        count, doubtful = store.transact_blocking(schedule_checks.doubtful)
    except (errors.StartUpError, errors.Unavailable):
        return  # told above
    if doubtful:
        todo = "Add the endpoint or start a worker, or correct the schedule; pointsman schedule list shows them."
        yield Finding("schedules", "warn", " ".join(doubtful), todo)
    elif count:
        yield Finding("schedules", "ok", f"{count} in force")


def _versions(settings: Settings, store: Store) -> Iterator[Finding]:
    try:
        store.check_schema()
        given = settings.secret_key.get_secret_value() if settings.secret_key else None
        targets = asyncio.run(endpoints.targets(store, secrets.open_keys(settings.database.url, given)))
        found = store.transact_blocking(lambda session: unserved.warnings(session, settings.routes, targets))
    except Exception:
        return  # told above
    for warned in found:
        yield Finding("versions", "warn", f"{warned.message} ({warned.code})", warned.hint)
    if not found:
        yield Finding("versions", "ok", "somebody serves every version that runs wait for")


def _public_url(settings: Settings) -> Finding:
    url = settings.server.public_url
    remote = [
        name for name, item in settings.publishers.items() if not endpoint_url.is_loopback(endpoints.url_of(item))
    ]
    if url is None and remote:
        return Finding(
            "publicUrl",
            "warn",
            f"is not set, so executors behind {', '.join(remote)} are told {settings.server.url}",
            "Set server.publicUrl to what they reach this dispatcher at.",
        )
    if url is not None and url.startswith("http://") and not endpoint_url.is_loopback(url):
        return Finding("publicUrl", "warn", f"{url} is not https: executors send tokens in the clear", "Use https.")
    return Finding("publicUrl", "ok", settings.server.url)


async def _publishers(settings: Settings) -> list[Finding]:
    transport, clients = AsyncTransport(), BrokerClients()
    try:
        looks = (
            _endpoint(name, item, transport, settings.server.url)
            if isinstance(item, PushPublisher)
            else _broker(name, item, clients)
            for name, item in settings.publishers.items()
        )
        return list(await asyncio.gather(*looks))
    finally:
        await clients.close()
        await transport.close()


async def _endpoint(name: str, publisher: PushPublisher, transport: AsyncTransport, url: str) -> Finding:
    result = await discovery.probe(_target(name, publisher), transport, url, name)
    if not result.ok or result.discovered is None:
        return Finding(
            f"publisher {name}",
            "fail",
            f"{result.message or 'no answer'} ({result.code})",
            "Correct it, then try again.",
        )
    served = ", ".join(f"{item.name} {item.version}" for item in result.discovered.workflows) or "nothing"
    return Finding(f"publisher {name}", "ok", f"signed probe answered in {result.ms} ms; serves {served}")


async def _broker(name: str, publisher: BrokerPublisher, clients: BrokerClients) -> Finding:
    check = f"publisher {name}"
    if missing := broker_clients.missing_extra({name: publisher}):
        return Finding(check, "fail", "cannot be looked at: its extra is not installed", missing.hint)
    target = _target(name, publisher)
    made = app.broker(target, publisher, clients)
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            health = await made.check()
    except TimeoutError:
        return Finding(check, "fail", f"{target.url} does not answer", "Is the address right, and does the broker run?")
    finally:
        await made.close()
    if health.state == "active":
        return Finding(check, "ok", f"{publisher.type} takes deliveries at {target.url}")
    return Finding(check, "fail", f"{health.message} ({health.code})", f"Look at {target.url}, then try again.")


def _target(name: str, publisher: Publisher) -> Target:
    secret = signature.parse_secret(publisher.secret.get_secret_value())
    url = endpoints.url_of(publisher)
    if isinstance(publisher, PushPublisher):
        allowed = publisher.allow_addresses
        return Target(name, url, publisher.platform, (secret,), publisher.allow_http, allowed)
    return Target(name, url, "generic", (secret,))


def _file(settings: Settings) -> Path | None:
    url = settings.database.url
    return Path(unquote(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else None
