"""The one tree of errors that both servers answer with, in OpenAI's shape.

Keeps true: whatever is raised, the client gets `{"error": {"message", "type", "param", "code"}}`; no message holds a
key, a prompt or a token (callers put field names and bounds in messages, never values). Does not know HTTP frameworks.

    ApiError
      BadRequest 400   Unauthorized 401   Forbidden 403   NotFound 404   MethodNotAllowed 405   SlowRequest 408
      TooLarge 413     HeadTooLarge 431
      Busy 429         Internal 500       Upstream 502    Unavailable 503   Timeout 504
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec


class ApiError(Exception):
    """An error with an HTTP status, raised anywhere below a server and answered by it.

    `param` names the request's field that is to blame, `code` is a stable word for programs, `retry_after_s` becomes
    the Retry-After header.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Response headers that belong to this error: Retry-After in whole seconds, at least 1."""
        if self.retry_after_s is None:
            return []
        return [("retry-after", str(max(1, math.ceil(self.retry_after_s))))]


class BadRequest(ApiError):
    """The request cannot be served as it is: malformed, a field with an unusable value, a prompt too long."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    """No key, or one that is not known."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [("www-authenticate", "Bearer"), *super().headers]


class Forbidden(ApiError):
    """A known key without the right to do this."""

    status = 403
    type = "permission_error"
    default_code = "forbidden"


class NotFound(ApiError):
    """Unknown model, route or thing."""

    status = 404
    type = "not_found_error"
    default_code = "not_found"

    @classmethod
    def model(cls, name: str) -> NotFound:
        """The answer to a request for a model that nobody here serves."""
        return cls(
            f"The model {name[:200]!r} does not exist here; GET /v1/models lists those that do.",
            param="model",
            code="model_not_found",
        )


class MethodNotAllowed(ApiError):
    """A known route, another method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class TooLarge(ApiError):
    """The body is over `body_max_bytes`."""

    status = 413
    type = "invalid_request_error"
    default_code = "body_too_large"


class SlowRequest(ApiError):
    """The request's bytes came too slowly."""

    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class HeadTooLarge(ApiError):
    """The request line and headers are over their bound."""

    status = 431
    type = "invalid_request_error"
    default_code = "head_too_large"


class Busy(ApiError):
    """Queues are full: later may work."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = 1.0,
    ) -> None:
        super().__init__(message, param=param, code=code, retry_after_s=retry_after_s)


class Internal(ApiError):
    """Our own fault."""

    default_code = "internal_error"


class Upstream(ApiError):
    """A worker broke before the first byte and the retries are spent, or a stream broke after it."""

    status = 502
    type = "upstream_error"
    default_code = "upstream_error"


class Unavailable(ApiError):
    """No worker can take this now."""

    status = 503
    type = "service_unavailable_error"
    default_code = "no_worker"


class Timeout(ApiError):
    """A worker did not answer in time."""

    status = 504
    type = "timeout_error"
    default_code = "timeout"


def error_object(error: ApiError) -> dict[str, str | None]:
    """The object under `error`."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: ApiError) -> bytes:
    """The JSON body of an error response."""
    return msgspec.json.encode({"error": error_object(error)})


def sse_error(error: ApiError) -> bytes:
    """The event that ends a broken stream. No `[DONE]` follows: a cut answer must not look complete."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"
