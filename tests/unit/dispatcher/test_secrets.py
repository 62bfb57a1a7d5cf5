"""Server keys: tokens bound to run, revision and claim; rotation; the key file."""

import stat
from pathlib import Path

import pytest

from dispatcher import errors, secrets
from dispatcher.secrets import ServerKeys
from endpoint_sdk.wire import identity

RUN = identity.new("run")


def test_tokens_are_bound_to_what_they_name() -> None:
    """A token is good for its run, revision and claim, under its purpose, and for nothing else."""
    keys = ServerKeys.generated()
    claim, write = keys.claim_token(RUN, 4), keys.write_token(RUN, 5, "clm_a")

    assert keys.check_claim_token(claim, RUN, 4)
    assert not keys.check_claim_token(claim, RUN, 5)
    assert not keys.check_claim_token(claim, identity.new("run"), 4)
    assert keys.check_write_token(write, RUN, 5, "clm_a")
    assert not keys.check_write_token(write, RUN, 5, "clm_b")
    assert not keys.check_write_token(write, RUN, 4, "clm_a")
    assert not keys.check_write_token("pmw_" + claim[4:], RUN, 4, "")
    assert not keys.check_claim_token("pmc_" + write[4:], RUN, 5)


@pytest.mark.parametrize("token", ["", "pmc_", "pmc_é", "pmc_\ud800", "pmc_" + "A" * 43, "\0"])
def test_malformed_tokens_are_refused_quietly(token: str) -> None:
    """Any text is a token that does not match; nothing raises."""
    assert not ServerKeys.generated().check_claim_token(token, RUN, 0)


def test_first_key_makes_all_keys_check() -> None:
    """A rotated list makes with the new key and accepts what the old one made."""
    old, new, both = ServerKeys.from_env("old"), ServerKeys.from_env("new"), ServerKeys.from_env("new, old")

    assert both.claim_token(RUN, 1) == new.claim_token(RUN, 1) != old.claim_token(RUN, 1)
    assert both.check_claim_token(old.claim_token(RUN, 1), RUN, 1)
    assert not new.check_claim_token(old.claim_token(RUN, 1), RUN, 1)
    assert both.decrypt(old.encrypt(b"secret")) == b"secret"
    assert new.decrypt(both.encrypt(b"secret")) == b"secret"
    with pytest.raises(errors.StartUpError) as caught:
        new.decrypt(old.encrypt(b"secret"))
    assert caught.value.code == "secret_key_wrong"


@pytest.mark.parametrize("text", ["", ",", "a,,b", " "])
def test_empty_entries_are_refused(text: str) -> None:
    """An empty entry would be a key everybody knows."""
    with pytest.raises(errors.StartUpError) as caught:
        ServerKeys.from_env(text)
    assert caught.value.code == "secret_key_missing"


def test_postgresql_needs_a_key() -> None:
    """Replicas share the key, so PostgreSQL without one refuses to start."""
    with pytest.raises(errors.StartUpError) as caught:
        secrets.open_keys("postgresql://localhost/x", None)
    assert caught.value.code == "secret_key_missing"
    assert secrets.open_keys("postgresql://localhost/x", "k").claim_token(RUN, 0).startswith("pmc_")


def test_sqlite_keeps_a_key_file(tmp_path: Path) -> None:
    """The key file is made once, mode 0600, holds after a restart, and nothing else is left beside it."""
    url = f"sqlite:///{tmp_path}/x.db"
    first = secrets.open_keys(url, None).claim_token(RUN, 0)
    file = tmp_path / "x.db.key"

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secrets.open_keys(url, None).claim_token(RUN, 0) == first
    assert [item.name for item in tmp_path.iterdir()] == ["x.db.key"]


def test_readable_key_file_is_tightened(tmp_path: Path) -> None:
    """A key file others could read is closed to them."""
    file = tmp_path / "x.db.key"
    file.write_text("key\n")
    file.chmod(0o644)
    secrets.open_keys(f"sqlite:///{tmp_path}/x.db", None)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_unusable_key_file(tmp_path: Path) -> None:
    """A key file that cannot be read or written is told by name."""
    (tmp_path / "x.db.key").mkdir()
    with pytest.raises(errors.StartUpError) as caught:
        secrets.open_keys(f"sqlite:///{tmp_path}/x.db", None)
    assert caught.value.code == "key_file"
    with pytest.raises(errors.StartUpError):
        secrets.open_keys(f"sqlite:///{tmp_path}/none/x.db", None)
