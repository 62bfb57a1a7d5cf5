"""Events as AWS sends them, for one signed request."""

import base64
import time
from typing import Any

import msgspec

from endpoint_sdk.wire import messages, signature

SECRET = signature.new_secret()
ARN = "arn:aws:sqs:eu-west-1:000000000000:orders"


def signed(body: bytes, message_id: str) -> dict[str, str]:
    key = signature.parse_secret(SECRET)
    return {"content-type": "application/json", **signature.sign([key], message_id, int(time.time()), body)}


def headers_of(delivery: messages.Delivery) -> tuple[dict[str, str], bytes]:
    body = msgspec.json.encode(delivery)
    return signed(body, f"{delivery.run_id}_{delivery.revision}"), body


def function_url(headers: dict[str, str], body: bytes, *, encoded: bool = True) -> dict[str, Any]:
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "rawQueryString": "",
        "headers": {**headers, "host": "abc.lambda-url.eu-west-1.on.aws"},
        "requestContext": {
            "accountId": "anonymous",
            "domainName": "abc.lambda-url.eu-west-1.on.aws",
            "http": {"method": "POST", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "203.0.113.1"},
            "stage": "$default",
        },
        "body": base64.b64encode(body).decode() if encoded else body.decode(),
        "isBase64Encoded": encoded,
    }


def http_api(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    event = function_url(headers, body, encoded=False)
    event["rawPath"] = "/prod/pointsman"
    event["requestContext"]["domainName"] = "abc.execute-api.eu-west-1.amazonaws.com"
    return event


def rest_api(headers: dict[str, str], body: bytes) -> dict[str, Any]:
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


def rest_api_without_multi_value(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    return {**rest_api(headers, body), "multiValueHeaders": None}


def direct(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    return {"pointsman": {"headers": headers, "body": body.decode()}}


def load_balancer(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    return {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-west-1:1:targetgroup/t/1"}},
        "httpMethod": "POST",
        "path": "/",
        "queryStringParameters": {},
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "body": body.decode(),
        "isBase64Encoded": False,
    }


HEALTH_CHECK: dict[str, Any] = {
    **load_balancer({"user-agent": "ELB-HealthChecker/2.0"}, b""),
    "httpMethod": "GET",
    "multiValueHeaders": None,
    "headers": {"user-agent": "ELB-HealthChecker/2.0"},
}


def sqs_record(
    message_id: str, headers: dict[str, str], body: bytes, *, arn: str = ARN, **attributes: str
) -> dict[str, Any]:
    """A message as an event source hands it over, its headers as String attributes."""
    return {
        "messageId": message_id,
        "receiptHandle": f"handle of {message_id}",
        "body": body.decode(),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": str(int(time.time() * 1000)),
            "SenderId": "AROAEXAMPLE:dispatcher",
            "ApproximateFirstReceiveTimestamp": str(int(time.time() * 1000)),
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


def sqs(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A batch of one."""
    webhook = {name: value for name, value in headers.items() if name.startswith("webhook-")}
    return {"Records": [sqs_record("m1", webhook, body)]}


SQS: dict[str, Any] = {
    "Records": [
        {
            "messageId": "m1",
            "receiptHandle": "r1",
            "body": "{}",
            "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1"},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": ARN,
            "awsRegion": "eu-west-1",
        }
    ]
}
S3: dict[str, Any] = {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}]}
SCHEDULE: dict[str, Any] = {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
