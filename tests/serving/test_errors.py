"""Errors leave in OpenAI's shape."""

from __future__ import annotations

import json

import msgspec
import pytest

from trieway.serving import errors
from trieway.serving.errors import ApiError, BadRequest, Busy, NotFound, Unauthorized, error_body, sse_error
from trieway.serving.wire_errors import bad_json, check_utf8, field_error

STATUSES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "SlowRequest": 408,
    "TooLarge": 413,
    "HeadTooLarge": 431,
    "Busy": 429,
    "Internal": 500,
    "Upstream": 502,
    "Unavailable": 503,
    "Timeout": 504,
}


@pytest.mark.parametrize(("name", "status"), STATUSES.items())
def test_each_error_has_its_status_and_shape(name: str, status: int) -> None:
    error: ApiError = getattr(errors, name)("what\nhappened", param="p")
    assert error.status == status
    body = json.loads(error_body(error))
    assert body == {"error": {"message": "what\nhappened", "type": error.type, "param": "p", "code": error.code}}
    assert isinstance(body["error"]["type"], str)


def test_the_tree_is_complete() -> None:
    assert {kind.__name__ for kind in ApiError.__subclasses__()} == set(STATUSES)


def test_retry_after_is_whole_seconds() -> None:
    assert Busy("full").headers == [("retry-after", "1")]
    assert Busy("full", retry_after_s=0.2).headers == [("retry-after", "1")]
    assert Busy("full", retry_after_s=2.1).headers == [("retry-after", "3")]
    assert BadRequest("x").headers == []
    assert ("www-authenticate", "Bearer") in Unauthorized("x").headers


def test_an_unknown_model() -> None:
    error = NotFound.model("x" * 10_000)
    assert error.param == "model"
    assert error.code == "model_not_found"
    assert len(error.message) < 400


def test_a_stream_s_last_event() -> None:
    event = sse_error(errors.Upstream("worker gone\n\ndata: [DONE]"))
    assert event.startswith(b"event: error\ndata: {")
    assert event.count(b"\n\n") == 1
    assert event.endswith(b"\n\n")
    assert json.loads(event.split(b"data: ", 1)[1])["error"]["type"] == "upstream_error"


class Inner(msgspec.Struct):
    b: list[int]


class Outer(msgspec.Struct):
    a: Inner


def test_msgspec_s_complaints_name_the_field() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'{"a": {"b": ["x"]}}', type=Outer)
    error = bad_json(caught.value)
    assert error.param == "a.b[0]"
    assert error.message == "a.b[0]: Expected `int`, got `str`"
    assert bad_json(RecursionError()).code == "invalid_json"
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b"[]", type=Outer)
    assert bad_json(caught.value).param is None


def test_field_errors_and_utf8() -> None:
    assert field_error("n", "too low").message == "n: too low"
    check_utf8("é".encode())
    with pytest.raises(BadRequest, match="UTF-8"):
        check_utf8(b"\xff")
