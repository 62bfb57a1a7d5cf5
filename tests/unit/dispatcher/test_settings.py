"""Settings: layers, defaults, and every fault at once with its place."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import settings_load, settings_show
from dispatcher.settings import PushPublisher, RedisPublisher, Settings, SqsPublisher
from dispatcher.settings_load import ConfigInvalid, Loaded
from dispatcher.settings_yaml import Problem

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def load(
    tmp_path: Path, text: str, environ: dict[str, str] | None = None, flags: dict[str, Any] | None = None
) -> Loaded:
    file = tmp_path / "pointsman.yaml"
    file.write_text(text, encoding="utf-8")
    return settings_load.load(file, environ or {}, flags)


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, text, environ)
    return caught.value.problems


def problem(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Problem:
    found = problems(tmp_path, text, environ)
    assert len(found) == 1, found
    return found[0]


def test_defaults_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without file, environment or flags the documented defaults hold."""
    monkeypatch.chdir(tmp_path)
    settings = settings_load.load(None, {}).settings

    assert settings.database.url == "sqlite:///pointsman.db"
    assert settings.server.listen == "127.0.0.1:8400"
    assert settings.server.max_body_bytes == 8_388_608
    assert settings.recovery.claim_idle_timeout_ms == 90_000
    assert settings.recovery.claim_refresh_interval_ms == 30_000
    assert settings.recovery.max_releases_per_second == 100
    assert settings.publishing.claim_deadline_ms == 30_000
    assert settings.publishing.declined_backoff_ms == 30_000
    assert settings.stalling.max_kills_without_progress == 3
    assert settings.runs.record_tracebacks is False
    assert settings.retention.runs_days == 30


def test_the_documented_example(tmp_path: Path) -> None:
    """A file in the documented shape, variables in flow mappings included, is read into every section."""
    text = """
server: { listen: "0.0.0.0:8400", publicUrl: https://pointsman.example.com/, maxBodyBytes: 8388608 }
database: { url: ${POINTSMAN_DATABASE_URL} }
retention: { runsDays: 30 }
runs: { cancelGraceMs: 300000, recordArguments: true, recordTracebacks: false }
publishers:
  orders: { type: push, url: https://abc.lambda-url.eu-west-1.on.aws/, secret: ${SECRET}, platform: lambda-url }
routes:
  - { workflows: ["order-*"], pools: ["default"], publish: [orders] }
"""
    environ = {"POINTSMAN_DATABASE_URL": "postgresql://pm@db/pm", "SECRET": SECRET}
    settings = load(tmp_path, text, environ).settings

    assert settings.server.url == "https://pointsman.example.com"
    assert settings.database.url == "postgresql://pm@db/pm"
    publisher = settings.push_publishers["orders"]
    assert isinstance(publisher, PushPublisher)
    assert publisher.platform == "lambda-url"
    assert publisher.secret.get_secret_value() == SECRET
    assert settings.routes[0].publish == ("orders",)


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    """flag > environment > YAML > default, and each value knows its layer."""
    text = "server: { listen: 'a:1', publicUrl: http://file }\ndatabase: { url: sqlite:///file.db }\n"
    environ = {"POINTSMAN_LISTEN": "b:2", "POINTSMAN_DATABASE_URL": "sqlite:///env.db"}
    loaded = load(tmp_path, text, environ, {"server.listen": "c:3", "database.url": None})

    assert loaded.settings.server.listen == "c:3"
    assert loaded.settings.database.url == "sqlite:///env.db"
    assert loaded.settings.server.public_url == "http://file"
    assert loaded.origins["server.listen"] == "flag"
    assert loaded.origins["database.url"] == "environment (POINTSMAN_DATABASE_URL)"
    assert loaded.origins["server.publicUrl"] == "file"


def test_refresh_interval_from_the_environment(tmp_path: Path) -> None:
    """POINTSMAN_CLAIM_REFRESH_INTERVAL_MS sets the interval, and is judged with the idle timeout."""
    environ = {"POINTSMAN_CLAIM_REFRESH_INTERVAL_MS": "1000"}
    text = "daemons: { recoverOverdueOutboxEntries: { claimIdleTimeoutMs: 3000 } }"

    assert load(tmp_path, text, environ).settings.recovery.claim_refresh_interval_ms == 1_000
    assert problem(tmp_path, text).code == "idle_timeout_too_short"
    found = problem(tmp_path, "{}", {"POINTSMAN_CLAIM_REFRESH_INTERVAL_MS": "often"})
    assert (found.code, found.line) == ("wrong_type", None)
    assert "POINTSMAN_CLAIM_REFRESH_INTERVAL_MS" in found.message


@pytest.mark.parametrize(
    ("idle", "refresh", "fine"), [(90_000, 30_000, True), (89_999, 30_000, False), (3_000, 1_000, True)]
)
def test_idle_timeout_is_three_refreshes(tmp_path: Path, idle: int, refresh: int, fine: bool) -> None:
    """A claim may miss two refreshes; a shorter idle timeout is refused where it is written."""
    text = (
        "daemons:\n  recoverOverdueOutboxEntries:\n"
        f"    claimIdleTimeoutMs: {idle}\n    claimRefreshIntervalMs: {refresh}\n"
    )
    if fine:
        assert load(tmp_path, text).settings.recovery.claim_idle_timeout_ms == idle
        return
    found = problem(tmp_path, text)
    assert (found.line, found.column, found.code) == (3, 25, "idle_timeout_too_short")
    assert found.path == "daemons.recoverOverdueOutboxEntries.claimIdleTimeoutMs"


FAULTS = [
    ("servr: {}", (1, 1, "servr", "unknown_key"), "Did you mean 'server'?"),
    ("server: { public_url: https://x }", (1, 11, "server.public_url", "unknown_key"), "Did you mean 'publicUrl'?"),
    ("server: 5", (1, 9, "server", "wrong_type"), None),
    ("server: { listen: 8400 }", (1, 19, "server.listen", "wrong_type"), None),
    ('server: { listen: "x:99999" }', (1, 19, "server.listen", "invalid_listen"), None),
    ("server: { publicUrl: ftp://x }", (1, 22, "server.publicUrl", "invalid_url"), None),
    ("server: { maxBodyBytes: 1 }", (1, 25, "server.maxBodyBytes", "out_of_range"), None),
    ("retention: { runsDays: .nan }", (1, 24, "retention.runsDays", "wrong_type"), None),
    ("retention: { runsDays: .inf }", (1, 24, "retention.runsDays", "wrong_type"), None),
    ("retention: { runsDays: true }", (1, 24, "retention.runsDays", "wrong_type"), None),
    ("retention: { runsDays: 3.0 }", (1, 24, "retention.runsDays", "wrong_type"), None),
    ("retention: { runsDays: -1 }", (1, 24, "retention.runsDays", "out_of_range"), None),
    ("retention: { runsDays: '30' }", (1, 24, "retention.runsDays", "wrong_type"), None),
    ("runs: { recordArguments: 1 }", (1, 26, "runs.recordArguments", "wrong_type"), None),
    ("runs: { cancelGraceMs: 1, cancelGraceMs: 2 }", (1, 27, "runs.cancelGraceMs", "duplicate_key"), None),
    ("runs: {}\nruns: {}", (2, 1, "runs", "duplicate_key"), None),
    ("database: { url: mysql://x }", (1, 18, "database.url", "invalid_database_url"), None),
    ('database: { url: "postgresql://u:p@[::1/d" }', (1, 18, "database.url", "invalid_database_url"), None),
    ("database: { url: ${NOT_SET} }", (1, 18, "database.url", "variable_unset"), None),
    ('database: { url: "sqlite:///${" }', (1, 18, "database.url", "variable_malformed"), None),
    ("secretKey: abc", (1, 1, "secretKey", "unknown_key"), "Set POINTSMAN_SECRET_KEY."),
    ("routes: [{ publish: [a] }]", (1, 22, "routes[0].publish[0]", "unknown_publisher"), None),
    ("routes: [{ publish: [] }]", (1, 21, "routes[0].publish", "out_of_range"), None),
    ("routes: { a: 1 }", (1, 9, "routes", "wrong_type"), None),
    ("publishers: { a: { url: https://x } }", (1, 18, "publishers.a", "missing"), None),
    ("publishers: { a: { type: pus } }", (1, 18, "publishers.a", "invalid_value"), "Did you mean 'push'?"),
    ("runs: !python/object:os.system {}", (1, 7, "runs", "wrong_type"), None),
    ("[]", (1, 1, "", "wrong_type"), None),
    ("a: [", (1, 5, "", "yaml_syntax"), None),
    ("a: 1\n---\nb: 2", (2, 1, "", "yaml_syntax"), None),
    ("runs: *nowhere", (1, 7, "", "yaml_syntax"), None),
    ("logLevel: loud", (1, 11, "logLevel", "invalid_value"), None),
    (
        "daemons: { publishPendingOutboxEntries: { baseBackoffMs: 9, maxBackoffMs: 8 } }",
        (1, 58, "daemons.publishPendingOutboxEntries.baseBackoffMs", "out_of_range"),
        None,
    ),
]


@pytest.mark.parametrize(("text", "where", "hint"), FAULTS, ids=[text[:40] for text, _, _ in FAULTS])
def test_each_fault_has_its_place(
    tmp_path: Path, text: str, where: tuple[int, int, str, str], hint: str | None
) -> None:
    """A fault is told with line, column, path and code, and a hint where a word is close."""
    found = problem(tmp_path, text)

    assert (found.line, found.column, found.path, found.code) == where
    if hint is not None:
        assert found.hint == hint


PUBLISHER_FAULTS = [
    ("{ type: push, secret: %s }", "publishers.a.url", "missing"),
    ("{ type: push, url: https://x }", "publishers.a.secret", "missing"),
    ("{ type: push, url: http://x, secret: %s }", "publishers.a.url", "endpoint_url_refused"),
    ("{ type: push, url: https://u:p@x, secret: %s }", "publishers.a.url", "endpoint_url_refused"),
    ("{ type: push, url: https://x, secret: whsec_c2hvcnQ= }", "publishers.a.secret", "secret_invalid"),
    ("{ type: push, url: https://x, secret: %s, platform: lambda }", "publishers.a.platform", "invalid_value"),
    ("{ type: push, url: https://x, secret: %s, maxInFlight: 0 }", "publishers.a.maxInFlight", "out_of_range"),
    ("{ type: push, url: https://x, secret: %s, queueUrl: y }", "publishers.a.queueUrl", "unknown_key"),
    ("{ type: sqs, secret: %s }", "publishers.a.queueUrl", "missing"),
    ("{ type: sqs, queueUrl: https://sqs.eu-west-1.amazonaws.com/1/q }", "publishers.a.secret", "missing"),
    ("{ type: sqs, queueUrl: https://x, secret: %s, region: a }", "publishers.a.queueUrl", "queue_url_invalid"),
    ("{ type: sqs, queueUrl: http://127.0.0.1:1/1/q, secret: %s }", "publishers.a.queueUrl", "region_missing"),
    ("{ type: sqs, queueUrl: http://x/1/q, secret: %s, region: EU West }", "publishers.a.region", "region_invalid"),
    (
        "{ type: sqs, queueUrl: https://sqs.eu-west-1.amazonaws.com/1/q, secret: %s, endpointUrl: x }",
        "publishers.a.endpointUrl",
        "invalid_url",
    ),
    (
        "{ type: sqs, queueUrl: https://sqs.eu-west-1.amazonaws.com/1/q, secret: %s, republishMs: 999 }",
        "publishers.a.republishMs",
        "out_of_range",
    ),
    ("{ type: redis, url: http://x, secret: %s }", "publishers.a.url", "redis_url_invalid"),
    ("{ type: redis, url: redis://x, secret: %s, republishMs: 3600001 }", "publishers.a.republishMs", "out_of_range"),
    ("{ type: redis, url: redis://x, secret: %s, maxInFlight: 5 }", "publishers.a.maxInFlight", "unknown_key"),
    ("{ type: redis, queueUrl: redis://x, url: redis://x, secret: %s }", "publishers.a.queueUrl", "unknown_key"),
]


@pytest.mark.parametrize(("text", "path", "code"), PUBLISHER_FAULTS)
def test_publisher_faults(tmp_path: Path, text: str, path: str, code: str) -> None:
    """A publisher is refused for what is wrong with it, at the key that is wrong."""
    found = problem(tmp_path, "publishers:\n  a: " + text.replace("%s", SECRET))

    assert (found.path, found.code, found.line) == (path, code, 2)


def test_broker_publishers(tmp_path: Path) -> None:
    """Publishers to brokers have their clocks and places by default, and keep their order among the others."""
    text = f"""
publishers:
  fast: {{ type: redis, url: "redis://:pw@localhost:6379/0", secret: {SECRET} }}
  push: {{ type: push, url: https://x, secret: {SECRET} }}
  queue: {{ type: sqs, queueUrl: https://sqs.eu-west-1.amazonaws.com/1/orders.fifo, secret: {SECRET} }}
  local: {{ type: sqs, queueUrl: "http://127.0.0.1:9324/1/q", secret: {SECRET}, region: local, republishMs: 2000 }}
routes: [{{ workflows: ["order-*"], publish: [push, queue, fast] }}]
"""
    settings = load(tmp_path, text).settings
    brokers = settings.broker_publishers

    assert list(settings.publishers) == ["fast", "push", "queue", "local"]
    assert list(brokers) == ["fast", "queue", "local"]
    fast, queue, local = brokers["fast"], brokers["queue"], brokers["local"]
    assert isinstance(fast, RedisPublisher)
    assert isinstance(queue, SqsPublisher)
    assert isinstance(local, SqsPublisher)
    assert (fast.republish_ms, queue.republish_ms, local.republish_ms) == (60_000, 300_000, 2_000)
    assert (queue.region_name, queue.service_url) == ("eu-west-1", None)
    assert (local.region_name, local.service_url) == ("local", "http://127.0.0.1:9324")


def test_region_of_an_endpoint(tmp_path: Path) -> None:
    """The region may be told by endpointUrl, an interface endpoint say; what is written beats what a URL tells."""
    queue = "queueUrl: https://queues.internal/1/q, endpointUrl: https://vpce-1.sqs.eu-north-1.vpce.amazonaws.com"
    text = f"publishers: {{ a: {{ type: sqs, {queue}, secret: {SECRET} %s }} }}"
    for more, region in (("", "eu-north-1"), (", region: eu-west-3", "eu-west-3")):
        publisher = load(tmp_path, text % more).settings.publishers["a"]
        assert isinstance(publisher, SqsPublisher)
        assert publisher.region_name == region
        assert publisher.service_url == "https://vpce-1.sqs.eu-north-1.vpce.amazonaws.com"


def test_redis_passwords_are_not_shown(tmp_path: Path) -> None:
    """A Redis URL is shown without its password, wherever the password stands, and never in a repr."""
    text = f"""
publishers:
  a: {{ type: redis, url: "rediss://user:hunter2hunter2@cache:6379/0", secret: {SECRET} }}
  b: {{ type: redis, url: "unix:///run/redis.sock?db=1&password=hunter2hunter2", secret: {SECRET} }}
"""
    loaded = load(tmp_path, text)
    shown = {path: value for path, value, _ in settings_show.entries(loaded)}

    assert shown["publishers.a.url"] == "rediss://user:…@cache:6379/0"
    assert shown["publishers.b.url"] == "unix:///run/redis.sock?db=1&password=…"
    assert "hunter2" not in repr(loaded.settings) + repr(shown)


def test_all_faults_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Syntax of values, unknown keys, rules and variables are reported together."""
    text = "server: { listen: 1 }\nruns: { x: 1 }\ndatabase: { url: ${NOPE} }\nroutes: [{ publish: [a] }]\n"
    found = [(item.line, item.code) for item in problems(tmp_path, text)]

    assert found == [(1, "wrong_type"), (2, "unknown_key"), (3, "variable_unset"), (4, "unknown_publisher")]


def test_anchors_and_merges(tmp_path: Path) -> None:
    """YAML anchors, aliases and merge keys mean what YAML says; the written key wins."""
    text = (
        "publishers:\n"
        f"  a: &base {{ type: push, url: https://a, secret: {SECRET}, maxInFlight: 7 }}\n"
        "  b: { <<: *base, url: https://b }\n"
        "  c: *base\n"
    )
    found = load(tmp_path, text).settings.push_publishers

    assert [(item.url, item.max_in_flight) for item in found.values()] == [
        ("https://a", 7),
        ("https://b", 7),
        ("https://a", 7),
    ]


def test_anchor_that_holds_itself(tmp_path: Path) -> None:
    """A document that contains itself is a fault, not a hang."""
    assert problem(tmp_path, "runs: &a\n  cancelGraceMs: *a\n").code == "too_deep"


def test_billion_laughs(tmp_path: Path) -> None:
    """Aliases that multiply are a fault, not a memory exhaustion."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]

    assert "too_deep" in {item.code for item in problems(tmp_path, "\n".join(lines))}


def test_variables(tmp_path: Path) -> None:
    """Variables are replaced inside text, may have defaults, and arrive as numbers and booleans where those belong."""
    text = (
        "database: { url: 'postgresql://${USER}:${PASSWORD:-pw}@db/x' }\n"
        "retention: { runsDays: ${DAYS} }\n"
        "runs: { recordArguments: ${RECORD}, cancelGraceMs: ${GRACE:-5} }\n"
        "server: { publicUrl: 'https://x/$$$${A}' }\n"
    )
    settings = load(tmp_path, text, {"USER": "u", "DAYS": "9", "RECORD": "false"}).settings

    assert settings.database.url == "postgresql://u:pw@db/x"
    assert settings.retention.runs_days == 9
    assert settings.runs.record_arguments is False
    assert settings.runs.cancel_grace_ms == 5
    assert settings.server.public_url == "https://x/$${A}"


def test_variables_cannot_inject_yaml(tmp_path: Path) -> None:
    """What a variable holds is text, whatever YAML it looks like."""
    found = problem(tmp_path, "server: { listen: ${X} }", {"X": "{a: 1}, b: 2"})

    assert found.code == "invalid_listen"


def test_named_file_has_to_exist(tmp_path: Path) -> None:
    """A file that was named and is missing, or is not UTF-8, is a fault."""
    with pytest.raises(ConfigInvalid) as caught:
        settings_load.load(tmp_path / "none.yaml", {})
    assert caught.value.problems[0].code == "file_unreadable"
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigInvalid) as caught:
        settings_load.load(None, {"POINTSMAN_CONFIG": str(tmp_path / "latin.yaml")})
    assert caught.value.problems[0].code == "yaml_syntax"


def test_faults_show_no_secret(tmp_path: Path) -> None:
    """No message quotes a secret, nor does anything printed of the settings."""
    bad = "publishers: { a: { type: push, url: 'https://user:hunter22@x', secret: whsec_hunter22 } }"
    assert "hunter22" not in repr(problems(tmp_path, bad))

    environ = {"POINTSMAN_SECRET_KEY": "correct-horse-battery-staple", "POINTSMAN_ADMIN_KEY": "pmk_" + "a" * 40}
    text = (
        "database: { url: 'postgresql://u:hunter22@db/x' }\n"
        f"publishers: {{ a: {{ type: push, url: https://x, secret: {SECRET} }} }}\n"
    )
    loaded = load(tmp_path, text, environ)
    shown = repr(settings_show.entries(loaded)) + repr(loaded.settings)
    for secret in ("hunter22", SECRET, "correct-horse", "aaaaa"):
        assert secret not in shown
    assert SECRET[-4:] in shown


def test_origins_are_shown(tmp_path: Path) -> None:
    """Every setting is shown with the layer it came from."""
    entries = settings_show.entries(load(tmp_path, "runs: { cancelGraceMs: 5 }", {"POINTSMAN_LOG_LEVEL": "debug"}))
    by_path = {path: (value, origin) for path, value, origin in entries}

    assert by_path["runs.cancelGraceMs"] == (5, "file")
    assert by_path["runs.recordArguments"] == (True, "default")
    assert by_path["logLevel"] == ("debug", "environment (POINTSMAN_LOG_LEVEL)")


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0:8400", "http://127.0.0.1:8400"),
        ("[::]:1", "http://[::1]:1"),
        ("[::1]:80", "http://[::1]:80"),
        ("host:9", "http://host:9"),
    ],
)
def test_url_from_listen(listen: str, url: str) -> None:
    """Without publicUrl deliveries carry an address of this host that can be dialled."""
    settings = Settings.model_validate({"server": {"listen": listen}}, by_alias=True, by_name=False)

    assert settings.server.url == url


@given(st.text(max_size=200))
def test_any_text_is_settings_or_problems(text: str) -> None:
    """Whatever a file holds, it is either settings or a list of problems."""
    from dispatcher import settings_yaml

    document = settings_yaml.parse(text, {})

    assert document.problems or isinstance(document.data, dict)
