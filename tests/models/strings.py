"""Strings that tokenizers stumble over, and a generator of more."""

from __future__ import annotations

import random

FIXED: tuple[str, ...] = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t \n \t",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "  leading and   inner   spaces  ",
    "line one\nline two\r\nline three\n\n  indented",
    "0",
    "1234567890",
    "3.14159",
    " 12 345,678.90 ",
    "year2024abc99",
    "1st 2nd 3rd x1y2z3",
    "-17°C +5% №9 10²",
    "½ ⅔ Ⅷ ④ ٣٤٥ १२३ 四五六 ௧௨ 𝟘𝟙",
    "don't can't I'm we've they'll he'd it's o'clock",
    "DON'T I'M 'S's ''s 'tis",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    'for (int i = 0; i < 10; ++i) { printf("%d\\n", i); }',
    "<html><body class='x'>&amp;</body></html>",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'it''s';",
    '{"key": [1, 2.5, null], "nested": {"a": "b\\u00e9"}}',
    "https://example.com/path?q=1&r=two#frag",
    "user@example.com, C:\\Users\\name, /usr/local/bin",
    "import numpy as np\n\tx = np.zeros((3,4))\n\n\n# end",
    "Grüße aus Köln, où est l'été? Ça va, señor Ñandú",
    "e\u0301 vs \u00e9, n\u0303, a\u030a\u0304",
    "Привет, мир! Как дела?",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好,世界。今天天气很好!",
    "吾輩は猫である。名前はまだ無い。",
    "ひらがなカタカナ漢字",
    "안녕하세요 세계",
    "混合 text と 日本語 and 한국어 123",
    "𠮷野家 𝓯𝓪𝓷𝓬𝔂",
    "🙂",
    "🙂🙃 emoji 🎉🎊",
    "👨‍👩‍👧‍👦 family 👍🏽 skin 🏳️‍🌈 flag 🇩🇪🇫🇷",
    "❤️ ☺ ✓ → ≠ ∑ ∞",
    "\u200b zero width \u200d joiner \ufeff bom",
    "\u00a0no-break\u00a0space \u3000wide\u2003em",
    "\u2028line sep\u2029para \u0085next",
    "\x00null \x01 \x07bell \x1b[31mred\x1b[0m \x7f",
    "\x04\x06\x13\x14\x16\x1d dropped controls",
    "\U0004abcd \U0008ffff unassigned planes",
    "\ue000 private \uffff \ufffd replacement",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n",
    "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n",
    "text <|endoftext|> text<|endoftext|>text",
    "<|im_start|><|im_start|><|im_end|>",
    "<|im_start <|im_start|> |im_end|> <|im_end|",
    "<repo_name>x<reponame>y<file_sep>z<filename>",
    "<gh_stars>100<issue_start>1<issue_comment>2<issue_closed>",
    "<jupyter_start><jupyter_text><jupyter_code>1<jupyter_output>2<jupyter_script><empty_output>",
    " <|im_end|> \n<|im_end|>\n",
    "a" * 200,
    " " * 150 + "x",
    "\n" * 60,
    "=" * 90,
    "1" * 70,
    "ab " * 80,
    "the the  the   the    the",
    "....!!!???---___***###",
    "x.y.z a-b_c d/e\\f g|h i&j",
    "Mr. O'Neill's \"quoted\" (parenthesised) [bracketed] text...",
    "CamelCaseIdentifier snake_case_name kebab-case-name SCREAMING_CASE",
    "ﬁ ﬂ ligatures ㎏ ㏑ ™ © ®",
    "İstanbul ıI ß ẞ ǅ",
    "\r\r\n\n\r",
    "tab\tseparated\tvalues\t1\t2",
    "  \n  \n\n   x",
    "ends with space \n ",
)

_ALPHABETS: tuple[str, ...] = (
    "abcdefghij ",
    "ABC abc 019 ",
    "0123456789 .,",
    " \t\n\r",
    " \n\u00a0\u3000\u2009\u200b\x85\x1c\x1d\x0b\x0c",
    "'stremvldSTRE ",
    "{}[]()<>=+-*/%&|!?:;.,#@$^~`\"'\\_ \n",
    "äöüßéèñçåøœ ÀÉÎÕÜ ",
    "абвгдеёжз АБВ 12",
    "的一是不了人我在有他 这中大来 。,",
    "あいうえおカキクケコ日本語 ー",
    "가나다라마바사 아자차",
    "🙂😀🎉👍🏽❤️‍🔥🇩🇪\u200d\ufe0f ",
    "٠١٢٣٤٥ ०१२३ ½¾²³ⅣⅧ①② a",
    "e\u0301\u0300\u0302\u0303 \u0328o",
)


def generated(count: int, seed: int = 20) -> list[str]:
    """`count` strings over the alphabets above, mixed alphabets, cut special tokens and any code points."""
    rng = random.Random(seed)
    specials = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<|im_", "end|>")
    strings = []
    for index in range(count):
        kind = index % 4
        if kind == 0:
            alphabet: list[str] = list(rng.choice(_ALPHABETS))
        elif kind == 1:
            alphabet = list("".join(rng.sample(_ALPHABETS, 3)))
        elif kind == 2:
            alphabet = [*rng.choice(_ALPHABETS), *specials]
        else:
            alphabet = [chr(rng.randrange(0xD800)) for _ in range(12)] + [chr(rng.randrange(0xE000, 0x110000)), " "]
        strings.append("".join(rng.choices(alphabet, k=rng.randrange(1, 60))))
    return strings
