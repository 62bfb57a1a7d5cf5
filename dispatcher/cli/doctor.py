"""`pointsman doctor`: what would keep a dispatcher from working here, and what to do about it."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli import config as configuration
from dispatcher.cli import output
from dispatcher.cli.client import ApiKey
from dispatcher.cli.config import ConfigFile, DatabaseUrl, Listen, PublicUrl
from dispatcher.cli.output import Format, Output

if TYPE_CHECKING:
    from dispatcher.doctor import Finding

_SECONDS = 10.0

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="POINTSMAN_URL", help="A running dispatcher to ask as well.", show_default=False),
]


def doctor(
    config: ConfigFile = None,
    listen: Listen = None,
    database: DatabaseUrl = None,
    public_url: PublicUrl = None,
    url: Url = None,
    api_key: ApiKey = "",
    o: Output = Format.TABLE,
) -> None:
    """Check configuration, database, clock, keys and every publisher; exit code 1 if something fails."""
    import msgspec

    from dispatcher import doctor as findings
    from dispatcher import settings_load

    try:
        loaded = settings_load.load(config, os.environ, configuration.flags(listen, database, public_url))
    except settings_load.ConfigInvalid as invalid:
        todo = "Correct it; `pointsman config check` shows every fault."
        found = [findings.Finding("config", "fail", configuration.line(problem), todo) for problem in invalid.problems]
    else:
        where = str(loaded.path or "no file; defaults and the environment")
        found = [findings.Finding("config", "ok", where), *findings.examine(loaded.settings)]
    if url is not None:
        api = _api(url, api_key)
        found.append(api)
        if api.status == "ok" and api_key:
            found += [each for each in _unserved(url, api_key) if each.message not in {item.message for item in found}]
    failed = any(finding.status == "fail" for finding in found)
    text = msgspec.json.encode({"items": found, "ok": not failed}).decode()
    output.show(text, o, lambda _: _print(found))
    if failed:
        raise typer.Exit(output.FAILED)


def _unserved(url: str, api_key: str) -> "list[Finding]":
    """What the dispatcher warns of in its queues: those of the key's namespace."""
    import httpx

    from dispatcher.doctor import Finding

    headers = {"authorization": f"Bearer {api_key}"}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/queues?limit=500", timeout=_SECONDS, trust_env=False, headers=headers)
        warnings = [item["warning"] for item in answer.raise_for_status().json()["items"] if item.get("warning")]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return [Finding("versions", "warn", f"could not be looked at: {type(error).__name__}", "Try again.")]
    return [Finding("versions", "warn", f"{item['message']} ({item['code']})", item["hint"]) for item in warnings]


def _print(found: "list[Finding]") -> None:
    width = max(len(finding.check) for finding in found)
    for finding in found:
        todo = f"  → {finding.todo}" if finding.todo and finding.status != "ok" else ""
        print(f"{finding.status:<4}  {finding.check:<{width}}  {finding.message}{todo}")


def _api(url: str, api_key: str) -> "Finding":
    import httpx

    from dispatcher.doctor import Finding

    url = url.rstrip("/")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        ready = httpx.get(f"{url}/readyz", timeout=_SECONDS, trust_env=False)
        known = httpx.get(f"{url}/v1/publishers", timeout=_SECONDS, trust_env=False, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Finding("api", "fail", f"{url} does not answer: {type(error).__name__}", "Start it, or correct --url.")
    if ready.status_code != 200:
        return Finding("api", "fail", f"{url} is not ready: HTTP {ready.status_code}", "Its log says why.")
    if api_key and known.status_code != 200:
        message = f"{url} refuses the API key: HTTP {known.status_code}"
        return Finding("api", "fail", message, "Use a key with the scope read: pointsman key create")
    return Finding("api", "ok", f"{url} is ready{' and takes the API key' if api_key else ''}")
