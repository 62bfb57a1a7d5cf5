"""An HTTP endpoint that executes runs: what it serves, and how it answers a request on whatever host it lives.

The host-neutral part: hosts hand in a method, headers and the bytes they received. Signatures are checked over those
bytes before anything in them is looked at (infra/docs/protocol.md, I12).
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from endpoint_sdk import answers, arguments, config, envelope, monotonic
from endpoint_sdk._version import __version__
from endpoint_sdk.answers import HttpAnswer
from endpoint_sdk.envelope import PayloadCodec
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.signing_secrets import Secret, SigningSecrets
from endpoint_sdk.wire import limits, messages, signature
from endpoint_sdk.workflow import Registry, Workflow

if TYPE_CHECKING:
    from endpoint_sdk.asgi import AsgiApp
    from endpoint_sdk.aws_lambda import LambdaHandler
    from endpoint_sdk.executor import Executor
    from endpoint_sdk.host_time import Remaining

_log: Final = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 1
_message: Final = msgspec.json.Decoder(messages.Delivery | messages.Discover)


class Endpoint:
    """Serves *workflows* to a dispatcher that signs its requests.

    *name* is the audience this endpoint answers to (default POINTSMAN_ENDPOINT; none: every audience), *url* the
    dispatcher to call instead of the one a delivery names (POINTSMAN_URL), *secret* one or more `whsec_…` or a
    function that returns them, called at most every five minutes (POINTSMAN_SIGNING_SECRET), *max_duration* the time
    the host gives one request where the host does not say so itself (POINTSMAN_MAX_DURATION), *tolerance* the age in
    whole seconds, 0 to 900, a signature may have (POINTSMAN_SIGNATURE_TOLERANCE; 300), *codec* what payloads are stored
    through, encrypted for example; every client and executor of these workflows needs the same.

    Raises ConfigurationError for anything that could not work, a missing secret included.
    """

    def __init__(
        self,
        workflows: Sequence[Workflow[Any, Any]],
        *,
        name: str | None = None,
        url: str | None = None,
        secret: Secret | None = None,
        max_duration: timedelta | None = None,
        max_concurrent_runs: int = 100,
        tolerance: int | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        environment = config.read()
        self._registry = Registry(arguments.workflows(workflows, "an endpoint"))
        self._names = frozenset(
            environment.endpoint_names if name is None else arguments.names(name, "Endpoint(name=)")
        )
        self._url = config.url(url, "Endpoint(url=)") or environment.url
        self._secrets = SigningSecrets(environment.signing_secret or () if secret is None else secret)
        self._max_duration = config.duration(max_duration, "Endpoint(max_duration=)") or environment.max_duration
        self.max_concurrent_runs = arguments.positive(max_concurrent_runs, "Endpoint(max_concurrent_runs=)")
        self._tolerance = _tolerance(tolerance, environment.tolerance)
        self._refresh_interval_ms = environment.refresh_interval_ms
        self._envelope = envelope.of(codec, "Endpoint(codec=)")

    @property
    def names(self) -> frozenset[str]:
        """The audiences it answers to; empty when it answers to every one."""
        return self._names

    @cached_property
    def asgi(self) -> "AsgiApp":
        """An ASGI application: `app = endpoint.asgi`, or mounted in another one."""
        from endpoint_sdk.asgi import AsgiApp

        return AsgiApp(self)

    @cached_property
    def lambda_handler(self) -> "LambdaHandler":
        """A Lambda handler: `handler = endpoint.lambda_handler`, or a decorator over an existing one."""
        from endpoint_sdk.aws_lambda import LambdaHandler

        return LambdaHandler(self)

    @cached_property
    def executor(self) -> "Executor":
        """The runs this endpoint executes in this process."""
        from endpoint_sdk.executor import Executor

        return Executor(
            self._registry,
            kind="endpoint",
            url=self._url,
            refresh_interval_ms=self._refresh_interval_ms,
            max_concurrent_runs=self.max_concurrent_runs,
            envelope=self._envelope,
        )

    async def handle(
        self,
        method: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        body: bytes,
        remaining: "Remaining | None" = None,
        *,
        sent_at: float | None = None,
    ) -> HttpAnswer:
        """The answer to one request, once whatever it asked for is done.

        *body* is what arrived, byte for byte; *remaining* tells the host's time left, None for no limit. The method
        does not matter: what is signed decides. The age of the signature is judged at *sent_at*, when a queue took the
        message in (seconds since the epoch), by default now. Never raises for what a request contains; raises
        ConfigurationError if the host has parsed the body, because only the received bytes can be verified.
        """
        if not isinstance(body, bytes):
            raise ConfigurationError("handle() takes the body's bytes as received, before anything parsed them")
        budget = self._budget(remaining, monotonic.now())
        if len(body) > limits.MAX_BODY:
            return answers.too_large(limits.MAX_BODY)
        try:
            keys = await self._keys(budget)
        except Exception:
            _log.exception("the signing secret cannot be had")
            return answers.error("retry", "signing_secret_unavailable", "this endpoint cannot get its signing secret")
        try:
            signature.verify(keys, headers, body, time.time() if sent_at is None else sent_at, self._tolerance)
        except signature.SignatureError as error:
            return self._unauthorized(method, error)
        return await self._answer(body, budget)

    def discovered(self) -> messages.Discovered:
        """What this endpoint serves."""
        served = self._registry.served()
        longest = None if self._max_duration is None else self._max_duration // timedelta(milliseconds=1)
        return messages.Discovered(answers.SDK, _build_id(served), served, longest, self._secrets.hint)

    async def _keys(self, remaining: "Remaining") -> tuple[bytes, ...]:
        """The keys; what the user's function, if there is one, takes of the host's time ends before the margin."""
        keys = self._secrets.ready()
        if keys is not None:
            return keys
        import asyncio

        from endpoint_sdk.host_time import margin

        left = remaining()
        async with asyncio.timeout(None if left is None else left.total_seconds() - margin(left)):
            return await asyncio.to_thread(self._secrets.fetch)

    def _unauthorized(self, method: str, error: signature.SignatureError) -> HttpAnswer:
        _log.warning("signature refused: %s", error.reason, extra={"method": method[:20]})
        hint = self._secrets.hint
        return answers.error(
            "unauthorized",
            "unauthorized",
            f"the request is not signed for this endpoint: {error.reason}",
            details={"reason": error.reason, "keyHint": hint},
        )

    async def _answer(self, body: bytes, remaining: "Remaining") -> HttpAnswer:
        try:
            message = _message.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return answers.error("invalid", "malformed", "the signed body is neither a delivery nor a discovery")
        if self._names and message.audience not in self._names:
            return answers.error("invalid", "wrong_audience", "the message is signed for another endpoint")
        if isinstance(message, messages.Discover):
            return answers.answer("discovered", _ascii(self.discovered()))
        return await self._take(message, remaining)

    async def _take(self, delivery: messages.Delivery, remaining: "Remaining") -> HttpAnswer:
        if self._registry.find(delivery.workflow, delivery.version) is None:
            return answers.error(
                "unknown-workflow",
                "unknown_workflow",
                f"{delivery.workflow!r} version {delivery.version!r} is not served here",
            )
        left = remaining()
        if self.executor.busy or (left is not None and left <= timedelta(0)):
            return answers.error("busy", "busy", "this endpoint takes no further run now", retry_after=_BUSY_SECONDS)
        if not config.is_base_url(self._url or delivery.url) or not arguments.is_credential(delivery.token):
            return answers.error("invalid", "malformed", "the delivery cannot be claimed with what it carries")
        try:
            conclusion = await self.executor.execute(delivery, remaining)
        except Exception:
            return answers.error("retry", "internal", "handling the delivery failed; its claim is left to recovery")
        if conclusion.result == "retry":
            return answers.error("retry", "outcome_unknown", conclusion.what)
        return answers.answer("settled", answers.encode({"runId": delivery.run_id, "outcome": conclusion.what}))

    def _budget(self, remaining: "Remaining | None", started: float) -> "Remaining":
        longest = self._max_duration

        def left() -> timedelta | None:
            host = None if remaining is None else remaining()
            if longest is None:
                return host
            own = longest - timedelta(seconds=monotonic.now() - started)
            return own if host is None else min(own, host)

        return left


def _tolerance(given: object, environment: int | None) -> int:
    if given is not None:
        return config.tolerance(given, "Endpoint(tolerance=)")
    return signature.DEFAULT_TOLERANCE if environment is None else environment


def _build_id(served: Sequence[messages.ServedWorkflow]) -> str:
    """The same for every process that serves the same workflows with the same SDK."""
    what = msgspec.json.encode([__version__, sorted(served, key=lambda each: each.name)])
    return hashlib.sha256(what).hexdigest()[:16]


def _ascii(message: msgspec.Struct) -> bytes:
    return answers.encode(msgspec.to_builtins(message))
