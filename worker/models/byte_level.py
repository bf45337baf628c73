"""How byte-level BPE writes bytes as printable characters, so that a vocabulary can be text.

Keeps true: 256 characters, one for each byte. Does not know vocabularies.
"""

from __future__ import annotations


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: printable Latin-1 stands for itself, the rest from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(itself)]
    table = {chr(byte): byte for byte in itself}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table
