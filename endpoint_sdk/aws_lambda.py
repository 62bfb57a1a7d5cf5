"""The endpoint as a Lambda handler, alone or over a handler of the user's.

Lambda stops every thread when the handler has returned and thaws it inside the next invocation, so nothing may be left
running: the refresher is joined and left-over tasks are cancelled before an answer is given. Connections stay open;
the transport does not use one again that was idle for four seconds.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from endpoint_sdk import answers, aws_events, monotonic
from endpoint_sdk.aws_events import HttpEvent
from endpoint_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from endpoint_sdk.endpoint import Endpoint
    from endpoint_sdk.execution import Remaining

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

_LEFT_OVER_SECONDS: Final = 1.0


class LambdaContext(Protocol):
    """What the handler uses of the context Lambda passes."""

    @property
    def aws_request_id(self) -> str: ...
    def get_remaining_time_in_millis(self) -> int: ...


class LambdaHandler:
    """`handler = endpoint.lambda_handler` answers events; `@endpoint.lambda_handler` puts it before a handler."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._loop = _Loop()
        # What wrappers of handlers (functools.wraps, tracing layers) expect of a function.
        self.__name__ = self.__qualname__ = "lambda_handler"

    @overload
    def __call__(self, event: Any, context: Any, /) -> Any: ...
    @overload
    def __call__(self, fn: Callable[[E, Any], R], /) -> Callable[[E, Any], R | dict[str, Any]]: ...
    def __call__(self, event: Any, /, *context: Any) -> Any:
        """The answer to *event* for Lambda to return; with a function only, that function behind this endpoint.

        Raises ConfigurationError for an event that is no HTTP request, unless it decorates a handler: that gets every
        event that is not ours, and its return value and exception pass through untouched.
        """
        if not context:
            if not callable(event):
                raise ConfigurationError("a Lambda handler takes an event and a context, a decorator a function")
            return self._over(event)
        request = aws_events.http_event(event)
        if request is None:
            raise ConfigurationError(
                f"this function answers HTTP requests of a Pointsman dispatcher, and the event is "
                f"{aws_events.source(event)}; to handle other events too, put @endpoint.lambda_handler over a handler"
            )
        return self._serve(request, context[0])

    def close(self) -> None:
        """Ends the refresher and closes the event loop with everything on it; the next event starts anew."""
        self._endpoint.executor.stop_refreshing()
        self._loop.close()

    def _over(self, theirs: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(theirs)
        def handler(event: Any, context: Any) -> Any:
            request = _ours(event)
            if request is not None:
                return self._serve(request, context)
            result = theirs(event, context)
            return self._loop.run(_awaited(result)) if inspect.isawaitable(result) else result

        return handler

    def _serve(self, request: HttpEvent, context: Any) -> dict[str, Any]:
        handling = self._endpoint.handle(request.method, request.headers, request.body, time_left(context))
        try:
            answer = self._loop.run(handling)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # The runtime would report nothing and start over; the claim, if there is one, is left to recovery.
            _log.exception("handling a request failed")
            answer = answers.error("retry", "internal", "handling the request failed")
        finally:
            self._endpoint.executor.stop_refreshing()
        return aws_events.http_answer(request, answer)


class _Loop:
    """The process's one event loop; nothing is left on it between two invocations."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            runner = self._runner = self._runner or asyncio.Runner()
            try:
                return runner.run(_alone(work))
            except (SystemExit, KeyboardInterrupt):
                # These leave the loop in the middle of a step; what was on it is cancelled with it.
                self._runner = None
                runner.close()
                raise

    def close(self) -> None:
        with self._lock:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()


async def _alone(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    finally:
        left_over = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left_over:
            task.cancel()
        if left_over:
            await asyncio.wait(left_over, timeout=_LEFT_OVER_SECONDS)


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def _ours(event: object) -> HttpEvent | None:
    try:
        request = aws_events.http_event(event)
    except ConfigurationError:
        # A body somebody parsed: nothing the dispatcher sent, or nothing that could be verified.
        return None
    return request if request is not None and request.ours else None


def time_left(context: Any) -> "Remaining | None":
    """The time until Lambda ends this invocation, None if *context* does not say; no time left is zero, not None.

    The context counts on the wall clock; a step of that clock backwards must not add time, so ours counts as well.
    """
    ask = getattr(context, "get_remaining_time_in_millis", None)
    if ask is None:
        return None
    end = monotonic.now() + ask() / 1000

    def left() -> timedelta:
        return timedelta(seconds=max(min(ask() / 1000, end - monotonic.now()), 0))

    return left
