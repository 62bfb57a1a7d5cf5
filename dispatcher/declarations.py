"""What the served code declares of its workflows: how many run at once, how long, when, and what follows a failure.

Discovery writes what endpoints answer, polls what their workers announce. Submitting, failing and schedules read it.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dispatcher.store import Session, Store, declarations
from dispatcher.store.endpoints import EVERYWHERE
from endpoint_sdk.wire.messages import ServedWorkflow

_FRESH_SECONDS: Final = 1.0
_SAY_AGAIN_SECONDS: Final = 60.0
_REMEMBERED: Final = 50_000
_DECODER: Final = msgspec.json.Decoder(ServedWorkflow)


class Declared(msgspec.Struct, frozen=True):
    """A declaration and where it holds; *namespace* is `*` for what an endpoint of every namespace serves."""

    namespace: str
    workflow: ServedWorkflow


class Declarations:
    """The declarations, each remembered for a second; another dispatcher's changes are seen after that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._said: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._known: dict[tuple[str, str], tuple[float, list[ServedWorkflow]]] = {}

    async def put(self, namespace: str, served: Iterable[ServedWorkflow]) -> None:
        """What is *served* in *namespace* (`*`: in every one) is declared; `declared` is announced if that is news.

        The database is asked once a minute at most for what this process has said before.
        """
        moment = time.monotonic()
        texts = {(item.name, item.version): msgspec.json.encode(item).decode() for item in served}
        fresh = [(*key, text) for key, text in texts.items() if not self._is_said((namespace, *key), text, moment)]
        if not fresh:
            return
        changed = await self._store.transact(lambda session: _put(session, namespace, fresh))
        if len(self._said) > _REMEMBERED:
            self._said.clear()
        until = moment + _SAY_AGAIN_SECONDS
        self._said.update({(namespace, name, version): (until, text) for name, version, text in fresh})
        if changed:
            self._known.clear()

    async def get(self, namespace: str, workflow: str, version: str) -> ServedWorkflow | None:
        """As `find`, as of a second ago at the earliest."""
        until, found = self._known.get((namespace, workflow), (0.0, []))
        if time.monotonic() >= until:
            found = await self._store.transact(lambda session: _of_workflow(session, namespace, workflow))
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known[namespace, workflow] = time.monotonic() + _FRESH_SECONDS, found
        return _chosen(found, version)

    async def every(self) -> list[Declared]:
        """All declarations of all namespaces, read now."""
        rows = await self._store.transact(declarations.every)
        return [Declared(row.namespace, _DECODER.decode(row.declared)) for row in rows]

    def _is_said(self, key: tuple[str, str, str], text: str, moment: float) -> bool:
        until, said = self._said.get(key, (0.0, ""))
        return said == text and moment < until


def find(session: Session, namespace: str, workflow: str, version: str) -> ServedWorkflow | None:
    """What is declared of *workflow* at *version*, within a transaction; None when nobody has served it.

    The version's own declaration comes first, then the newest that accepts it; each of *namespace* before one of an
    endpoint that serves every namespace.
    """
    return _chosen(_of_workflow(session, namespace, workflow), version)


def _put(session: Session, namespace: str, fresh: Sequence[tuple[str, str, str]]) -> int:
    changed = declarations.put(session, namespace, fresh)
    if changed:
        session.announce("declared", namespace)
    return changed


def _of_workflow(session: Session, namespace: str, workflow: str) -> list[ServedWorkflow]:
    rows = declarations.of_workflow(session, namespace, EVERYWHERE, workflow)
    return [_DECODER.decode(row.declared) for row in rows]


def _chosen(found: Sequence[ServedWorkflow], version: str) -> ServedWorkflow | None:
    accepting = (item for item in found if version in item.accepts)
    return next((item for item in found if item.version == version), None) or next(accepting, None)
