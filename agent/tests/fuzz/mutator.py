"""Changes inputs by their words and brackets, so that most stay nearly well-formed.

One mutator does for XML, JSON, TOML and the kernel's files: all are words between punctuation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(rb"[A-Za-z_][\w-]*|[0-9]+|[ \t]+|.", re.DOTALL)
_CLOSING = {b"{": b"}", b"[": b"]", b"(": b")"}
#: Values that parsers often get wrong.
AWKWARD = (
    *(b"0", b"-1", b"-0", b"1e999", b"1e-999", b"NaN", b"Infinity", b"0.1", b"true", b"null"),
    *(b'""', b"[]", b"{}", b"'", b'"', b"\\", b"\n", b"\r\n", b"\0", b"\x7f", b"\x1b[2J"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"4294967295"),
    *(b"9" * 400, b"9" * 5000, b"1_000", b"+5", b"0x10", b"007", b" ", b".", b"..", b"/", b"../.."),
    *(
        "²".encode(),
        "٣".encode(),
        "é".encode(),
        b"\xff",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\xef\xbb\xbf",
    ),
    *(b"max", b"default", b"none", b"%s", b"a" * 300),
)


def mutated(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    """Return an input with a few of its words or chunks changed. words: those of its format."""
    tokens = _TOKEN.findall(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        start, end = _chunk(tokens, chance)
        chunk = tokens[start:end]
        match chance.randrange(8):
            case 0:
                tokens[start:end] = []
            case 1:
                tokens[end:end] = chunk
            case 2:
                at = chance.randrange(len(tokens) + 1)
                tokens[at:at] = chunk
            case 3:
                other, last = _chunk(tokens, chance)
                tokens[start:end] = tokens[other:last]
            case 4 | 5:
                tokens[start:end] = [chance.choice(AWKWARD)]
            case _:
                if words:
                    at = start if chance.random() < 0.5 else _word(tokens, chance)
                    tokens[at : at + 1] = [chance.choice(words)]
    return b"".join(tokens)


def grown(data: bytes, most_bytes: int, chance: random.Random) -> bytes:
    """Return an input with one of its chunks repeated until it has nearly most_bytes.

    Each repetition has another number in one of its words, since names have to differ.
    """
    tokens = _TOKEN.findall(data)
    start, end = _chunk(tokens, chance)
    chunk = tokens[start:end]
    before, after = b"".join(tokens[:end]), b"".join(tokens[end:])
    comma = b"," if chunk[:1] in ([b"{"], [b"["]) else b""
    at = _word(chunk, chance)
    head, tail = b"".join(chunk[: at + 1]), b"".join(chunk[at + 1 :])
    numbered = chance.random() < 0.7
    each = len(comma) + len(head) + len(tail) + 6 * numbered
    times = max(0, most_bytes - len(data)) // max(1, each)
    repeated = (
        (b"%b%b%d%b" % (comma, head, i, tail) for i in range(times))
        if numbered
        else ([comma + head + tail] * times)
    )
    return before + b"".join(repeated) + after


def _word(tokens: Sequence[bytes], chance: random.Random) -> int:
    """Return the place of a word or number, if there is one."""
    places = [i for i, token in enumerate(tokens) if token[:1].isalnum()]
    return chance.choice(places) if places else 0


def _chunk(tokens: Sequence[bytes], chance: random.Random) -> tuple[int, int]:
    """Return the start and the end of a token, a line, a tag, or a text or group in brackets."""
    if not tokens:
        return 0, 0
    start = chance.randrange(len(tokens))
    if chance.random() < 0.4:
        return start, start + 1
    starts = [i for i, token in enumerate(tokens) if token in b'{[(<"\n' and len(token) == 1]
    if not starts:
        return start, chance.randrange(start, len(tokens)) + 1
    start = chance.choice(starts)
    return start, next(_ends(tokens, start), len(tokens))


def _ends(tokens: Sequence[bytes], start: int) -> Iterator[int]:
    """Yield the end of the chunk that begins with a bracket, a quote or a line's end."""
    opening = tokens[start]
    closing = _CLOSING.get(opening, {b"<": b">"}.get(opening, opening))
    depth = 0
    for i in range(start + 1, len(tokens)):
        if tokens[i] == closing and not depth:
            yield i + (opening != b"\n")
        elif opening in _CLOSING:
            depth += (tokens[i] == opening) - (tokens[i] == closing)
