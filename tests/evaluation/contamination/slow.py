"""Slow obvious twins: words letter by letter, n-grams as tuples in sets."""

import random
import unicodedata
from collections.abc import Sequence

_WORDS = [f"{first}{last}" for first in "abcdefghijklmnopqrst" for last in ("lpha", "eta", "o", "ümmel", "7", "ский")]


def drawn_words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def slow_words(text: str) -> list[str]:
    found, word = [], ""
    for char in [*unicodedata.normalize("NFKC", text).casefold(), " "]:
        written = unicodedata.category(char)[0] in "LNM"
        alone = written and any(
            name in unicodedata.name(char, "") for name in ("CJK", "IDEOGR", "HIRAGANA", "KATAKANA", "THAI", "LAO")
        )
        if written and not alone:
            word += char
            continue
        found += [each for each in (word, char if alone else "") if each]
        word = ""
    return found


def slow_ngrams(parts: Sequence[str], length: int) -> set[tuple[str, ...]]:
    found = set()
    for part in parts:
        words = slow_words(part)
        found |= {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
    return found


def slow_questions_ngrams(parts: Sequence[str]) -> set[tuple[str, ...]]:
    """Of 13 words, or of all of a part with 8 to 12."""
    found = set()
    for part in parts:
        length = min(13, len(slow_words(part)))
        found |= slow_ngrams([part], length) if length >= 8 else set()
    return found
