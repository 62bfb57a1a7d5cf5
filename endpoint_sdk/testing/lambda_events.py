"""Events as AWS hands them to a function, with a delivery signed for an endpoint."""

import base64
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import msgspec

from endpoint_sdk.endpoint import Endpoint
from endpoint_sdk.errors import ConfigurationError
from endpoint_sdk.testing import endpoint_insides
from endpoint_sdk.testing.memory_run import MemoryRun
from endpoint_sdk.wire import clock, identity, messages, signature
from endpoint_sdk.workflow import Workflow

I = TypeVar("I")  # noqa: E741 - the input of a workflow
Source = Literal["function-url", "api-v1", "api-v2", "alb", "sqs", "direct"]

ARN: Final = "arn:aws:sqs:eu-west-1:000000000000:pointsman"
_PUSHES: Final = 1


def lambda_event(source: Source, endpoint: Endpoint, workflow: Workflow[I, Any], input: I, /) -> dict[str, Any]:  # noqa: A002 - its name everywhere
    """An event in which *source* delivers a new run of *workflow* to `endpoint.lambda_handler`.

    It is signed with the endpoint's first secret, and the run is claimed from a dispatcher in this process: the handler
    executes it as it would in production, and needs no network for that. Each event is good for one run. Raises
    ConfigurationError for a source that is none, or a workflow the endpoint does not serve.
    """
    if source not in _SOURCES:
        raise ConfigurationError(f"no Lambda event comes from {source!r}; choose one of {', '.join(_SOURCES)}")
    delivery = _delivered(endpoint, workflow, workflow.encode_input(input))
    body = msgspec.json.encode(delivery)
    message_id = f"{delivery.run_id}_{delivery.revision}"
    headers = signature.sign([endpoint_insides.signing_key(endpoint)], message_id, int(time.time()), body)
    return _SOURCES[source]({"content-type": "application/json", **headers}, body)


def _delivered(endpoint: Endpoint, workflow: Workflow[Any, Any], value: bytes) -> messages.Delivery:
    from endpoint_sdk.testing import memory_dispatcher

    served = {(each.name, each.version) for each in endpoint.discovered().workflows}
    if (workflow.name, workflow.version) not in served:
        raise ConfigurationError(f"the endpoint does not serve {workflow!r}")
    now = clock.to_wire(time.time_ns() // 1_000_000)
    run = messages.GrantedRun(
        id=identity.new("run"),
        namespace="default",
        workflow=workflow.name,
        version=workflow.version,
        attempt=1,
        input=endpoint_insides.envelope_of(endpoint).seal(value),
        created_at=now,
    )
    memory = MemoryRun(run)
    memory_dispatcher.of(endpoint).add(memory)
    return messages.Delivery(
        run_id=run.id,
        namespace=run.namespace,
        workflow=run.workflow,
        version=run.version,
        revision=memory.revision,
        attempt=run.attempt,
        audience=min(endpoint.names, default="testing"),
        url=memory_dispatcher.URL,
        token="pmc_memory",  # noqa: S106 - opens nothing
        push_number=_PUSHES,
    )


# --- the shapes of events --------------------------------------------------------------------------------------------
def function_url(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A function URL: payload 2.0, the body in base64."""
    return _payload_2(headers, "abc.lambda-url.eu-west-1.on.aws", "/", base64.b64encode(body).decode(), encoded=True)


def api_v2(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """An HTTP API of API Gateway: payload 2.0, the body as text."""
    return _payload_2(headers, "abc.execute-api.eu-west-1.amazonaws.com", "/prod/pointsman", body.decode())


def api_v1(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A REST API of API Gateway: payload 1.0, header names in the client's casing."""
    cased = {name.title(): value for name, value in headers.items()}
    return {
        "resource": "/pointsman",
        "path": "/pointsman",
        "httpMethod": "POST",
        "headers": cased,
        "multiValueHeaders": {name: [value] for name, value in cased.items()},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "resourcePath": "/pointsman",
            "httpMethod": "POST",
            "path": "/prod/pointsman",
            "stage": "prod",
        },
        "body": body.decode() or None,
        "isBase64Encoded": False,
    }


def alb(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A load balancer whose target group has multi-value headers on."""
    return {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-west-1:1:targetgroup/t/1"}},
        "httpMethod": "POST",
        "path": "/",
        "queryStringParameters": {},
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "body": body.decode(),
        "isBase64Encoded": False,
    }


def sqs(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """An SQS event source: a batch of one message, the signature's headers as its attributes."""
    webhook = {name: value for name, value in headers.items() if name.startswith("webhook-")}
    return {"Records": [sqs_record(identity.new("evt"), webhook, body)]}


def sqs_record(
    message_id: str, headers: dict[str, str], body: bytes, *, arn: str = ARN, **attributes: str
) -> dict[str, Any]:
    """A message as an event source hands it over, *headers* as String attributes."""
    now = str(time.time_ns() // 1_000_000)
    return {
        "messageId": message_id,
        "receiptHandle": f"handle of {message_id}",
        "body": body.decode(),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": now,
            "SenderId": "AROAEXAMPLE:dispatcher",
            "ApproximateFirstReceiveTimestamp": now,
            **attributes,
        },
        "messageAttributes": {
            name: {"stringValue": value, "stringListValues": [], "binaryListValues": [], "dataType": "String"}
            for name, value in headers.items()
        },
        "md5OfBody": "d41d8cd98f00b204e9800998ecf8427e",
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": "eu-west-1",
    }


def direct(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A direct invoke: the signed message alone."""
    return {"pointsman": {"headers": headers, "body": body.decode()}}


def _payload_2(headers: dict[str, str], domain: str, path: str, body: str, *, encoded: bool = False) -> dict[str, Any]:
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {**headers, "host": domain},
        "requestContext": {
            "accountId": "anonymous",
            "domainName": domain,
            "http": {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "203.0.113.1"},
            "stage": "$default",
        },
        "body": body,
        "isBase64Encoded": encoded,
    }


_SOURCES: Final[dict[str, Callable[[dict[str, str], bytes], dict[str, Any]]]] = {
    "function-url": function_url,
    "api-v1": api_v1,
    "api-v2": api_v2,
    "alb": alb,
    "sqs": sqs,
    "direct": direct,
}
