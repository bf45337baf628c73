"""Text that means nothing, of a known length: 256 three-letter words, each 4 bytes with its space.

Keeps true: a filler is a pure function of its key and length; a shorter one is a prefix of a longer one with the same
key; fillers of different keys differ within their first four words, so they share no block of 64 bytes that starts
where they start. Every word is one token of the byte-BPE vocabularies in use (checked for the packaged model), so a
word is a token and four tokens are 16 bytes. Does not know what the text is for.
"""

from functools import lru_cache
from random import Random

WORD_BYTES = 4
KEY_MAX = 1 << 32
"""Keys are in [0, KEY_MAX)."""

_LIST = """
    the and for you are can was not all has man but out one who his our may act use new any had off get two her see way
    art day now she own fun end too set sun met let pot him bus due old try law air oil sit cap low say key run why men
    put age far war net log ask sum dig lay big cut fig lot pie yet red ice ten egg web box mid map pet cry rat buy win
    kid arm aid raw bow wet era fly ear tap cup tea rid gap van tip tow bag fed cow hat bin ion tub sad pin fat dog eat
    fit bit bad eye hot bar six tax sea mix dry pan saw gas bed son row sky pig kit rub din joy boy pup mud ink jaw fee
    dot jet gym bug tie oak fox dye sin toe cat car bat ash gum pod lid guy jar fog wit shy zoo hug owl nap ape tan rap
    rim jam hen cue rug bog pea dew axe lap sip tag nut doc pub mob gem vet lad bid dip hay lag job pay sat fan cab ran
    won lie top leg add bay rod orb wed rum lab fin dad sap ego bun pad ham tab rob mad gig ray oat wax hub hip bee nod
    toy rib soy cod tar lip sow rag eve ark sir elk fry fir hid paw peg hut
    yes ago arc ant aim ate
"""
WORDS: tuple[str, ...] = tuple(_LIST.split())
_SPACED = tuple(" " + word for word in WORDS)


@lru_cache(maxsize=16384)
def filler(key: int, words: int) -> str:
    """`words` words of the text of `key`: exactly WORD_BYTES * words ASCII bytes, each word after a space."""
    assert 0 <= key < KEY_MAX, f"key {key} is out of range"
    # The key itself comes first, low byte first: neighbours differ in their first word. Bytes are drawn in whole words
    # of the generator, or a longer draw would not begin like a shorter one.
    numbers = key.to_bytes(4, "little") + Random(key).randbytes(words + -words % 4)
    return "".join([_SPACED[number] for number in numbers[:words]])
