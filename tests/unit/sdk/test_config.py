"""endpoint_sdk.config and endpoint_sdk.signing_secrets: what is refused before anything starts."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from endpoint_sdk import config, monotonic
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.signing_secrets import SigningSecrets, keys
from endpoint_sdk.wire import signature
from tests.unit.sdk.dispatcher_double import FakeClock

FIRST, SECOND = signature.new_secret(), signature.new_secret()


def test_an_empty_environment_has_defaults() -> None:
    """Nothing set: nothing configured, and the refresh interval is 30 s."""
    assert config.read({}) == config.Environment()
    assert config.read({"POINTSMAN_URL": "", "POINTSMAN_MAX_DURATION": "  "}) == config.Environment()


def test_every_variable_is_read() -> None:
    """Each name reaches its field, converted."""
    read = config.read(
        {
            "POINTSMAN_URL": "https://pointsman.example.com/",
            "POINTSMAN_API_KEY": "pmk_x",
            "POINTSMAN_SIGNING_SECRET": f"{FIRST} {SECOND}",
            "POINTSMAN_ENDPOINT": "orders  returns",
            "POINTSMAN_NAMESPACE": "shop",
            "POINTSMAN_MAX_DURATION": "29.5",
            "POINTSMAN_SIGNATURE_TOLERANCE": "0",
            "POINTSMAN_CLAIM_REFRESH_INTERVAL_MS": "1000",
        }
    )

    assert read == config.Environment(
        "https://pointsman.example.com",
        "pmk_x",
        f"{FIRST} {SECOND}",
        ("orders", "returns"),
        "shop",
        timedelta(seconds=29.5),
        0,
        1_000,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POINTSMAN_SIGNATURE_TOLERANCE", "NaN"),
        ("POINTSMAN_SIGNATURE_TOLERANCE", "-1"),
        ("POINTSMAN_SIGNATURE_TOLERANCE", "1.5"),
        ("POINTSMAN_SIGNATURE_TOLERANCE", "901"),
        ("POINTSMAN_SIGNATURE_TOLERANCE", "٣"),
        ("POINTSMAN_SIGNATURE_TOLERANCE", "five"),
        ("POINTSMAN_MAX_DURATION", "0"),
        ("POINTSMAN_MAX_DURATION", "nan"),
        ("POINTSMAN_MAX_DURATION", "inf"),
        ("POINTSMAN_MAX_DURATION", "-3"),
        ("POINTSMAN_MAX_DURATION", "5m"),
        ("POINTSMAN_CLAIM_REFRESH_INTERVAL_MS", "0"),
        ("POINTSMAN_CLAIM_REFRESH_INTERVAL_MS", "1e3"),
        ("POINTSMAN_URL", "pointsman.example.com"),
        ("POINTSMAN_URL", "ftp://pointsman.example.com"),
        ("POINTSMAN_URL", "https://user:secret@pointsman.example.com"),
        ("POINTSMAN_URL", "https://pointsman.example.com/?x=1"),
        ("POINTSMAN_URL", "https://"),
        ("POINTSMAN_URL", "https://host:99999"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_variable(name: str, value: str) -> None:
    """C02: NaN, negative and text are refused at start-up, not ignored."""
    with pytest.raises(ConfigurationError, match=name):
        config.read({name: value})


@pytest.mark.parametrize("value", [True, 1.0, "300", -1, 901, float("nan")])
def test_a_tolerance_is_a_whole_number_of_seconds(value: object) -> None:
    """What is no int from 0 to 900 is refused."""
    with pytest.raises(ConfigurationError, match="tolerance"):
        config.tolerance(value, "tolerance")


def test_secrets_come_as_text_list_or_several_in_one_text() -> None:
    """All forms give the same keys, in order."""
    expected = (signature.parse_secret(FIRST), signature.parse_secret(SECOND))

    assert keys(f" {FIRST}  {SECOND} ") == expected
    assert keys([FIRST, SECOND]) == expected
    assert keys((f"{FIRST} {SECOND}",)) == expected


@pytest.mark.parametrize(
    "secret",
    ["", "  ", [], "secret", "whsec_short", FIRST[:-3], [FIRST, "x"], [1], 5],
    ids=["empty", "blank", "none", "plain", "short", "cut", "one-wrong", "number-list", "number"],
)
def test_a_missing_or_invalid_secret_is_an_error_at_once(secret: object) -> None:
    """An endpoint that could verify nothing does not start."""
    with pytest.raises(ConfigurationError):
        keys(secret)  # type: ignore[arg-type]


def test_more_than_ten_secrets_are_refused() -> None:
    """Verification tries ten; an eleventh would silently never match."""
    with pytest.raises(ConfigurationError, match="11"):
        keys([signature.new_secret() for _ in range(11)])


def test_a_function_is_not_called_at_construction() -> None:
    """Fetching a secret may be slow or need credentials: it waits for the first delivery."""
    answers = [FIRST]
    secrets = SigningSecrets(answers.pop)

    assert secrets.ready() is None
    assert answers == [FIRST]
    assert secrets.hint is None


def test_a_function_is_asked_every_five_minutes() -> None:
    """A rotated secret is picked up; in between the answer is kept."""
    clock = FakeClock()
    answers = [FIRST, SECOND]
    secrets = SigningSecrets(lambda: answers.pop(0), now=clock.now)
    first = secrets.fetch()
    clock.pass_(299)
    assert secrets.fetch() == secrets.ready() == first
    clock.pass_(2)

    assert secrets.ready() is None
    assert secrets.fetch() == (signature.parse_secret(SECOND),)


def test_while_the_function_fails_its_last_answer_stands() -> None:
    """An outage of the secret store does not refuse deliveries."""
    clock = FakeClock()
    answers = [FIRST]
    secrets = SigningSecrets(lambda: answers.pop(0), now=clock.now)
    first = secrets.fetch()
    clock.pass_(301)

    assert secrets.fetch() == first


def test_a_function_that_never_worked_raises() -> None:
    """Without any key there is nothing to fall back to."""
    secrets = SigningSecrets(list)

    with pytest.raises(ConfigurationError):
        secrets.fetch()


def test_callers_who_wait_for_a_failure_share_it() -> None:
    """A batch of messages whose secret store hangs asks it once, not once for each message in turn."""
    entered, asked, let_go = threading.Event(), threading.Event(), threading.Event()
    calls: list[int] = []

    def fetch() -> str:
        calls.append(1)
        entered.set()
        assert let_go.wait(10)
        raise RuntimeError("away")

    def now() -> float:
        if entered.is_set():
            asked.set()
        return monotonic.now()

    secrets = SigningSecrets(fetch, now=now)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(secrets.fetch)
        assert entered.wait(10)
        second = pool.submit(secrets.fetch)
        assert asked.wait(10)
        let_go.set()
        for each in (first, second):
            with pytest.raises(RuntimeError, match="away"):
                each.result(10)

    assert calls == [1]
    with pytest.raises(RuntimeError, match="away"):
        secrets.fetch()
    assert calls == [1, 1]
