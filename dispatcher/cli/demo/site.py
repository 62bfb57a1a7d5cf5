"""Dispatchers of the demo and the benchmark: configuration, real `serve` processes, and the calls made to them."""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from dispatcher.cli.demo.processes import Child, Processes, free_port, listening
from endpoint_sdk.wire import signature

DEMO_DAEMONS: Final[dict[str, dict[str, int]]] = {
    "recoverOverdueOutboxEntries": {
        "intervalMs": 500,
        "claimIdleTimeoutMs": 3_000,
        "claimRefreshIntervalMs": 1_000,
    },
    "publishPendingOutboxEntries": {"claimDeadlineMs": 3_000, "baseBackoffMs": 200},
}
# Publishers of the configuration sign with `${…}` of this one, the site's own secret.
SECRET_VARIABLE: Final = "DEMO_SIGNING_SECRET"  # noqa: S105  a variable's name
_READY: Final = 30.0


@dataclass
class Site:
    """One or more dispatcher processes over one database, from `start` until the processes' block is left."""

    folder: Path
    processes: Processes
    database: str
    daemons: dict[str, dict[str, int]] = field(default_factory=dict)
    publishers: dict[str, dict[str, str]] = field(default_factory=dict)
    routes: list[dict[str, list[str]]] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=dict)
    secret: str = field(default_factory=signature.new_secret)
    admin_key: str = field(default_factory=lambda: "pmk_" + secrets.token_urlsafe(32))
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    urls: list[str] = field(default_factory=list)
    dispatchers: list[Child] = field(default_factory=list)
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    def start(self, count: int) -> None:
        """Creates the schema and returns once *count* dispatchers are ready."""
        # JSON is YAML, and needs no second encoder.
        written = {"daemons": self.daemons, "publishers": self.publishers, "routes": self.routes}
        (self.folder / "pointsman.yaml").write_text(json.dumps(written, indent=2) + "\n")
        migrate = self.processes.start("migrate", command("migrate"), self.environment())
        if migrate.popen.wait(_READY) != 0:
            raise RuntimeError(f"pointsman migrate failed\n{migrate.text()}")
        for number in range(1, count + 1):
            self._serve(number)
        for child, url in zip(self.dispatchers, self.urls, strict=True):
            self.processes.check(_READY, lambda url=url: _is_ready(url), f"{child.name} is ready", child)  # type: ignore[misc]

    def stop(self) -> list[int]:
        """Ends every dispatcher and returns their exit codes."""
        self.http.close()
        return [child.stop() for child in self.dispatchers]

    def environment(self, **more: str) -> dict[str, str]:
        """This process' environment with everything Pointsman reads set by the site alone."""
        return {
            **_inherited(),
            "POINTSMAN_CONFIG": str(self.folder / "pointsman.yaml"),
            "POINTSMAN_DATABASE_URL": self.database,
            "POINTSMAN_SECRET_KEY": self.secret_key,
            "POINTSMAN_ADMIN_KEY": self.admin_key,
            SECRET_VARIABLE: self.secret,
            **self.variables,
            **more,
        }

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The answer of the first dispatcher's API; RuntimeError with the error's sentence when it refuses."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        answer = self.http.request(method, self.urls[0] + path, json=body, headers=headers)
        if answer.is_error:
            raise RuntimeError(f"{method} {path} was answered {answer.status_code}: {answer.text}")
        document: dict[str, Any] = answer.json()
        return document

    def items(self, path: str) -> list[dict[str, Any]]:
        """Every item of a paged listing."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.call("GET", path + after)
            found += page["items"]
            if page.get("next") is None:
                return found
            after = f"?after={page['next']}"

    def add_endpoint(self, name: str, url: str, secret: str, platform: str = "generic", in_flight: int = 50) -> None:
        """Registers a loopback endpoint; the dispatcher probes it first."""
        self.call(
            "POST",
            "/v1/endpoints",
            {
                "name": name,
                "url": url,
                "platform": platform,
                "secret": secret,
                "maxInFlight": in_flight,
                "allowHttp": True,
                "allowAddresses": ["127.0.0.0/8"],
            },
        )

    def start_app(self, name: str, module: str, bundle: Path, env: dict[str, str]) -> tuple[Child, str]:
        """A listening uvicorn process that serves *module* from *bundle* as executor *name*, and its URL."""
        port = free_port()
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--no-access-log"]
        uvicorn = [sys.executable, "-m", "uvicorn", module, *arguments]
        child = self.processes.start(name, uvicorn, {**_inherited(), **env}, bundle)
        self.processes.check(_READY, lambda: listening(port), f"{name} listens", child)
        return child, f"http://127.0.0.1:{port}/"

    def start_worker(self, name: str, program: str, bundle: Path, env: dict[str, str]) -> Child:
        """A `pointsman worker` process that runs *program* of *bundle* as executor *name*."""
        return self.processes.start(name, command("worker", program), {**_inherited(), **env}, bundle)

    def _serve(self, number: int) -> None:
        port = free_port()
        environment = self.environment(POINTSMAN_LISTEN=f"127.0.0.1:{port}")
        self.dispatchers.append(self.processes.start(f"dispatcher-{number}", command("serve"), environment))
        self.urls.append(f"http://127.0.0.1:{port}")


def command(*words: str) -> list[str]:
    """The `pointsman` command line of this very installation."""
    return [sys.executable, "-m", "dispatcher.cli", *words]


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=1, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
