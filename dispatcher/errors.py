"""Every refusal of the dispatcher, with its machine code and HTTP status.

    DispatcherError
    ├── Refusal                                  answered to a caller as {"error": {...}}
    │   ├── BadRequest            400            malformed, unknown_field, bad_parameter
    │   ├── Unauthorized          401            unauthorized
    │   ├── Forbidden             403            forbidden
    │   ├── NotFound              404            run_not_found, endpoint_not_found, publisher_not_found,
    │   │                                        key_not_found, action_not_found, schedule_not_found, route_not_found
    │   ├── MethodNotAllowed      405            method_not_allowed
    │   ├── Conflict              409            already_claimed, cancelled, run_finished, not_claimable,
    │   │                                        stale_delivery, revision_conflict, illegal_transition,
    │   │                                        cancel_requested, idempotency_conflict, endpoint_exists,
    │   │                                        endpoint_owned_by_yaml, schedule_owned_by_yaml,
    │   │                                        schedule_owned_by_code
    │   ├── TooLarge              413            body_too_large, payload_too_large
    │   ├── Unprocessable         422            version_unknown, history_limit, record_conflict,
    │   │                                        cancel_not_requested, nothing_to_discard, mailbox_full,
    │   │                                        schedule_invalid, timezone_unknown, backfill_too_long,
    │   │                                        endpoint refusals (endpoint_unreachable, signature_mismatch, ...)
    │   ├── TooMany               429            rate_limited
    │   └── Unavailable           503            unavailable
    └── StartUpError                             the process cannot start: configuration, secret key, schema

Codes are stable, sentences are not. `CODES` names every code with its class; a test holds the two together.
"""

from typing import Any, ClassVar, Final


class DispatcherError(Exception):
    """Base of everything the dispatcher raises on purpose."""


class Refusal(DispatcherError):
    """A request is refused; nothing of it was stored."""

    status: ClassVar[int]

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details
        self.retry_after = retry_after


class BadRequest(Refusal):
    status = 400


class Unauthorized(Refusal):
    status = 401


class Forbidden(Refusal):
    status = 403


class NotFound(Refusal):
    status = 404


class MethodNotAllowed(Refusal):
    status = 405


class Conflict(Refusal):
    status = 409


class TooLarge(Refusal):
    status = 413


class Unprocessable(Refusal):
    status = 422


class TooMany(Refusal):
    status = 429


class Unavailable(Refusal):
    status = 503


def being_moved() -> Unavailable:
    """The refusal of a call whose run another transaction moves meanwhile."""
    return Unavailable("unavailable", "the run is being moved; try again", retry_after=1)


class StartUpError(DispatcherError):
    """The dispatcher cannot start; the message says what to change. `code` is stable."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


CODES: Final[dict[str, type[Refusal]]] = {
    "malformed": BadRequest,
    "unknown_field": BadRequest,
    "bad_parameter": BadRequest,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "run_not_found": NotFound,
    "endpoint_not_found": NotFound,
    "publisher_not_found": NotFound,
    "key_not_found": NotFound,
    "action_not_found": NotFound,
    "schedule_not_found": NotFound,
    "route_not_found": NotFound,
    "method_not_allowed": MethodNotAllowed,
    "already_claimed": Conflict,
    "cancelled": Conflict,
    "run_finished": Conflict,
    "not_claimable": Conflict,
    "stale_delivery": Conflict,
    "revision_conflict": Conflict,
    "illegal_transition": Conflict,
    "cancel_requested": Conflict,
    "idempotency_conflict": Conflict,
    "endpoint_exists": Conflict,
    "endpoint_owned_by_yaml": Conflict,
    "schedule_owned_by_yaml": Conflict,
    "schedule_owned_by_code": Conflict,
    "body_too_large": TooLarge,
    "payload_too_large": TooLarge,
    "version_unknown": Unprocessable,
    "history_limit": Unprocessable,
    "record_conflict": Unprocessable,
    "cancel_not_requested": Unprocessable,
    "nothing_to_discard": Unprocessable,
    "mailbox_full": Unprocessable,
    "tags_too_many": Unprocessable,
    "queue_too_long": Unprocessable,
    "schedule_invalid": Unprocessable,
    "timezone_unknown": Unprocessable,
    "backfill_too_long": Unprocessable,
    "endpoint_url_refused": Unprocessable,
    "secret_invalid": Unprocessable,
    "rate_limited": TooMany,
    "unavailable": Unavailable,
}
