"""The command line against a stand-in for the API: formats, exit codes, and where words go."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from dispatcher.cli.application import application
from dispatcher.store import migrating
from endpoint_sdk import _version

RUN: dict[str, Any] = {
    "id": "run_1",
    "workflow": "order",
    "version": "1",
    "status": "queued",
    "reason": None,
    "revision": 0,
    "attempt": 1,
    "updatedAt": "2026-12-01T10:00:00.000Z",
}

Answers = Callable[..., list[httpx.Request]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file of the developer's reaches a test."""
    for name in ("URL", "API_KEY", "NAMESPACE", "CONFIG", "DATABASE_URL", "LISTEN", "SECRET_KEY", "ADMIN_KEY"):
        monkeypatch.delenv(f"POINTSMAN_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Makes the API answer with a status and a body; answers the list its requests are noted in."""

    def answering(status: int = 200, body: Any = None, error: Exception | None = None) -> list[httpx.Request]:
        seen: list[httpx.Request] = []

        def request(method: str, url: str, **options: Any) -> httpx.Response:
            options.pop("timeout"), options.pop("trust_env")
            seen.append(httpx.Request(method, url, **options))
            if error is not None:
                raise error
            return httpx.Response(status, text=body if isinstance(body, str) else json.dumps(body))

        monkeypatch.setattr(httpx, "request", request)
        return seen

    return answering


def run(*words: str, **options: Any) -> Result:
    return CliRunner().invoke(application, list(words), **options)


def test_json_is_the_answer_unchanged(answers: Answers) -> None:
    """-o json prints the API's own bytes."""
    text = '{"items": [ {"id": "ö" } ],\n"next":null}'
    answers(body=text)

    result = run("run", "list", "-o", "json")

    assert (result.exit_code, result.stdout, result.stderr) == (0, text + "\n", "")


def test_jsonl_is_an_item_a_line(answers: Answers) -> None:
    """-o jsonl prints one compact item a line."""
    answers(body={"items": [{"id": 1}, {"id": 2}], "next": None})

    assert run("run", "list", "-o", "jsonl").stdout == '{"id":1}\n{"id":2}\n'


def test_tables_go_to_stdout_words_to_stderr(answers: Answers) -> None:
    """The table is on stdout and uncut; the hint to page on is on stderr."""
    answers(body={"items": [{**RUN, "id": "run_" + "A" * 26, "reason": "x" * 200}], "next": "run_9"})

    result = run("run", "list")

    assert "run_" + "A" * 26 in result.stdout
    assert "x" * 200 in result.stdout
    assert result.stderr == "more: --after run_9\n"


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (409, 4), (400, 1), (401, 1), (403, 1), (422, 1), (500, 1), (503, 5)]
)
def test_exit_codes(answers: Answers, status: int, code: int) -> None:
    """Not found is 3, a conflict 4, out of reach 5, any other failure 1; the error is told on stderr."""
    answers(status, {"error": {"code": "some_code", "message": "What happened.", "hint": "Do this."}})

    result = run("run", "show", "run_1")
    as_json = run("run", "show", "run_1", "-o", "json")

    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "error: What happened. (some_code)\nhint: Do this.\n"
    assert json.loads(as_json.stderr)["error"]["code"] == "some_code"


def test_unreachable(answers: Answers) -> None:
    """No dispatcher is exit code 5, and says which address was tried."""
    answers(error=httpx.ConnectError("refused"))

    result = run("run", "list", "--url", "http://127.0.0.1:9")

    assert result.exit_code == 5
    assert "http://127.0.0.1:9" in result.stderr


@pytest.mark.parametrize("body", ["<html>", "{}", '{"error": 5}', "[]"])
def test_answers_that_are_not_ours(answers: Answers, body: str) -> None:
    """Another server's error page is a failure in words, not a traceback."""
    answers(502, body)
    result = run("run", "list")

    assert result.exit_code == 5
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "nope"],
        ["run", "show"],
        ["run", "list", "--limit", "0"],
        ["run", "list", "--tag", "x"],
        ["run", "start", "order", "{not json"],
        ["run", "start", "order", "@none.json"],
        ["run", "list", "-o", "xml"],
        ["key", "create", "x"],
    ],
)
def test_usage(words: list[str]) -> None:
    """What cannot be understood is exit code 2."""
    assert run(*words).exit_code == 2


def test_start_sends_the_input(answers: Answers, tmp_path: Path) -> None:
    """A start submits JSON from the argument, a file or stdin, with its options and the credential."""
    (tmp_path / "in.json").write_text('{"id": 2}')
    seen = answers(201, {"run": RUN, "created": True})

    assert (
        run("run", "start", "order", '{"id": 1}', "--tag", "a=b=c", "--api-key", "pmk_x", "--priority", "9").exit_code
        == 0
    )
    assert run("run", "start", "order", "@in.json").exit_code == 0
    assert run("run", "start", "order", "-", input="[3]").exit_code == 0

    bodies = [json.loads(request.content) for request in seen]
    assert [body["input"] for body in bodies] == [{"id": 1}, {"id": 2}, [3]]
    assert (bodies[0]["tags"], bodies[0]["priority"]) == ({"a": "b=c"}, 9)
    assert seen[0].headers["authorization"] == "Bearer pmk_x"


def test_list_sends_its_filters(answers: Answers) -> None:
    """Each tag is a filter of its own; a value may hold an equals sign."""
    seen = answers(200, {"items": [], "next": None})
    assert run("run", "list", "--tag", "customer=acme", "--tag", "a=b=c", "--workflow", "order").exit_code == 0
    query = dict(seen[0].url.params)
    assert (query["tag.customer"], query["tag.a"], query["workflow"]) == ("acme", "b=c", "order")


def test_operations(answers: Answers) -> None:
    """Each operation is one POST to the run, ids percent-encoded."""
    seen = answers(body={"run": RUN})
    run("run", "cancel", "a/b", "--now", "--reason", "r")
    run("run", "release", "run_1")
    run("run", "requeue", "run_1", "--version", "2")
    for verb in ("pause", "resume", "wake"):
        run("run", verb, "run_1")

    assert [request.url.raw_path for request in seen] == [
        b"/v1/runs/a%2Fb/cancel",
        b"/v1/runs/run_1/release",
        b"/v1/runs/run_1/requeue",
        b"/v1/runs/run_1/pause",
        b"/v1/runs/run_1/resume",
        b"/v1/runs/run_1/wake",
    ]
    assert json.loads(seen[0].content) == {"reason": "r", "now": True}


def test_starting_later(answers: Answers) -> None:
    """A run can be due after some seconds, or at a time."""
    seen = answers(body={"run": RUN, "created": True})
    run("run", "start", "order", "--delay", "1.5")
    run("run", "start", "order", "--due-at", "2026-12-24T18:00:00Z")

    bodies = [json.loads(request.content) for request in seen]
    assert [(body["delayMs"], body["dueAt"]) for body in bodies] == [(1_500, None), (None, "2026-12-24T18:00:00Z")]


def test_sending_an_event(answers: Answers) -> None:
    """An event is its name and a JSON value, null by default; the answer says whether it was new."""
    seen = answers(body={"eventId": "e1", "stored": True})
    assert "e1" in run("run", "send", "run_1", "go", '{"ok": true}', "--event-id", "e1").stdout
    run("run", "send", "run_1", "go")

    assert seen[0].url.raw_path == b"/v1/runs/run_1/events"
    assert [json.loads(request.content) for request in seen] == [
        {"name": "go", "value": {"ok": True}, "eventId": "e1"},
        {"name": "go", "value": None, "eventId": None},
    ]


def test_why_prints_the_sentence(answers: Answers) -> None:
    """The sentence and the next command are what a person reads."""
    answers(body={"sentence": "Nobody serves it.", "facts": {}, "next": "pointsman endpoint list"})

    assert run("run", "why", "run_1").stdout == "Nobody serves it.\nnext: pointsman endpoint list\n"


def test_failed_endpoint_test_is_exit_code_1(answers: Answers) -> None:
    """A probe that failed fails the command; adding an endpoint warns and succeeds."""
    tested = {"ok": False, "code": "endpoint_unreachable", "message": "Nobody listens.", "status": None, "ms": 3}
    answers(body={**tested, "workflows": []})
    assert run("endpoint", "test", "x").exit_code == 1

    endpoint = {"name": "x", "url": "u", "platform": "generic", "state": "unverified", "reason": None, "owner": "api"}
    answers(201, {"endpoint": {**endpoint, "maxInFlight": 5, "workflows": []}, "secret": "whsec_x", "test": tested})
    result = run("endpoint", "add", "x", "https://x/")
    assert result.exit_code == 0
    assert "POINTSMAN_SIGNING_SECRET=whsec_x" in result.stdout
    assert "endpoint_unreachable" in result.stderr


def test_publishers_say_what_is_wrong(answers: Answers) -> None:
    """The list of publishers is on stdout, what to do about one that cannot be used on stderr."""
    queue = {
        "name": "queue",
        "type": "sqs",
        "url": "https://sqs.eu-west-1.amazonaws.com/1/q",
        "owner": "yaml",
        "state": "misconfigured",
        "reason": "queue_missing",
        "advice": "Create it.",
    }
    fast = {**queue, "name": "a/b", "state": "active", "reason": None, "advice": None}
    seen = answers(body={"items": [queue, fast], "next": None})
    listed = run("publisher", "list")
    answers(body={"publisher": fast})
    shown = run("publisher", "show", "a/b")

    assert str(seen[0].url).endswith("/v1/publishers")
    assert "misconfigured" in listed.stdout
    assert listed.stderr == "queue: Create it. (queue_missing)\n"
    assert (shown.exit_code, "active" in shown.stdout) == (0, True)


def test_publisher_names_are_quoted(answers: Answers) -> None:
    """A name with a slash is one part of the path."""
    seen = answers(404, {"error": {"code": "publisher_not_found", "message": "There is no publisher 'a/b'."}})

    assert run("publisher", "show", "a/b").exit_code == 3
    assert seen[0].url.raw_path == b"/v1/publishers/a%2Fb"


def test_a_missing_extra_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher whose package is not installed ends the start with the command that installs it."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    queue = "https://sqs.eu-west-1.amazonaws.com/1/orders"
    Path("pointsman.yaml").write_text(f"publishers: {{ q: {{ type: sqs, queueUrl: {queue}, secret: {secret} }} }}")
    monkeypatch.setattr("dispatcher.telemetry.configure", lambda level: None)
    monkeypatch.setattr("dispatcher.broker_clients.find_spec", lambda name: None)
    result = run("serve", "--listen", "127.0.0.1:0")

    assert result.exit_code == 1
    assert "extra_missing" in result.stderr
    assert result.stderr.endswith('hint: Install it: pip install "pointsman[sqs]"\n')


def test_first_key_is_made_in_the_database(tmp_path: Path) -> None:
    """key create --database needs no running dispatcher; the key is printed alone on stdout."""
    database = f"sqlite:///{tmp_path}/x.db"
    result = run("key", "create", "ops", "--scope", "admin", "--database", database)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("pmk_")
    assert result.stdout.count("\n") == 1
    assert run("key", "create", "ops", "--scope", "root", "--database", database).exit_code == 2
    assert run("key", "create", "ops", "--scope", "read", "--database", "mysql://x").exit_code == 1


def test_config_check(tmp_path: Path) -> None:
    """config check prints every problem and exits 1, or says ok and exits 0."""
    (tmp_path / "pointsman.yaml").write_text("servr: {}\nruns: { cancelGraceMs: x }\n")
    as_json = run("config", "check", "-o", "json")
    in_words = run("config", "check")

    assert (as_json.exit_code, in_words.exit_code) == (1, 1)
    problems = json.loads(as_json.stdout)["problems"]
    assert [(item["line"], item["column"], item["path"], item["code"]) for item in problems] == [
        (1, 1, "servr", "unknown_key"),
        (2, 24, "runs.cancelGraceMs", "wrong_type"),
    ]
    assert set(problems[0]) == {"line", "column", "path", "code", "message", "hint"}
    assert in_words.stdout.startswith("1:1: servr: ")

    (tmp_path / "pointsman.yaml").write_text("runs: {}\n")
    assert run("config", "check", "-o", "json").stdout == '{"problems":[]}\n'
    assert run("serve", "--listen", "nonsense").exit_code == 1


def test_migrate(tmp_path: Path) -> None:
    """migrate --check fails until migrate ran."""
    database = f"sqlite:///{tmp_path}/m.db"

    assert run("migrate", "--check", "--database", database).exit_code == 1
    assert run("migrate", "--database", database, "-o", "json").stdout == f'{{"version":{migrating.CODE_VERSION}}}\n'
    assert run("migrate", "--check", "--database", database).exit_code == 0


def test_version_is_quick() -> None:
    """`pointsman version` imports neither typer nor the dispatcher's services."""
    script = (
        "import sys; sys.argv = ['pointsman', 'version']\n"
        "from dispatcher import cli; cli.main()\n"
        "assert not {'typer', 'pydantic', 'sqlalchemy', 'httpx'} & sys.modules.keys()"
    )
    root = Path(_version.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)

    assert done.stdout == f"pointsman {_version.__version__}\n"
