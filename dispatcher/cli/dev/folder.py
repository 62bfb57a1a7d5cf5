"""`.pointsman/`: what a development session keeps beside the program, for its owner only and never for git."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dispatcher import access
from dispatcher.errors import StartUpError
from endpoint_sdk.wire import signature

NAME: Final = ".pointsman"


@dataclass(frozen=True)
class Credentials:
    """The API key that requests without one act with, and the secret deliveries are signed with."""

    key: str
    secret: str


class Folder:
    """The folder of one session at a time, mode 0700, with a .gitignore that hides all of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self._path / 'dev.db'}"

    @contextlib.contextmanager
    def held(self, *, fresh: bool) -> Iterator[None]:
        """The folder exists and is this session's until the block is left; *fresh* empties it first.

        Raises StartUpError `dev_running` while another session holds it, `dev_folder` when it cannot be written.
        """
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            self._path.chmod(0o700)
            (self._path / ".gitignore").write_text("*\n")
            handle = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartUpError("dev_folder", f"{self._path} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if fresh:
                self._empty()
            yield
        except BlockingIOError:
            hint = "Use that one, or start this one in another folder."
            raise StartUpError("dev_running", f"Another `pointsman dev` runs on {self._path}.", hint=hint) from None
        finally:
            os.close(handle)

    def credentials(self) -> Credentials:
        """Those of the sessions before, else fresh ones, kept in a file of mode 0600."""
        file = self._path / "credentials.json"
        try:
            return Credentials(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            made = Credentials(access.new_key(), signature.new_secret())
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as kept:
            kept.write(json.dumps(asdict(made)))
        return made

    def _empty(self) -> None:
        for file in self._path.iterdir():
            if file.is_file() and file.name not in {"lock", ".gitignore"}:
                file.unlink()
