"""Reading and decoding request bodies: bounded while they stream, strict about what they hold."""

from itertools import accumulate
from re import compile as compile_
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from dispatcher import errors
from dispatcher.api.call import Call

T = TypeVar("T")

MAX_DEPTH: Final = 200
_STRINGS: Final = compile_(rb'"(?:[^"\\]|\\.)*"')
_PATTERN: Final = compile_(r"matching regex '.*?'(?= - at |$)")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class ClientGone(Exception):
    """The client hung up before its request was whole; nobody is left to answer."""


async def read(call: Call) -> bytes:
    """The whole body. Raises TooLarge `body_too_large` before more than the limit is held."""
    limit = call.services.settings.server.max_body_bytes
    declared = call.header(b"content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    message = await call.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body = bytes(message.get("body", b""))
        _check_size(len(body), limit)
        return body
    parts = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts += message.get("body", b"")
        _check_size(len(parts), limit)
        if not message.get("more_body", False):
            return bytes(parts)
        message = await call.receive()


async def hung_up(call: Call) -> None:
    """Returns when the client, whose body has been read, is gone; never if it waits for its answer."""
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def decoded(call: Call, decoder: msgspec.json.Decoder[T], *, empty: bytes = b"") -> T:
    """The body as the decoder's type; an empty one reads as *empty*.

    Raises BadRequest `malformed` or `unknown_field`, with the place in the JSON.
    """
    return decode(await read(call) or empty, decoder)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """*body* as the decoder's type. Raises as `decoded`."""
    try:
        if not body.isascii():
            body.decode()
        _check_depth(body)
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not UTF-8 (byte {error.start}).") from None
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ") if body else "the body is empty"
        raise _malformed(f"The body is not JSON: {what}.") from None
    except RecursionError:
        raise _malformed(f"The body is nested more than {MAX_DEPTH} levels deep.") from None


def check_payload(payload: Raw, place: str) -> None:
    """Raises BadRequest `malformed` for a payload that is JSON but that no Python program could read back."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(f"{error} - at `{place}`.") from None


def invalid(error: msgspec.ValidationError) -> errors.BadRequest:
    """The refusal for JSON of the wrong shape; msgspec's sentence names the place, never the value."""
    text = _PATTERN.sub("without control characters", str(error))
    if "unknown field" in text:
        return errors.BadRequest("unknown_field", f"{text}.", hint="Leave it out; names are camelCase.")
    return errors.BadRequest("malformed", f"{text}." if "`$" in text else f"{text} - at `$`.")


def _malformed(message: str) -> errors.BadRequest:
    return errors.BadRequest("malformed", message, hint="Send one JSON value in UTF-8.")


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge(
        "body_too_large", f"The body has more than {limit} bytes.", hint="Pass a reference to large data instead."
    )


def _check_depth(body: bytes) -> None:
    """Raises RecursionError for JSON deeper than MAX_DEPTH; counting first spares ordinary bodies the walk."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise RecursionError
