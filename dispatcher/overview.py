"""Looking at the backlog: its queues with who serves them, and the executors with the claims they hold."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from dispatcher import routing
from dispatcher.endpoints import RelayTarget
from dispatcher.queues import Queue
from dispatcher.settings import Route
from dispatcher.store import Session, Store, overview, served
from dispatcher.unserved import Serving
from endpoint_sdk.wire.messages import ExecutorInfo
from endpoint_sdk.wire.operating import ExecutorView, QueueView

T = TypeVar("T")


async def queues(
    store: Store,
    routes: Sequence[Route],
    targets: Sequence[RelayTarget],
    namespace: str,
    *,
    limit: int,
    after: int,
) -> tuple[list[QueueView], int | None]:
    """Up to *limit* queues of *namespace* that hold an entry, beyond the first *after*; the next page's `after`."""

    def operation(session: Session) -> list[QueueView]:
        polled = served.seen_in(session, namespace)
        rows = overview.queues(session, Queue.prefix(namespace), limit=limit + 1, offset=after)
        now = session.now()
        serving = Serving(routes, targets, polled, now)
        return [_queue(row, routes, targets, polled, now, serving) for row in rows]

    return _page(await store.transact(operation), limit, after)


async def executors(store: Store, namespace: str, *, limit: int, after: int) -> tuple[list[ExecutorView], int | None]:
    """Up to *limit* executors that hold claims in *namespace*, beyond the first *after*; the next page's `after`."""

    def operation(session: Session) -> list[ExecutorView]:
        rows = overview.executors(session, Queue.prefix(namespace), limit=limit + 1, offset=after)
        now = session.now()
        return [_executor(row, now) for row in rows]

    return _page(await store.transact(operation), limit, after)


def _page(found: list[T], limit: int, after: int) -> tuple[list[T], int | None]:
    return found[:limit], after + limit if len(found) > limit else None


def _queue(
    row: overview.QueueRow,
    routes: Sequence[Route],
    targets: Sequence[RelayTarget],
    polled: dict[tuple[str, str], int],
    now: int,
    serving: Serving,
) -> QueueView:
    queue = Queue.from_key(row.queue)
    polled_at = polled.get((queue.workflow, queue.version))
    return QueueView(
        namespace=queue.namespace,
        workflow=queue.workflow,
        version=queue.version,
        pool=queue.pool,
        pending=row.pending,
        published=row.published,
        claimed=row.claimed,
        held=row.held,
        oldest_age_ms=None if row.oldest_at is None else max(0, now - row.oldest_at),
        publishers=[target.name for target in routing.targets_for(queue, routes, targets)],
        polled_ago_ms=None if polled_at is None else max(0, now - polled_at),
        warning=serving.warning(queue, row.pending + row.published + row.held),
    )


def _executor(row: overview.ExecutorRow, now: int) -> ExecutorView:
    info = msgspec.json.decode(row.executor, type=ExecutorInfo)
    return ExecutorView(
        id=info.id,
        kind=info.kind,
        host=info.host,
        sdk=info.sdk,
        claims=row.claims,
        oldest_refresh_age_ms=max(0, now - row.refreshed_at),
    )
