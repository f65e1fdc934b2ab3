"""Compute F1 of the words that an answer shares with a right one, as SQuAD does, in English and in Chinese."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence

from gateau_dagster.errors import GateauError

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# First and last character of ranges: full-width forms, half-width ones, CJK brackets and marks, dashes, quotation
# marks. The brackets 《 〈 and 〉 are not removed.
_CHINESE_PUNCTUATION = (
    *("！－", "／／", "：＠", "［｀", "｛､", "、〃", "》】", "〔〟", "〰〰", "〾〿"),
    *("–—", "‘’", "‛‟", "…‧", "﹏﹏"),
)


def _characters(ranges: Sequence[str]) -> Iterator[str]:
    for first, last in ranges:
        yield from (chr(code) for code in range(ord(first), ord(last) + 1))


_WITHOUT_CHINESE_PUNCTUATION = str.maketrans("", "", string.punctuation + "".join(_characters(_CHINESE_PUNCTUATION)))


def normalised_words(text: str) -> list[str]:
    """Return the lower-case words without ASCII punctuation and articles."""
    return _ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def chinese_words(text: str) -> list[str]:
    """Return the words that jieba's dictionary finds, white space and punctuation included.

    Raises GateauError where jieba is not installed.
    """
    try:
        import jieba
    except ImportError as error:
        raise GateauError(
            "evaluation: Chinese answers are compared word by word, and jieba, which tells the words, is not "
            "installed: pip install 'gateau-dagster[evaluation]'"
        ) from error
    jieba.setLogLevel("WARNING")  # otherwise it logs the loading of its dictionary
    return list(jieba.cut(text, cut_all=False))


def f1(answer: Sequence[str], right: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of the words, counted as multisets."""
    shared = sum((Counter(answer) & Counter(right)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(answer), shared / len(right)
    return (2 * precision * recall) / (precision + recall)


def word_f1(answer: str, right: str) -> float:
    """Return F1 of `normalised_words`."""
    return f1(normalised_words(answer), normalised_words(right))


def chinese_f1(answer: str, right: str) -> float:
    """Return F1 of `chinese_words`, in lower case, without punctuation and white space. Raises as `chinese_words`."""
    return f1(_normalised_chinese(answer), _normalised_chinese(right))


def _normalised_chinese(text: str) -> list[str]:
    words = ("".join(word.lower().translate(_WITHOUT_CHINESE_PUNCTUATION).split()) for word in chinese_words(text))
    return [word for word in words if word]
