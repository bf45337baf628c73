"""Text to tokens and tokens to bytes, for one model.

Keeps true: `token_bytes` holds, for every id, the bytes that the token stands for in a text (a special token: its
literal), so that any token path has one text. `encode` parses literal special tokens as special and adds none of its
own: what a model wants in front of a plain prompt is `bos_text`. Does not know chat templates' language (serving does)
or caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from .models.byte_level import byte_alphabet
from .models.config import read_json
from .models.errors import ModelBroken, ModelUnsupported

_SPACE_MARK = "▁"
"""SentencePiece writes a space as this."""


class Tokenizer:
    """The tokenizer of a model directory. Raises ModelBroken or ModelUnsupported while loading."""

    def __init__(self, model_dir: Path) -> None:
        raw = read_json(model_dir / "tokenizer.json")
        try:
            self._backend = Backend.from_file(str(model_dir / "tokenizer.json"))
        except Exception as error:  # the binding raises bare Exception
            raise ModelBroken(f"{model_dir / 'tokenizer.json'} cannot be used ({error})") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._config = read_json(model_dir / "tokenizer_config.json")
        added = {int(token["id"]): token for token in raw.get("added_tokens", ())}
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.get("special"))
        self.token_bytes: list[bytes] = _byte_table(self._backend, raw, {i: t["content"] for i, t in added.items()})
        self.vocabulary_digest: str = vocabulary_digest(self.token_bytes, self.special_ids)
        self.eos_ids: frozenset[int] = _eos_ids(model_dir, self._config, self._backend)
        self.bos_token: str = self._literal("bos_token")
        self.eos_token: str = self._literal("eos_token")
        prefix = self._backend.encode("", add_special_tokens=True).ids
        self.bos_text: str = b"".join(self.token_bytes[i] for i in prefix if i not in self.eos_ids).decode()
        """What the model wants in front of a plain prompt; '' for none."""
        self.chat_template: str | None = _chat_template(model_dir, self._config)

    @property
    def vocabulary_size(self) -> int:
        """Ids are 0 .. this - 1."""
        return len(self.token_bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. It must hold no lone surrogates."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_bytes_checked(self, text: str) -> tuple[list[int], int]:
        """Ids of `text`, and how many leading ones stand for exactly its bytes: past them the table is no guide."""
        ids = self.encode(text)
        data = text.encode()
        if self.bytes_of(ids) == data:
            return ids, len(ids)
        offset = 0
        for count, token in enumerate(ids):
            piece = self.token_bytes[token]
            if not data.startswith(piece, offset):
                return ids, count
            offset += len(piece)
        return ids, len(ids)

    def canonical_of_ids(self, ids: Sequence[int]) -> int:
        """How many leading `ids` are those that their own text would be encoded to."""
        data = self.bytes_of(ids)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
        again = self.encode(text)
        agreeing = 0
        for given, encoded in zip(ids, again, strict=False):
            if given != encoded:
                break
            agreeing += 1
        return agreeing

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The text of a token path, special tokens as their literals. IndexError for an id outside the vocabulary."""
        table = self.token_bytes
        return b"".join([table[i] for i in ids])

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        kept = (i for i in ids if i not in self.special_ids) if skip_special else ids
        return self.bytes_of(kept).decode("utf-8", errors="replace")

    def _literal(self, kind: str) -> str:
        value = self._config.get(kind)
        return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def vocabulary_digest(token_bytes: Sequence[bytes], special_ids: Iterable[int]) -> str:
    """Hex digest of a token table: equal exactly when every id stands for the same bytes and the same are special."""
    digest = hashlib.sha256()
    for piece in token_bytes:
        digest.update(len(piece).to_bytes(4, "little"))
        digest.update(piece)
    digest.update(json.dumps(sorted(special_ids)).encode())
    return digest.hexdigest()


def _byte_table(backend: Backend, raw: dict[str, Any], added: dict[int, str]) -> list[bytes]:
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    kinds = _decoder_kinds(raw.get("decoder"))
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()

        def to_bytes(token: str) -> bytes:
            return bytes(alphabet[char] for char in token)

    elif "ByteFallback" in kinds:

        def to_bytes(token: str) -> bytes:
            if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
                return bytes.fromhex(token[3:5])
            return token.replace(_SPACE_MARK, " ").encode()

    else:
        raise ModelUnsupported("the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback")
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        if index not in added:
            try:
                table[index] = to_bytes(token)
            except (KeyError, ValueError) as error:
                raise ModelBroken(f"the tokenizer's entry {index} stands for no bytes") from error
    for index, content in added.items():
        table[index] = content.encode()
    return table


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if not decoder:
        return set()
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", ()):
        kinds |= _decoder_kinds(part)
    return kinds


def _eos_ids(model_dir: Path, config: dict[str, Any], backend: Backend) -> frozenset[int]:
    """End-of-text ids: generation_config.json, else config.json, else the tokenizer's eos token."""
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        value = read_json(path).get("eos_token_id") if path.is_file() else None
        if value is not None:
            return frozenset(value) if isinstance(value, list) else frozenset([int(value)])
    token = config.get("eos_token")
    index = backend.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None
    return frozenset() if index is None else frozenset([int(index)])


def _chat_template(model_dir: Path, config: dict[str, Any]) -> str | None:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {str(entry.get("name")): entry.get("template") for entry in template}
        template = named.get("default")
    return None if template is None else str(template)
