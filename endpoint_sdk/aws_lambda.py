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
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from endpoint_sdk import answers, aws_events, aws_sqs, monotonic
from endpoint_sdk.aws_backoff import Backoff
from endpoint_sdk.aws_events import HttpEvent
from endpoint_sdk.aws_sqs import Batch
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.wire import messages

if TYPE_CHECKING:
    from endpoint_sdk.endpoint import Endpoint
    from endpoint_sdk.host_time import Remaining

E = TypeVar("E")
R = TypeVar("R")
T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# What is ended before the answer, the refresher's thread and tasks that were left over, may take so long.
_ENDING_SECONDS: Final = 1.0


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
        self._backoff = Backoff()
        # What wrappers of handlers (functools.wraps, tracing layers) expect of a function.
        self.__name__ = self.__qualname__ = "lambda_handler"

    @property
    def endpoint(self) -> "Endpoint":
        """What is served."""
        return self._endpoint

    @overload
    def __call__(self, event: Any, context: Any, /) -> Any: ...
    @overload
    def __call__(self, fn: Callable[[E, Any], R], /) -> Callable[[E, Any], R | dict[str, Any]]: ...
    def __call__(self, event: Any, /, *context: Any) -> Any:
        """The answer to *event* for Lambda to return; with a function only, that function behind this endpoint.

        Raises ConfigurationError for an event that is neither an HTTP request nor a batch with messages of a
        dispatcher, unless it decorates a handler: that gets every event and every message that is not ours, and its
        return value and exception pass through untouched. What is ours never raises.
        """
        if not context:
            if not callable(event):
                raise ConfigurationError("a Lambda handler takes an event and a context, a decorator a function")
            return self._over(event)
        batch = aws_sqs.batch(event)
        if batch is not None:
            return self._serve_all(batch, context[0])
        request = aws_events.http_event(event)
        if request is None:
            raise ConfigurationError(
                f"this function answers HTTP requests and SQS messages of a Pointsman dispatcher, and the event is "
                f"{aws_events.source(event)}; to handle other events too, put @endpoint.lambda_handler over a handler"
            )
        return self._serve(request, context[0])

    def close(self) -> None:
        """Ends the refresher and closes the event loop with everything on it; the next event starts anew."""
        self._endpoint.executor.stop_refreshing()
        self._loop.close()

    def _over(self, theirs: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run_theirs(event: Any, context: Any) -> Any:
            result = theirs(event, context)
            return self._loop.run(_awaited(result)) if inspect.isawaitable(result) else result

        @functools.wraps(theirs)
        def handler(event: Any, context: Any) -> Any:
            batch = aws_sqs.batch(event)
            if batch is not None:
                return self._serve_mixed(batch, event, context, run_theirs)
            request = _ours(event)
            return run_theirs(event, context) if request is None else self._serve(request, context)

        return handler

    def _serve(self, request: HttpEvent, context: Any) -> dict[str, Any]:
        if request.health_check:
            return aws_events.http_answer(request, answers.alive())
        remaining = time_left(context)
        handling = self._endpoint.handle(request.method, request.headers, request.body, remaining)
        try:
            answer = self._loop.run(handling, remaining)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # The runtime would report nothing and start over; the claim, if there is one, is left to recovery.
            _log.exception("handling a request failed")
            answer = answers.error("retry", "internal", "handling the request failed")
        finally:
            self._endpoint.executor.stop_refreshing(_ending_seconds(remaining))
        return aws_events.http_answer(request, answer)

    def _serve_all(self, batch: Batch, context: Any) -> dict[str, Any]:
        """The answer to a batch where nobody else takes the messages that are not ours: they stay in the queue."""
        failed = self._work_off(batch, time_left(context))
        if batch.theirs:
            _log.error(
                "messages that no dispatcher sent are reported as failures; to handle them, "
                "put @endpoint.lambda_handler over a handler",
                extra={"queue": batch.arn, "messages": len(batch.theirs)},
            )
        return aws_sqs.report([*failed, *aws_sqs.message_ids(batch.theirs)])

    def _serve_mixed(
        self, batch: Batch, event: Mapping[str, Any], context: Any, theirs: Callable[[Any, Any], Any]
    ) -> dict[str, Any]:
        """The answer to a batch that may hold messages of the user's: ours first, then the handler with only those."""
        if not batch.theirs:
            return aws_sqs.report(self._work_off(batch, time_left(context)))
        failed = self._work_off(batch, _half(time_left(context)))
        # Read before the handler may do what it likes to its records.
        ids = aws_sqs.message_ids(batch.theirs)
        return aws_sqs.merged(failed, ids, theirs({**event, "Records": batch.theirs}, context))

    def _work_off(self, batch: Batch, remaining: "Remaining | None") -> list[str]:
        """The ids of our messages that are not settled, each put off by its own backoff."""
        outcomes: dict[str, aws_sqs.Outcome] = {}

        async def deliver(record: aws_sqs.Record) -> aws_sqs.Outcome:
            answer = await self._endpoint.handle("SQS", record.headers, record.body, remaining, sent_at=record.sent_at)
            return aws_sqs.outcome(answer.headers[messages.HEADER_RESULT])

        work = aws_sqs.work_off(
            batch, deliver, outcomes, at_once=self._endpoint.max_concurrent_runs, remaining=remaining
        )
        try:
            self._loop.run(work, remaining)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # What was settled before stays settled; the rest comes again, and the claims are left to recovery.
            _log.exception("handling a batch of messages failed")
        finally:
            self._endpoint.executor.stop_refreshing(_ending_seconds(remaining))
        failures = aws_sqs.failures(batch, outcomes)
        self._backoff.put_off(batch.arn, failures, remaining)
        return [failure.record.message_id for failure in failures]


class _Loop:
    """The process's one event loop; nothing is left on it between two invocations."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T], remaining: "Remaining | None" = None) -> T:
        """What *work* returned; raises ConfigurationError inside a running loop, where nothing can be waited for."""
        if _inside_a_loop():
            work.close()
            raise ConfigurationError(
                "a Lambda handler was called inside a running event loop, of an `async def` handler or of a test: "
                "call it from plain code, or in a thread"
            )
        with self._lock:
            runner = self._runner = self._runner or asyncio.Runner()
            try:
                return runner.run(_alone(work, remaining))
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


async def _alone(work: Coroutine[Any, Any, T], remaining: "Remaining | None") -> T:
    try:
        return await work
    finally:
        left_over = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left_over:
            task.cancel()
        if left_over:
            await asyncio.wait(left_over, timeout=_ending_seconds(remaining))


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def _ours(event: object) -> HttpEvent | None:
    try:
        request = aws_events.http_event(event)
    except ConfigurationError:
        # A body somebody parsed: nothing the dispatcher sent, or nothing that could be verified.
        return None
    return request if request is not None and request.ours else None


def _ending_seconds(remaining: "Remaining | None") -> float:
    """How long to wait for what is being ended: the answer has to get out in time whether it ends or not."""
    left = None if remaining is None else remaining()
    return _ENDING_SECONDS if left is None else min(left.total_seconds() / 2, _ENDING_SECONDS)


def _half(remaining: "Remaining | None") -> "Remaining | None":
    """Half of the time of an invocation: runs use all they get, and the user's handler is not to start too late."""
    limit = None if remaining is None else remaining()
    if remaining is None or limit is None:
        return remaining
    kept = limit / 2

    def left() -> timedelta | None:
        now = remaining()
        return None if now is None else max(now - kept, timedelta(0))

    return left


def time_left(context: Any) -> "Remaining | None":
    """The time until Lambda ends this invocation, None if *context* does not say; no time left is zero, not None.

    The context counts on the wall clock; a step of that clock backwards must not add time, so ours counts as well.
    """
    ask: Any = getattr(context, "get_remaining_time_in_millis", None)
    limit = ask() if callable(ask) else None
    if not isinstance(limit, int | float):
        return None
    end = monotonic.now() + limit / 1000

    def left() -> timedelta:
        return timedelta(seconds=max(min(ask() / 1000, end - monotonic.now()), 0))

    return left
