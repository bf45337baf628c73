"""Chat messages in the one form that templates see: content is text, only known fields, nulls gone.

Keeps true: idempotent (normalising twice changes nothing), so router and worker get equal messages whatever each did
before; the input is never changed. Does not know templates or roles: a template judges roles.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trieway.serving.peek import MESSAGES_MAX, Messages
from trieway.serving.wire_errors import field_error

PART_SEPARATOR = "\n"
"""Between text parts of one message, as vLLM joins them."""
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_TEXT_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning")
_UNBUILT = ("audio", "function_call")


def normalise(messages: Messages) -> Messages:
    """Raises BadRequest naming the message and field at fault."""
    if not messages:
        raise field_error("messages", "required: at least one message", code="missing_required_parameter")
    if len(messages) > MESSAGES_MAX:
        raise field_error("messages", f"more than {MESSAGES_MAX} messages")
    return [_normalise_one(message, index) for index, message in enumerate(messages)]


def _normalise_one(message: dict[str, Any], index: int) -> dict[str, Any]:
    role = message.get("role")
    content = message.get("content")
    if type(role) is not str or not role:
        raise field_error(f"messages[{index}].role", "a non-empty string is needed")
    if type(content) is str and len(message) == 2:
        return message
    normal: dict[str, Any] = {"role": role, "content": _text(content, index)}
    for field in _UNBUILT:
        if message.get(field) is not None:
            raise field_error(f"messages[{index}].{field}", "not supported", code="unsupported_parameter")
    for field in _TEXT_FIELDS:
        value = message.get(field)
        if value is not None:
            if type(value) is not str:
                raise field_error(f"messages[{index}].{field}", "a string is needed")
            normal[field] = value
    if message.get("tool_calls"):
        normal["tool_calls"] = _tool_calls(message["tool_calls"], f"messages[{index}].tool_calls")
    return normal


def _text(content: object, index: int) -> str:
    """The text of a `content` field: itself, '' for null, or its text parts joined."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise field_error(f"messages[{index}].content", "a string or a list of text parts is needed")
    return PART_SEPARATOR.join(_part(part, f"messages[{index}].content[{at}]") for at, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise field_error(where, "a text part is needed")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_KEYS:
        raise field_error(f"{where}.type", "only text parts are supported", code="unsupported_parameter")
    text = part.get(_TEXT_KEYS[kind])
    if not isinstance(text, str):
        raise field_error(f"{where}.{_TEXT_KEYS[kind]}", "a string is needed")
    return text


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Past tool calls; `function.arguments`, JSON in a string on the wire, become an object as templates want it."""
    if not isinstance(calls, list):
        raise field_error(where, "a list is needed")
    normal = []
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise field_error(f"{where}[{at}]", "an object with function.name is needed")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _arguments(arguments, f"{where}[{at}].function.arguments")
        normal.append({**call, "function": {**function, "arguments": {} if arguments is None else arguments}})
    return normal


def _arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise field_error(where, "a JSON object in a string is needed") from None
