"""Text made up for measurements: plain English words, different for every seed, so that no cache has seen it."""

from __future__ import annotations

from random import Random

_WORDS = (
    "the a this that each every some many few most all another other same new old small large early late long short "
    "clear quiet open public local common simple steady careful useful northern southern river valley mountain road "
    "bridge harbour village market school library garden station island forest field window table letter paper story "
    "report record number measure season winter summer morning evening hour week month year water stone wood iron "
    "grain bread fruit salt cloth paint music light sound wind rain snow cloud people family teacher farmer sailor "
    "builder doctor writer reader child neighbour visitor keeper walks carries builds writes reads counts opens "
    "closes finds keeps brings sends leaves meets asks answers follows measures repairs paints plants gathers and "
    "but or while because before after near under over across along between without toward during until of in on at"
)
WORDS = tuple(_WORDS.split())
CHARS_PER_TOKEN = 5.6
"""What these words come to with a byte BPE of English, spaces included: a guess where no tokenizer can be asked."""


def prose(seed: int, chars: int) -> str:
    """About `chars` characters of sentences, the same for the same seed; at least one word."""
    rng = Random(seed)
    parts: list[str] = []
    length = 0
    while length < chars or not parts:
        words = [rng.choice(WORDS) for _ in range(rng.randint(6, 14))]
        sentence = " ".join(words).capitalize() + ". "
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)[: max(1, chars)].rstrip()
