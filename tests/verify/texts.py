"""Seeded text of many kinds: prose, code, CJK, emoji, digits, mixed white space. Nothing quoted from anywhere."""

from __future__ import annotations

import random

NOUNS = [
    *("river", "engine", "garden", "letter", "window", "market", "winter", "signal", "harbour", "copper", "teacher"),
    *("mountain", "island", "bridge", "lantern"),
]
VERBS = [
    *("carries", "follows", "repairs", "measures", "forgets", "paints", "counts", "opens", "answers", "borrows"),
    *("crosses", "remembers"),
]
ADJECTIVES = [
    *("quiet", "broken", "early", "narrow", "golden", "patient", "distant", "heavy", "simple", "curious", "pale"),
]
PLACES = [
    *("near the old mill", "after the first snow", "at half past nine", "between two stations", "under a low sky"),
]
CJK = (
    "今天的河水很安静山上有雪老师打开窗户看见远处的桥市场里的人在数铜钱灯光慢慢亮起来"
    "明日は雨が降るでしょう図書館で本を読む한국의겨울은길고춥다"
)
EMOJI = "😀🚀🌍👩‍🔬🏳️‍🌈🐍🎉❤️‍🔥👍🏽🧊"
KEYWORDS = ["def", "return", "for", "in", "if", "else", "while", "class", "import", "lambda", "yield", "async", "await"]


def prose(rng: random.Random, words: int) -> str:
    out: list[str] = []
    while len(out) < words:
        subject = f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
        out += (
            f"{subject} {rng.choice(VERBS)} the {rng.choice(NOUNS)} {rng.choice(PLACES)}{rng.choice('..!?;')}".split()
        )
    return " ".join(out)


def code(rng: random.Random, lines: int) -> str:
    out: list[str] = []
    for _ in range(lines):
        indent = rng.choice(["", "    ", "        ", "\t"])
        left, right = rng.choice(NOUNS), rng.choice(NOUNS)
        out.append(
            f"{indent}{rng.choice(KEYWORDS)} {left}_{rng.randrange(999)} = {right}[{rng.randrange(10**6)}] # {left}"
        )
    return "\n".join(out)


def cjk(rng: random.Random, characters: int) -> str:
    return "".join(rng.choice(CJK) + ("。" if rng.random() < 0.05 else "") for _ in range(characters))


def emoji(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(EMOJI) + rng.choice(["", " ", "ok", "\n"]) for _ in range(count))


def digits(rng: random.Random, count: int) -> str:
    return ", ".join(str(rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(count))


def spaces(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(["a", "Zed", "  ", "\n\n", "\t", " ", "   \n", "é", "ß", " x"]) for _ in range(count))


def varied(rng: random.Random, size: int) -> str:
    """About `size` times 6 bytes of one kind or a mixture."""
    kinds = [prose, lambda r, n: code(r, max(1, n // 8)), cjk, lambda r, n: emoji(r, max(1, n // 2)), digits, spaces]
    if rng.random() < 0.3:
        return "\n".join(rng.choice(kinds)(rng, max(1, size // 3)) for _ in range(3))
    return rng.choice(kinds)(rng, size)
