"""template.yaml deploys: it translates without AWS, lints clean before and after, and keeps secrets out."""

import json
import os
import runpy
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import boto3
import pytest
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "template.yaml"
CFN_LINT = Path(sysconfig.get_path("scripts")) / "cfn-lint"


@pytest.fixture(scope="module")
def translated() -> dict[str, Any]:
    """What CloudFormation would be given, made without a network or credentials."""
    document = yaml_parse(TEMPLATE.read_text())
    parameters = {name: entry.get("Default", "x") for name, entry in document["Parameters"].items()}
    for resource in document["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://bucket/key"  # the translator refuses local folders
    session = boto3.session.Session(region_name="eu-west-1")
    result: dict[str, Any] = Translator({}, Parser(), [], session).translate(document, parameters)
    return result


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CFN_LINT), "--regions", "eu-west-1", "--include-checks", "I", "--template"]
    return subprocess.run(
        [*command, str(path)], capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )


def test_template_lints_clean() -> None:
    """cfn-lint finds nothing in the template as written, informational checks included."""
    found = lint(TEMPLATE)

    assert (found.returncode, found.stdout) == (0, "")


def test_translated_template_lints_clean(translated: dict[str, Any], tmp_path: Path) -> None:
    """cfn-lint finds nothing in what SAM makes of the template."""
    output = tmp_path / "translated.json"
    output.write_text(json.dumps(translated, default=str))

    found = lint(output)

    assert (found.returncode, found.stdout) == (0, "")


def test_template_holds_no_secret(translated: dict[str, Any]) -> None:
    """The signing secret is named by its ARN only, and the one role may read just that."""
    function = translated["Resources"]["OrdersFunction"]["Properties"]
    role = translated["Resources"]["OrdersRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    reading = [entry for entry in role if entry["Action"] == "secretsmanager:GetSecretValue"]

    assert {"POINTSMAN_URL", "POINTSMAN_ENDPOINT", "SIGNING_SECRET_ARN"} == set(function["Environment"]["Variables"])
    assert [entry["Resource"] for entry in reading] == [{"Ref": "SigningSecretArn"}]


def test_function_url_is_reachable(translated: dict[str, Any]) -> None:
    """A public function URL carries both permissions AWS asks for."""
    permissions = [
        resource["Properties"]
        for resource in translated["Resources"].values()
        if resource["Type"] == "AWS::Lambda::Permission"
    ]

    assert {"lambda:InvokeFunctionUrl", "lambda:InvokeFunction"} == {entry["Action"] for entry in permissions}


def test_the_queue_outlives_the_function(translated: dict[str, Any]) -> None:
    """Visibility is six times the timeout; a message has at least five receives before it is put aside, for longest."""
    resources = translated["Resources"]
    queue, letters = (resources[name]["Properties"] for name in ("OrdersQueue", "OrdersDeadLetters"))

    assert queue["VisibilityTimeout"] == 6 * resources["OrdersFunction"]["Properties"]["Timeout"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= 5
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["OrdersDeadLetters", "Arn"]}
    assert letters["MessageRetentionPeriod"] == 14 * 86_400
    assert {name: resources[name]["DeletionPolicy"] for name in ("OrdersQueue", "OrdersDeadLetters")} == {
        "OrdersQueue": "Retain",
        "OrdersDeadLetters": "Retain",
    }


def test_the_event_source_reports_item_failures(translated: dict[str, Any]) -> None:
    """Without that Lambda would delete what the SDK reports as failed; its concurrency is bounded at the source."""
    mappings = [
        resource["Properties"]
        for resource in translated["Resources"].values()
        if resource["Type"] == "AWS::Lambda::EventSourceMapping"
    ]

    assert [each["FunctionResponseTypes"] for each in mappings] == [["ReportBatchItemFailures"]]
    assert mappings[0]["ScalingConfig"]["MaximumConcurrency"] >= 2
    assert mappings[0]["EventSourceArn"] == {"Fn::GetAtt": ["OrdersQueue", "Arn"]}


def test_the_role_may_do_with_the_queue_what_the_sdk_does(translated: dict[str, Any]) -> None:
    """Least privilege: four actions on this one queue, no managed policy; and the dispatcher may send to it."""
    role = translated["Resources"]["OrdersRole"]["Properties"]
    statements = role["Policies"][0]["PolicyDocument"]["Statement"]
    queue = [entry for entry in statements if entry["Resource"] == {"Fn::GetAtt": ["OrdersQueue", "Arn"]}]
    sending = translated["Resources"]["OrdersSending"]["Properties"]["PolicyDocument"]["Statement"][0]

    assert [sorted(entry["Action"]) for entry in queue] == [
        ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
    ]
    assert "ManagedPolicyArns" not in role
    assert sending["Action"] == ["sqs:SendMessage", "sqs:GetQueueAttributes"]
    assert sending["Resource"] == {"Fn::GetAtt": ["OrdersQueue", "Arn"]}


def test_everything_that_can_go_wrong_has_an_alarm(translated: dict[str, Any]) -> None:
    """Errors, throttles and time of the function; age, depth and dead letters of the queue; silence is no alarm."""
    alarms = [
        resource["Properties"]
        for resource in translated["Resources"].values()
        if resource["Type"] == "AWS::CloudWatch::Alarm"
    ]

    assert {each["MetricName"] for each in alarms} == {
        "Errors",
        "Throttles",
        "Duration",
        "ApproximateAgeOfOldestMessage",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesVisible",
    }
    assert {each["TreatMissingData"] for each in alarms} == {"notBreaching"}
    duration = next(each for each in alarms if each["MetricName"] == "Duration")
    assert duration["Threshold"] == 0.8 * 1_000 * translated["Resources"]["OrdersFunction"]["Properties"]["Timeout"]


def test_the_function_answers_to_both_publishers(translated: dict[str, Any]) -> None:
    """Deliveries name their publisher as audience: the push publisher's and the queue's are both accepted."""
    environment = translated["Resources"]["OrdersFunction"]["Properties"]["Environment"]["Variables"]

    assert environment["POINTSMAN_ENDPOINT"] == {"Fn::Sub": "${EndpointName} ${QueueName}"}


def test_the_example_beside_an_existing_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's messages pass through it as before, and a bad one is reported."""
    monkeypatch.setenv("POINTSMAN_SIGNING_SECRET", "whsec_" + "c2VjcmV0" * 5)
    handler = runpy.run_path(str(ROOT / "infra/example/beside.py"))["handler"]
    records = [{"messageId": "good", "body": '{"customer": "c1"}'}, {"messageId": "bad", "body": "{}"}]

    assert handler({"Records": records}, None) == {"batchItemFailures": [{"itemIdentifier": "bad"}]}


def test_handler_exists() -> None:
    """The handler the template names is a top-level name of the example's module, as Lambda needs it."""
    properties = yaml_parse(TEMPLATE.read_text())["Resources"]["OrdersFunction"]["Properties"]
    module, name = properties["Handler"].split(".")
    source = (ROOT / properties["CodeUri"] / f"{module}.py").read_text()

    assert f"\n{name} = endpoint.lambda_handler\n" in source
