"""dispatcher.cli.demo.front: requests and answers as a Lambda function URL maps them."""

import base64
import json

import pytest

from dispatcher.cli.demo.front import to_event, to_reply
from dispatcher.cli.demo.loopback import Received, Reply, render


def request(body: bytes, content_type: str) -> Received:
    return Received("POST", "/hook", "a=1", {"content-type": content_type, "webhook-id": "x"}, body)


def test_json_reaches_the_function_as_text() -> None:
    """A body of a text type is passed as it is, with its headers and path."""
    event = to_event(request(b'{"a": 1}', "application/json"))

    assert (event["body"], event["isBase64Encoded"]) == ('{"a": 1}', False)
    assert (event["version"], event["rawPath"], event["rawQueryString"]) == ("2.0", "/hook", "a=1")
    assert event["headers"]["webhook-id"] == "x"
    assert event["requestContext"]["http"]["method"] == "POST"


def test_bytes_reach_the_function_as_base64() -> None:
    """A body of any other type is base64."""
    event = to_event(request(b"\xff\x00", "application/octet-stream"))

    assert (base64.b64decode(event["body"]), event["isBase64Encoded"]) == (b"\xff\x00", True)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"statusCode": 404, "body": "no"}, (404, b"no")),
        ({"statusCode": 200, "body": "/w==", "isBase64Encoded": True}, (200, b"\xff")),
        ({"statusCode": 204}, (204, b"")),
        ({"hello": 1}, (200, b'{"hello": 1}')),
        ([1], (200, b"[1]")),
    ],
)
def test_answers(answer: object, expected: tuple[int, bytes]) -> None:
    """A handler's answer says its status; anything else is 200 with what it returned."""
    reply = to_reply(json.dumps(answer).encode())

    assert (reply.status, reply.body) == expected


def test_what_is_no_json_is_a_bad_gateway() -> None:
    """An answer that cannot be read is the function's failure."""
    assert to_reply(b"NaN-ish").status == 502


def test_answer_headers_are_lower_case_and_the_length_is_ours() -> None:
    """The handler's headers are sent, its own length is not trusted."""
    reply = to_reply(
        json.dumps({"statusCode": 200, "headers": {"X-A": "b", "Content-Length": "9"}, "body": "ab"}).encode()
    )

    assert b"x-a: b\r\n" in render(reply)
    assert b"content-length: 2\r\n" in render(reply)


def test_render_ends_the_head() -> None:
    """Head and body are one piece of bytes with an empty line between."""
    assert render(Reply(202, b"ok")) == b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok"
