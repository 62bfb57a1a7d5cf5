"""Calling the dispatcher's API from the command line."""

import json
from typing import Annotated, Any, Final, NoReturn

import typer

from dispatcher.cli import output
from dispatcher.cli.output import Format

_SECONDS: Final = 30.0
_CODES: Final = {404: output.NOT_FOUND, 409: output.CONFLICT, 502: output.UNREACHABLE, 503: output.UNREACHABLE}

Url = Annotated[str, typer.Option("--url", envvar="POINTSMAN_URL", help="The dispatcher's URL.")]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="POINTSMAN_API_KEY", help="An API key (pmk_…).", show_default=False)
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", envvar="POINTSMAN_NAMESPACE", help="Of an admin key: where to act.")
]
DEFAULT_URL: Final = "http://127.0.0.1:8400"


class Client:
    """Sends one call a command; a refusal or silence ends the process with its exit code."""

    def __init__(self, url: str, api_key: str, namespace: str | None, shown: Format) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._namespace = namespace
        self._shown = shown

    def call(
        self, method: str, path: str, body: object = None, query: dict[str, Any] | None = None, wait: float = 0
    ) -> str:
        """The answer's text; *wait* is how long the server may take on purpose, in seconds."""
        import httpx

        headers = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        if self._namespace:
            headers["pointsman-namespace"] = self._namespace
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = httpx.request(
                method,
                self._url + path,
                headers={name.encode(): value.encode() for name, value in headers.items()},
                params=given,
                content=None if body is None else json.dumps(body).encode(),
                timeout=_SECONDS + wait,
                trust_env=False,
            )
        except httpx.TransportError as error:
            self._unreachable(type(error).__name__)
        except (httpx.InvalidURL, ValueError):
            output.fail(output.USAGE, {"code": "bad_url", "message": "The URL or the key is malformed."}, self._shown)
        if not answer.is_success:
            code = _CODES.get(answer.status_code, output.FAILED)
            output.fail(code, _error(answer.status_code, answer.text), self._shown)
        return answer.text

    def _unreachable(self, cause: str) -> NoReturn:
        error = {
            "code": "unreachable",
            "message": f"The dispatcher at {self._url} does not answer: {cause}.",
            "hint": "Start it with `pointsman serve` or `pointsman dev`, or name it with --url or POINTSMAN_URL.",
        }
        output.fail(output.UNREACHABLE, error, self._shown)


def _error(status: int, text: str) -> dict[str, Any]:
    try:
        error = json.loads(text)["error"]
        return error if isinstance(error, dict) else {"code": "unknown", "message": f"HTTP {status}"}
    except (ValueError, KeyError, TypeError):
        hint = "Is this the dispatcher's address?"
        return {"code": "not_a_dispatcher", "message": f"HTTP {status} without an error object.", "hint": hint}
