"""Log probabilities in the two shapes of OpenAI's API.

Keeps true: a token that is no whole text of its own is shown as `bytes:\\xNN...`, so that two of them never look alike;
minus infinity, which JSON lacks, is shown as -9999. Does not know where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trieway.worker.generation import ScoredToken

LOGPROB_MIN = -9999.0


class TokenNames:
    """How single tokens are shown. `table` is the token -> bytes table."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table

    def raw(self, token: int) -> bytes:
        return self._table[token]

    def name(self, token: int) -> str:
        """The token's text, or its bytes in escapes where they are no UTF-8."""
        raw = self._table[token]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokens: Iterable[ScoredToken], names: TokenNames) -> dict[str, Any]:
    """The `logprobs` object of a chat choice: `top_logprobs` has as many entries as were asked for, best first."""
    content = [
        {
            **_entry(scored.token, scored.logprob, names),
            "top_logprobs": [_entry(token, logprob, names) for token, logprob in scored.top],
        }
        for scored in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken], names: TokenNames) -> dict[str, Any]:
    """The `logprobs` object of a completion choice; the chosen token is always among its own `top_logprobs`."""
    return {
        "tokens": [names.name(scored.token) for scored in tokens],
        "token_logprobs": [_finite(scored.logprob) for scored in tokens],
        "top_logprobs": [_named(scored, names) for scored in tokens],
        "text_offset": [scored.offset for scored in tokens],
    }


def _entry(token: int, logprob: float | None, names: TokenNames) -> dict[str, Any]:
    return {"token": names.name(token), "logprob": _finite(logprob), "bytes": list(names.raw(token))}


def _named(scored: ScoredToken, names: TokenNames) -> dict[str, float | None] | None:
    if scored.logprob is None:
        return None
    named = {names.name(token): _finite(logprob) for token, logprob in scored.top}
    named.setdefault(names.name(scored.token), _finite(scored.logprob))
    return named


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(float(logprob), LOGPROB_MIN)
