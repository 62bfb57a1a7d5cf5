"""A worker: takes runs from a subscriber and executes them, until it is told to stop.

Importing this loads no event loop; `run` and `serve` do.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from endpoint_sdk import arguments, config, envelope
from endpoint_sdk.envelope import PayloadCodec
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.signing_secrets import Secret, SigningSecrets
from endpoint_sdk.wire import messages, signature
from endpoint_sdk.workflow import Registry, Workflow

if TYPE_CHECKING:
    from endpoint_sdk.shift import Plan, Shift
    from endpoint_sdk.subscribers.base import Subscriber

_log: Final = logging.getLogger(__name__)

_DRAIN_TIMEOUT: Final = timedelta(seconds=25)
# While a broker fails: short, so that the places are free for it soon after it works again.
_STAND_IN_WAIT: Final = timedelta(seconds=5)


class Holding(NamedTuple):
    """A run this worker holds, and how old what it holds it by is, in seconds.

    `refreshed` since the last accepted call for its claim was sent; `transport` since the subscriber's hold on its
    message was last confirmed, None where there is no such hold.
    """

    run_id: str
    refreshed: float
    transport: float | None


class Worker:
    """Executes runs of *workflows*, at most *max_concurrent_runs* at a time, taken from *subscriber* (default: poll).

    *url* is the dispatcher (POINTSMAN_URL) and *api_key* a key of scope execute (POINTSMAN_API_KEY): polling needs
    both. A worker of a broker needs *secret*, one or more `whsec_…` or a function that returns them
    (POINTSMAN_SIGNING_SECRET); with an API key as well it polls while its broker fails, and tells the dispatcher what
    it serves. *name* is the audience whose messages it takes, the publisher's name (POINTSMAN_ENDPOINT; none: every
    audience). *drain_timeout* is what runs under way get after `stop` or a signal. Payloads are stored through *codec*,
    encrypted for example; every client and executor of these workflows needs the same.

    Raises ConfigurationError for anything that could not work. A worker serves once: one that was stopped stays so.
    """

    def __init__(
        self,
        workflows: Sequence[Workflow[Any, Any]],
        *,
        subscriber: "Subscriber | None" = None,
        url: str | None = None,
        api_key: str | None = None,
        secret: Secret | None = None,
        name: str | None = None,
        max_concurrent_runs: int = 10,
        drain_timeout: timedelta = _DRAIN_TIMEOUT,
        codec: PayloadCodec | None = None,
    ) -> None:
        environment = config.read()
        self._environment = environment
        self._registry = Registry(arguments.workflows(workflows, "a worker"))
        self._names = environment.endpoint_names if name is None else arguments.names(name, "Worker(name=)")
        self._url = config.url(url, "Worker(url=)") or environment.url
        self._api_key = _credential(environment.api_key if api_key is None else api_key)
        self._envelope = envelope.of(codec, "Worker(codec=)")
        self._max_concurrent_runs = arguments.positive(max_concurrent_runs, "Worker(max_concurrent_runs=)")
        self.drain_timeout: Final = config.duration(drain_timeout, "Worker(drain_timeout=)") or _DRAIN_TIMEOUT
        self._subscriber, self._fallback = self._subscribers(subscriber)
        self._secrets = self._signing_secrets(environment.signing_secret if secret is None else secret)
        self.left_to_recovery = 0
        """The runs that did not stop within the drain's time, once `serve` has returned."""
        self._shift: Shift | None = None
        self._stopping = False
        # Taken again by a signal handler that interrupts whoever holds it.
        self._lock = threading.RLock()
        self._wake: Callable[[], object] = _nothing

    def run(self) -> None:
        """Serves in an event loop of its own until `stop`, SIGTERM or SIGINT, and drains.

        The first signal drains, the second ends the process at once. After a signal the process ends within the
        drain's time and a second, even if a task's thread or a blocked loop would keep it; then with exit code 1.
        Signals are watched only in the main thread. Raises SystemExit, after a drain, if user code exited outside a
        task, and RuntimeError where an event loop runs already: that one is for `serve`.
        """
        from endpoint_sdk import worker_process

        worker_process.run(self)

    async def serve(self) -> None:
        """Serves in the running event loop until `stop`, and drains; watches no signals.

        Cancelling it drains too; cancelling it again does not.
        """
        import asyncio

        from endpoint_sdk.shift import Shift

        loop = asyncio.get_running_loop()
        with self._lock:
            if self._shift is not None:
                raise RuntimeError("a worker serves once")
            if self._stopping:
                return
            shift = self._shift = Shift(self._plan())
            self._wake = lambda: loop.call_soon_threadsafe(shift.end)
        self._announce_start()
        try:
            self.left_to_recovery = await shift.run()
        finally:
            self._stopping, self._wake = True, _nothing
            _log.info("worker stopped")

    def stop(self) -> None:
        """Nothing more is received and runs under way stop at their next task boundary; `run` and `serve` then return.

        Can be called from any thread and any number of times; does not wait.
        """
        with self._lock:
            if not self._stopping:
                self._stopping = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                    self._wake()

    @property
    def served(self) -> Sequence[messages.ServedWorkflow]:
        """The workflows it executes, with the older versions each continues."""
        return self._registry.served()

    @property
    def stopping(self) -> bool:
        """Whether this worker was told to stop, or has stopped."""
        return self._stopping

    @property
    def holding(self) -> Sequence[Holding]:
        """The runs held now: whether claims and the transport's holds are kept alive can be seen by their ages."""
        return [] if self._shift is None else [Holding(*each) for each in self._shift.holding()]

    # --- how it is made up -------------------------------------------------------------------------------------------
    def _subscribers(self, given: "Subscriber | None") -> "tuple[Subscriber, Subscriber | None]":
        from endpoint_sdk.subscribers.polling import PollSubscriber

        subscriber: Subscriber = PollSubscriber() if given is None else given
        reachable = self._url is not None and self._api_key is not None
        if not isinstance(subscriber, PollSubscriber):
            fallback = PollSubscriber(pools=subscriber.pools, wait=_STAND_IN_WAIT) if reachable else None
            return subscriber, fallback
        if self._url is None:
            raise ConfigurationError("a worker that polls needs the dispatcher's URL: Worker(url=) or POINTSMAN_URL")
        if self._api_key is None:
            raise ConfigurationError(
                "a worker that polls needs an API key of scope execute: Worker(api_key=) or POINTSMAN_API_KEY"
            )
        return subscriber, None

    def _signing_secrets(self, secret: Secret | None) -> SigningSecrets | None:
        from endpoint_sdk.subscribers.polling import PollSubscriber

        if secret is not None:
            return SigningSecrets(secret)
        if isinstance(self._subscriber, PollSubscriber):
            return None
        raise ConfigurationError(
            "a worker of a broker needs its publisher's signing secret: Worker(secret=) or POINTSMAN_SIGNING_SECRET"
        )

    def _plan(self) -> "Plan":
        from endpoint_sdk.admission import Admission
        from endpoint_sdk.calls import DEFAULT_NAMESPACE
        from endpoint_sdk.exchange import Times
        from endpoint_sdk.executor import Executor
        from endpoint_sdk.shift import Plan
        from endpoint_sdk.subscribers.base import Setup

        environment = self._environment
        executor = Executor(
            self._registry,
            kind="worker",
            url=self._url,
            refresh_interval_ms=environment.refresh_interval_ms,
            max_concurrent_runs=self._max_concurrent_runs,
            envelope=self._envelope,
        )
        tolerance = signature.DEFAULT_TOLERANCE if environment.tolerance is None else environment.tolerance
        admission = None
        if self._secrets is not None:
            admission = Admission(self._registry, self._secrets, names=self._names, url=self._url, tolerance=tolerance)
        setup = Setup(
            environment.namespace or DEFAULT_NAMESPACE,
            self._wanted(),
            executor.info,
            environment.refresh_interval_ms,
            None if self._url is None else executor.exchange(),
            self._api_key if self._url is not None else None,
            self._registry.served(),
        )
        return Plan(
            executor,
            self._subscriber,
            self._fallback,
            admission,
            setup,
            self._max_concurrent_runs,
            self.drain_timeout,
            Times(),
        )

    def _wanted(self) -> list[messages.WantedWorkflow]:
        versions: dict[str, dict[str, None]] = {}
        for served in self._registry.served():
            versions.setdefault(served.name, {}).update(dict.fromkeys([served.version, *served.accepts]))
        return [messages.WantedWorkflow(name, list(each)) for name, each in versions.items()]

    def _announce_start(self) -> None:
        served = [f"{each.name} {each.version}" for each in self._registry.served()]
        _log.info(
            "worker started",
            extra={
                "workflows": served,
                "subscriber": type(self._subscriber).__name__,
                "pools": list(self._subscriber.pools),
                "max_concurrent_runs": self._max_concurrent_runs,
                "dispatcher": self._url,
            },
        )


def _credential(api_key: object) -> str | None:
    if api_key is None:
        return None
    if not isinstance(api_key, str) or not arguments.is_credential(api_key):
        raise ConfigurationError("Worker(api_key=) is not an API key")
    return api_key


def _nothing() -> None:
    """Wakes nobody."""
