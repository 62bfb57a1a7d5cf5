"""The server's keys and what is made with them: claim tokens, write tokens, encryption of signing secrets.

Every entry of `POINTSMAN_SECRET_KEY` (comma-separated, the new one first) gives a token key and a Fernet key by
HKDF-SHA256. Things are made with the first entry and accepted under all of them, so a key is rotated by putting a new
one in front. Tokens never expire: the revision in them kills them (infra/docs/protocol.md, I2).
"""

import base64
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dispatcher import errors

CLAIM_PREFIX: Final = "pmc_"
WRITE_PREFIX: Final = "pmw_"


class ServerKeys:
    """Makes and checks credentials; every check takes the same time whatever is wrong with the token."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._token_keys = [_derive(entry, b"token") for entry in entries]
        self._fernet = MultiFernet([Fernet(base64.urlsafe_b64encode(_derive(entry, b"fernet"))) for entry in entries])

    @classmethod
    def from_env(cls, text: str) -> "ServerKeys":
        """Keys of a comma-separated list, the newest first.

        Raises StartUpError `secret_key_missing` when an entry is empty.
        """
        entries = [entry.strip() for entry in text.split(",")]
        if not all(entries):
            raise errors.StartUpError(
                "secret_key_missing",
                "POINTSMAN_SECRET_KEY has an empty entry.",
                hint="Write one key, or new,old while rotating; make one with: openssl rand -base64 32",
            )
        return cls(entries)

    @classmethod
    def generated(cls) -> "ServerKeys":
        """Fresh keys that die with the process; for tests and throw-away servers."""
        return cls([secrets.token_urlsafe(32)])

    def claim_token(self, run_id: str, revision: int) -> str:
        """The credential in a delivery: claims *run_id* at *revision*, nothing else."""
        return CLAIM_PREFIX + _mac(self._token_keys[0], "claim", run_id, revision, "")

    def check_claim_token(self, token: str, run_id: str, revision: int) -> bool:
        return self._check(token, CLAIM_PREFIX, "claim", run_id, revision, "")

    def write_token(self, run_id: str, revision: int, claim_id: str) -> str:
        """The credential of a claim holder: writes to *run_id* under (revision, claim id), nothing else."""
        return WRITE_PREFIX + _mac(self._token_keys[0], "write", run_id, revision, claim_id)

    def check_write_token(self, token: str, run_id: str, revision: int, claim_id: str) -> bool:
        return self._check(token, WRITE_PREFIX, "write", run_id, revision, claim_id)

    def encrypt(self, secret: bytes) -> bytes:
        """*secret* as a Fernet token under the first key."""
        return self._fernet.encrypt(secret)

    def decrypt(self, token: bytes) -> bytes:
        """The secret in *token*, whichever of the keys made it.

        Raises StartUpError `secret_key_wrong` when none did.
        """
        try:
            return self._fernet.decrypt(token)
        except InvalidToken:
            raise errors.StartUpError(
                "secret_key_wrong",
                "A stored signing secret cannot be decrypted with POINTSMAN_SECRET_KEY.",
                hint="Put the key the secret was stored with behind the new one: POINTSMAN_SECRET_KEY=new,old",
            ) from None

    def _check(self, token: str, prefix: str, purpose: str, run_id: str, revision: int, claim_id: str) -> bool:
        given = token.encode("utf-8", "surrogatepass")
        matches = False
        for key in self._token_keys:
            expected = (prefix + _mac(key, purpose, run_id, revision, claim_id)).encode()
            matches |= hmac.compare_digest(given, expected)
        return matches


def open_keys(database_url: str, secret_key: str | None) -> ServerKeys:
    """The server's keys: of *secret_key* if given, else of the key file beside a SQLite database, made if missing.

    Raises StartUpError `secret_key_missing` for PostgreSQL without a key: replicas have to share it.
    """
    if secret_key:
        return ServerKeys.from_env(secret_key)
    if not database_url.startswith("sqlite:///"):
        raise errors.StartUpError(
            "secret_key_missing",
            "POINTSMAN_SECRET_KEY is not set, and a PostgreSQL database needs it.",
            hint="Make one with `openssl rand -base64 32` and give every replica the same.",
        )
    path = Path(unquote(database_url.removeprefix("sqlite:///")) + ".key")
    return ServerKeys.from_env(_key_file(path))


def _derive(entry: str, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(entry.encode())


def _mac(key: bytes, purpose: str, run_id: str, revision: int, claim_id: str) -> str:
    message = f"{purpose}\0{run_id}\0{revision}\0{claim_id}".encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hmac.digest(key, message, "sha256")).rstrip(b"=").decode()


def _key_file(path: Path) -> str:
    try:
        return _read_key_file(path)
    except FileNotFoundError:
        pass
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first: its key holds
    except OSError as error:
        raise errors.StartUpError("key_file", f"The key file {path} cannot be written: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)
    return _read_key_file(path)


def _read_key_file(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError):
        raise errors.StartUpError("key_file", f"The key file {path} cannot be read.") from None
