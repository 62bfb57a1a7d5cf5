"""template.yaml deploys: it translates without AWS, lints clean before and after, and keeps secrets out."""

import json
import os
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


def test_handler_exists() -> None:
    """The handler the template names is a top-level name of the example's module, as Lambda needs it."""
    properties = yaml_parse(TEMPLATE.read_text())["Resources"]["OrdersFunction"]["Properties"]
    module, name = properties["Handler"].split(".")
    source = (ROOT / properties["CodeUri"] / f"{module}.py").read_text()

    assert f"\n{name} = endpoint.lambda_handler\n" in source
