"""Turns msgspec's complaints about a body into a BadRequest that names the field.

Keeps true: the message holds the field's path and the types, never a value out of the body.
"""

from __future__ import annotations

import re

import msgspec

from trieway.serving.errors import BadRequest

_PATH = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)


def field_error(param: str, problem: str, *, code: str | None = "invalid_value") -> BadRequest:
    """`param` is the field, `problem` says what is wrong with it and what would do."""
    return BadRequest(f"{param}: {problem}", param=param, code=code)


def bad_json(error: Exception) -> BadRequest:
    """For what msgspec raised while it decoded a request body."""
    if isinstance(error, RecursionError):
        return BadRequest("The body is nested too deeply.", code="invalid_json")
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        found = _PATH.search(text)
        if found and found[1]:
            param = re.sub(r"\[\.\.\.\]", "[]", found[1])[:200]
            return BadRequest(f"{param}: {text[: found.start()]}", param=param, code="invalid_type")
        return BadRequest(text, code="invalid_type")
    if isinstance(error, UnicodeDecodeError):
        return BadRequest("The body is not valid UTF-8.", code="invalid_json")
    return BadRequest(f"The body is not valid JSON: {error}", code="invalid_json")


def check_utf8(body: bytes) -> None:
    """Raises BadRequest where `body` is not UTF-8, also inside fields that nobody reads. ASCII costs a scan."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise bad_json(error) from None
