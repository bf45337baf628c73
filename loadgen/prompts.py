"""From calls to bytes: the HTTP body of a call, and the prompt a simulated worker sees.

Keeps true: the same call and answers give the same bytes, and two calls that share leading parts share leading bytes.
Does not know any model's template: `prompt_bytes` renders chats in a plain ChatML form.
"""

from collections.abc import Iterable, Mapping

from trieway.loadgen.filler import filler
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Hint, Part, Text

Answers = Mapping[str, str]
"""Text of each answered call, by id."""


def text_of(parts: Iterable[Part], answers: Answers) -> str:
    """The parts joined. KeyError: an answer that is quoted is not there."""
    return "".join([_text(part, answers) for part in parts])


def _text(part: Part, answers: Answers) -> str:
    match part:
        case Text(text):
            return text
        case Filler(key, words):
            return filler(key, words)
        case AnswerOf(call):
            return answers[call]


def resolve(call: Call, answers: Answers, *, model: str, extensions: bool = True) -> dict[str, object]:
    """The JSON body. Without `extensions` only fields of OpenAI's own API (a forced length is then only a bound)."""
    body: dict[str, object] = {"model": model, **_content(call, answers)}
    body["max_tokens"] = call.output_tokens if call.forced else call.max_tokens
    body["temperature"] = call.temperature
    if call.seed is not None:
        body["seed"] = call.seed
    if call.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if extensions:
        if call.forced:
            body["ignore_eos"] = True
        if call.salt:
            body["cache_salt"] = call.salt
        if call.priority:
            body["priority"] = call.priority
    return body


def resolve_hint(hint: Hint, *, model: str) -> dict[str, object]:
    """The JSON body of a prefix hint."""
    body: dict[str, object] = {"model": model, **_content(hint, {})}
    if hint.salt:
        body["cache_salt"] = hint.salt
    return body


def _content(call: Call | Hint, answers: Answers) -> dict[str, object]:
    if call.form == "completion":
        return {"prompt": text_of(call.prompt, answers)}
    return {"messages": [{"role": m.role, "content": text_of(m.parts, answers)} for m in call.messages]}


def prompt_bytes(call: Call | Hint, answers: Answers) -> bytes:
    """The prompt as text a model would be given; chats in ChatML, with the opening of the answer (hints: without)."""
    return text_of(laid_out(call), answers).encode()


def laid_out(call: Call | Hint) -> Iterable[Part]:
    """The same as parts, in order."""
    yield from call.prompt
    for message in call.messages:
        yield Text(f"<|im_start|>{message.role}\n")
        yield from message.parts
        yield Text("<|im_end|>\n")
    if call.messages and isinstance(call, Call):
        yield Text("<|im_start|>assistant\n")
