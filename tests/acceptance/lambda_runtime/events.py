"""Events as AWS sends them, for one signed request."""

import time
from typing import Any

import msgspec

from endpoint_sdk.testing.lambda_events import ARN, direct, function_url, sqs, sqs_record
from endpoint_sdk.testing.lambda_events import alb as load_balancer
from endpoint_sdk.testing.lambda_events import api_v1 as rest_api
from endpoint_sdk.testing.lambda_events import api_v2 as http_api
from endpoint_sdk.wire import messages, signature

__all__ = [
    "ARN",
    "HEALTH_CHECK",
    "S3",
    "SCHEDULE",
    "SECRET",
    "SQS",
    "direct",
    "function_url",
    "headers_of",
    "http_api",
    "load_balancer",
    "rest_api",
    "rest_api_without_multi_value",
    "signed",
    "sqs",
    "sqs_record",
]

SECRET = signature.new_secret()


def signed(body: bytes, message_id: str) -> dict[str, str]:
    key = signature.parse_secret(SECRET)
    return {"content-type": "application/json", **signature.sign([key], message_id, int(time.time()), body)}


def headers_of(delivery: messages.Delivery) -> tuple[dict[str, str], bytes]:
    body = msgspec.json.encode(delivery)
    return signed(body, f"{delivery.run_id}_{delivery.revision}"), body


def rest_api_without_multi_value(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    return {**rest_api(headers, body), "multiValueHeaders": None}


HEALTH_CHECK: dict[str, Any] = {
    **load_balancer({"user-agent": "ELB-HealthChecker/2.0"}, b""),
    "httpMethod": "GET",
    "multiValueHeaders": None,
    "headers": {"user-agent": "ELB-HealthChecker/2.0"},
}


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
