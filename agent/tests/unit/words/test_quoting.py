"""Text from outside in one line of text."""

from __future__ import annotations

from iokeel.words.quoting import did_you_mean, escaped, few


def test_of_many_known_words_the_first_are_told() -> None:
    names = [f"guest{number:04}" for number in range(5000)]
    known = did_you_mean("nosuch", names)
    assert known.startswith("known: guest0000, guest0001, ")
    assert known.endswith(", guest0019 and 4980 more")
    assert did_you_mean("nosuch", names[:20]).endswith(", guest0019")
    assert did_you_mean("gest4999", names) == "did you mean 'guest4999'?"


def test_known_words_are_never_run() -> None:
    assert did_you_mean("database", ["database\x9b"]) == r"did you mean 'database\x9b'?"
    assert did_you_mean("nosuch", ["\x9b31m"]) == r"known: \x9b31m"


def test_a_few_names_are_told_and_how_many_more() -> None:
    assert few([]) == ""
    assert few(["a", "b\n", "c", "d"]) == r"a, b\n, c, d"
    assert few([*"abcdefg"]) == "a, b, c, d and 3 more"


def test_an_escaped_text_is_whole() -> None:
    text = "Größe: 5 iops. " * 1000
    assert escaped(f"{text}\x9b\u202e\n") == rf"{text}\x9b\u202e\n"
