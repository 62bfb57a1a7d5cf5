"""`pointsman run cancel`, `release`, `pause`, `resume`, `wake`, `requeue`, `restart`, `action`: one run, or many."""

from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from dispatcher.cli import output, runs
from dispatcher.cli.client import DEFAULT_URL, ApiKey, Client, Namespace, Url
from dispatcher.cli.output import Format, Output
from dispatcher.cli.runs import Reason, RunId, path_of, summary, tags_of

commands: Final = runs.commands

_MANY: Final = "Many runs"

OneRun = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="A run id (run_…); leave it out to filter.", show_default=False)
]
OfWorkflow = Annotated[str | None, typer.Option("--workflow", help="All of a workflow.", rich_help_panel=_MANY)]
OfVersion = Annotated[str | None, typer.Option("--of-version", help="All of a version.", rich_help_panel=_MANY)]
InStatus = Annotated[str | None, typer.Option("--status", help="All in a status.", rich_help_panel=_MANY)]
WithReason = Annotated[
    str | None, typer.Option("--with-reason", help="All in their status for a reason.", rich_help_panel=_MANY)
]
ForReason = Annotated[
    str | None,
    typer.Option("--reason", "--with-reason", help="All in their status for a reason.", rich_help_panel=_MANY),
]
WithKey = Annotated[
    str | None, typer.Option("--idempotency-key", help="Those of an idempotency key.", rich_help_panel=_MANY)
]
WithTags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="All with a tag; may be repeated.", rich_help_panel=_MANY),
]
StuckFor = Annotated[
    int | None,
    typer.Option("--stuck-for-ms", help="Unfinished and unmoved for so long.", min=0, rich_help_panel=_MANY),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many match.", rich_help_panel=_MANY)]


class _Which(NamedTuple):
    """The run, or the conditions of those, an operation is for."""

    run_id: str | None
    conditions: dict[str, Any]
    dry_run: bool


def _which(
    run_id: str | None,
    workflow: str | None,
    version: str | None,
    status: str | None,
    reason: str | None,
    key: str | None,
    tags: list[str] | None,
    stuck_for_ms: int | None,
    *,
    dry_run: bool,
) -> _Which:
    given = {
        "workflow": workflow,
        "version": version,
        "status": status,
        "reason": reason,
        "idempotencyKey": key,
        "tags": tags_of(tags) or None,
        "stuckForMs": stuck_for_ms,
    }
    conditions = {name: value for name, value in given.items() if value is not None}
    if (run_id is None) != bool(conditions):
        raise typer.BadParameter("Name either a run or what many have in common, such as --workflow or --status.")
    if run_id is not None and dry_run:
        raise typer.BadParameter("--dry-run is for many runs.")
    return _Which(run_id, conditions, dry_run)


def _operate(client: Client, verb: str, which: _Which, body: dict[str, Any], shown: Format) -> None:
    if which.run_id is not None:
        text = client.call("POST", f"{path_of(which.run_id)}/{verb}", body)
        output.show(text, shown, lambda data: summary([data["run"]]))
        return
    action = {"action": verb, "filter": which.conditions, "dryRun": which.dry_run, **body}
    output.show(client.call("POST", "/v1/runs/actions", action), shown, _started)


def _started(data: Any) -> None:
    output.facts([("matched", str(data["matched"])), ("action", data["id"])])
    if data["started"]:
        output.say(f"pointsman run action {data['id']} shows how far it has come")


@commands.command("cancel")
def cancel(
    run_id: OneRun = None,
    *,
    reason: Reason = "",
    now: Annotated[bool, typer.Option("--now", help="End it at once; its executor is fenced.")] = False,
    workflow: OfWorkflow = None,
    of_version: OfVersion = None,
    status: InStatus = None,
    with_reason: WithReason = None,
    idempotency_key: WithKey = None,
    tag: WithTags = None,
    stuck_for_ms: StuckFor = None,
    dry_run: DryRun = False,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Cancel a run, or many."""
    given = (run_id, workflow, of_version, status, with_reason, idempotency_key, tag, stuck_for_ms)
    body = {"reason": reason, "now": now}
    _operate(Client(url, api_key, namespace, o), "cancel", _which(*given, dry_run=dry_run), body, o)


@commands.command("release")
def release(
    run_id: OneRun = None,
    *,
    reason: Reason = "",
    workflow: OfWorkflow = None,
    of_version: OfVersion = None,
    status: InStatus = None,
    with_reason: WithReason = None,
    idempotency_key: WithKey = None,
    tag: WithTags = None,
    stuck_for_ms: StuckFor = None,
    dry_run: DryRun = False,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Take a running run, or many, from their executors and deliver them again."""
    given = (run_id, workflow, of_version, status, with_reason, idempotency_key, tag, stuck_for_ms)
    client = Client(url, api_key, namespace, o)
    _operate(client, "release", _which(*given, dry_run=dry_run), {"reason": reason}, o)


def _simple(verb: str, words: str) -> None:
    """There is a command *verb*, explained by *words*, that takes nothing but which runs it is for."""

    def command(
        run_id: OneRun = None,
        *,
        workflow: OfWorkflow = None,
        of_version: OfVersion = None,
        status: InStatus = None,
        reason: ForReason = None,
        idempotency_key: WithKey = None,
        tag: WithTags = None,
        stuck_for_ms: StuckFor = None,
        dry_run: DryRun = False,
        o: Output = Format.TABLE,
        url: Url = DEFAULT_URL,
        api_key: ApiKey = "",
        namespace: Namespace = None,
    ) -> None:
        given = (run_id, workflow, of_version, status, reason, idempotency_key, tag, stuck_for_ms)
        _operate(Client(url, api_key, namespace, o), verb, _which(*given, dry_run=dry_run), {}, o)

    commands.command(verb, help=words)(command)


_simple("pause", "Pause a run, or many: at once, or at the next task boundary of one that is running.")
_simple("resume", "Let a paused run, or many, go on where they were.")
_simple("wake", "End the waits of a run, or of many, now, or start those that are scheduled.")


@commands.command("requeue")
def requeue(
    run_id: OneRun = None,
    *,
    version: Annotated[str | None, typer.Option(help="Continue on this version.")] = None,
    discard_unconsumed: Annotated[
        bool, typer.Option("--discard-unconsumed", help="Forget the records its code does not ask for.")
    ] = False,
    workflow: OfWorkflow = None,
    of_version: OfVersion = None,
    status: InStatus = None,
    reason: ForReason = None,
    idempotency_key: WithKey = None,
    tag: WithTags = None,
    stuck_for_ms: StuckFor = None,
    dry_run: DryRun = False,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Queue a stalled run, or many, again with fresh counters."""
    given = (run_id, workflow, of_version, status, reason, idempotency_key, tag, stuck_for_ms)
    body = {"version": version, "discardUnconsumed": discard_unconsumed}
    _operate(Client(url, api_key, namespace, o), "requeue", _which(*given, dry_run=dry_run), body, o)


@commands.command("restart")
def restart(
    run_id: RunId,
    first: Annotated[int, typer.Option("--from", min=1, help="The number of the first record to forget.")],
    request_id: Annotated[str | None, typer.Option(help="Makes a repeat harmless.")] = None,
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Begin an ended or stalled run again from one of its records, as a new run."""
    body = {"from": first, "requestId": request_id}
    text = Client(url, api_key, namespace, o).call("POST", f"{path_of(run_id)}/restart", body)
    output.show(text, o, lambda data: summary([data["run"]]))


@commands.command("action")
def action(
    action_id: Annotated[str, typer.Argument(metavar="ID", help="An action's id (act_…).", show_default=False)],
    o: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    namespace: Namespace = None,
) -> None:
    """Show how far an action on many runs has come."""
    text = Client(url, api_key, namespace, o).call("GET", f"/v1/runs/actions/{quote(action_id, safe='')}")
    output.show(text, o, lambda data: output.facts(list(data.items())))
