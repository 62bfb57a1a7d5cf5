"""`schedules:` in the configuration: what is read, and what is said of each mistake, where it stands."""

from pathlib import Path

import pytest

from dispatcher import schedule_owners, settings_load, settings_schedules
from dispatcher.settings import Schedule
from dispatcher.settings_load import ConfigInvalid
from dispatcher.settings_yaml import Problem


def load(tmp_path: Path, text: str) -> dict[str, Schedule]:
    file = tmp_path / "pointsman.yaml"
    file.write_text(f"schedules:\n  {text}\n", encoding="utf-8")
    return settings_load.load(file, {"REGION": "eu"}).settings.schedules


def problems(tmp_path: Path, text: str) -> list[Problem]:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, text)
    return caught.value.problems


def test_a_schedule_in_full(tmp_path: Path) -> None:
    """Every key is read; the input is any JSON, variables and quoted numbers as text."""
    text = (
        'nightly: { workflow: report, version: "2", cron: "0 2 * * 1-5", timezone: Europe/Berlin, overlap: allow, '
        "catchUp: 3, jitterMs: 60000, pool: slow, tags: { region: '${REGION}' }, priority: 9, namespace: shop, "
        "input: { region: '${REGION}', days: [1, 2.5, null, true, '7'] } }"
    )
    assert load(tmp_path, text)["nightly"] == Schedule(
        workflow="report",
        version="2",
        cron="0 2 * * 1-5",
        timezone="Europe/Berlin",
        input={"region": "eu", "days": [1, 2.5, None, True, "7"]},
        overlap="allow",
        catch_up=3,
        jitter_ms=60_000,
        pool="slow",
        tags={"region": "eu"},
        priority=9,
        namespace="shop",
    )


def test_defaults(tmp_path: Path) -> None:
    """A workflow and a rule are enough; the input is null."""
    given = load(tmp_path, "beat: { workflow: report, everyMs: 1000 }")["beat"]
    assert (given.timezone, given.overlap, given.catch_up, given.jitter_ms) == ("UTC", "skip", 1, 0)
    assert (given.pool, given.tags, given.priority, given.namespace) == ("default", {}, 5, "default")
    assert settings_schedules.payload(given.input) == b"null"


FAULTS = [
    ("x: { workflow: w }", (2, 6, "schedules.x", "missing"), 'Write cron: "0 7 * * *", or everyMs: 60000.'),
    ("x: { everyMs: 1000 }", (2, 3, "schedules.x.workflow", "missing"), None),
    ('x: { workflow: w, cron: "* * * * *", everyMs: 1000 }', (2, 49, "schedules.x.everyMs", "schedule_invalid"), None),
    ('x: { workflow: w, cron: "61 * * * *" }', (2, 27, "schedules.x.cron", "schedule_invalid"), None),
    ("x: { workflow: w, cron: 5 }", (2, 27, "schedules.x.cron", "wrong_type"), None),
    ("x: { workflow: w, everyMs: 999 }", (2, 30, "schedules.x.everyMs", "out_of_range"), None),
    ("x: { workflow: w, everyms: 1000 }", (2, 21, "schedules.x.everyms", "unknown_key"), "Did you mean 'everyMs'?"),
    (
        "x: { workflow: w, everyMs: 1000, timezone: europe/berlin }",
        (2, 46, "schedules.x.timezone", "timezone_unknown"),
        "Did you mean 'Europe/Berlin'?",
    ),
    (
        "x: { workflow: w, everyMs: 1000, overlap: alow }",
        (2, 45, "schedules.x.overlap", "invalid_value"),
        "Did you mean 'allow'?",
    ),
    ("x: { workflow: w, everyMs: 1000, catchUp: 101 }", (2, 45, "schedules.x.catchUp", "out_of_range"), None),
    ("x: { workflow: w, everyMs: 1000, input: [.nan] }", (2, 43, "schedules.x.input", "wrong_type"), None),
    ("x: { workflow: w, everyMs: 1000, tags: { a: 1 } }", (2, 47, "schedules.x.tags.a", "wrong_type"), None),
    (
        "x: { workflow: w, everyMs: 1000, namespace: '*' }",
        (2, 47, "schedules.x.namespace", "invalid_value"),
        "Name one namespace; without a name it is default.",
    ),
    ("x: { workflow: w, everyMs: 1000, namespace: 5 }", (2, 47, "schedules.x.namespace", "wrong_type"), None),
    ("x: 5", (2, 6, "schedules.x", "wrong_type"), None),
    (
        f"x: {{ workflow: {'😀' * 200}, pool: {'😀' * 200}, everyMs: 1000 }}",
        (2, 18, "schedules.x.workflow", "queue_too_long"),
        "Choose shorter names, or names in ASCII.",
    ),
]


@pytest.mark.parametrize(("text", "expected", "hint"), FAULTS)
def test_faults(tmp_path: Path, text: str, expected: tuple[int, int, str, str], hint: str | None) -> None:
    """Each mistake is told at its line and column, with what was meant."""
    found = [problem for problem in problems(tmp_path, text) if problem.path == expected[2]]
    assert [(item.line, item.column, item.path, item.code) for item in found] == [expected]
    assert hint is None or found[0].hint == hint


def test_every_fault_at_once(tmp_path: Path) -> None:
    """Faults of types and of rules are told together."""
    text = 'a: { workflow: w, cron: "x" }\n  b: { workflow: w, everyMs: 1, timezone: Nowhere }'
    assert [item.path for item in problems(tmp_path, text)] == [
        "schedules.a.cron",
        "schedules.b.everyMs",
        "schedules.b.timezone",
    ]


def test_an_input_too_large(tmp_path: Path) -> None:
    """An input no run could have is refused before it is due."""
    [found] = problems(tmp_path, f"x: {{ workflow: w, everyMs: 1000, input: {'a' * 1_050_000} }}")
    assert (found.path, found.code) == ("schedules.x.input", "out_of_range")


def test_what_is_stored(tmp_path: Path) -> None:
    """The same words of a file make the same schedule, whatever the order of its tags."""
    one = load(tmp_path, "x: { workflow: w, everyMs: 1000, tags: { a: '1', b: '2' } }")["x"]
    other = load(tmp_path, "x: { workflow: w, everyMs: 1000, tags: { b: '2', a: '1' } }")["x"]
    stored = schedule_owners.of_file("x", one)
    assert stored == schedule_owners.of_file("x", other)
    assert (stored.tags, stored.input) == ('{"a":"1","b":"2"}', b"null")
