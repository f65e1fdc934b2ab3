"""Grade single answers without their thoughts: exact match, word overlap, ROUGE-L and ranking."""

from __future__ import annotations

import difflib
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.readable import plural

# Raise it when the same answers get other values in all benchmarks.
CODE_VERSION = "1"
# Thoughts are left out before grading. They may name several candidates, and a metric that looks for the right answer
# anywhere would find it there.
_TAGS = r"think(?:ing)?|thoughts?|reasoning|reflection"
_OPENS = re.compile(rf"(?i)<({_TAGS})>|\[THINK\]|\u25c1think\u25b7|<\|START_THINKING\|>|<\|channel\|>\s*analysis")
_CLOSES = re.compile(
    rf"(?i)</(?:{_TAGS})>|\[/THINK\]|\u25c1/think\u25b7|<\|END_THINKING\|>|"
    r"<\|channel\|>\s*final\s*(?:<\|constrain\|>\s*\w+)?\s*<\|message\|>"
)
_PLAIN_CHANNELS = re.compile(r"(?s)analysis.*?assistantfinal")  # without the special tokens
_QUOTES = "`'\"\u2018\u2019\u201c\u201d"
_ENDS = re.compile(r"<\|(?:return|end|START_RESPONSE|END_RESPONSE)\|>")


def begins_with_thoughts(text: str) -> bool:
    """Return whether a text begins with thoughts; they may lack their opening, which a template gives."""
    begun = text.lstrip()
    return bool(_OPENS.match(begun) or _PLAIN_CHANNELS.match(begun)) or _lacks_opening(begun)


def without_thoughts(text: str) -> str | None:
    """Return the text after the thoughts at its start; the whole text if it does not begin with thoughts.

    Return None if the thoughts never end, because the model reached its limit before it answered.
    """
    if not begins_with_thoughts(text):
        return text
    rest = text.lstrip()
    if plain := _PLAIN_CHANNELS.match(rest):
        return rest[plain.end() :].strip()
    while (opening := _OPENS.match(rest)) or _lacks_opening(rest):
        closing = _CLOSES.search(rest, opening.end() if opening else 0)
        if closing is None:
            return None
        rest = rest[closing.end() :].lstrip()
    return _ENDS.sub("", rest).strip()


def _lacks_opening(text: str) -> bool:
    closing = _CLOSES.search(text)
    if closing is None or _OPENS.search(text, 0, closing.start()) is not None:
        return False
    around = text[max(0, closing.start() - 1) : closing.start()] + text[closing.end() : closing.end() + 1]
    return not any(mark in around for mark in _QUOTES)  # an answer may mention the tag


def graded_answers(answers: pl.DataFrame, thoughts: str) -> pl.DataFrame:
    """Return tables.ANSWERS with the answers in the form that metrics and judges read.

    Args:
        answers: some columns of tables.ANSWERS, including `answer`.
        thoughts: `evaluation.thoughts`. drop: the answer without the thoughts at its start, empty if they never end.
            keep: the whole answer.
    """
    if thoughts == "keep":
        return answers
    texts = [without_thoughts(text) or "" for text in answers["answer"]]
    return answers.with_columns(answer=pl.Series(texts, dtype=pl.String))


def grading_settings(thoughts: str) -> dict[str, Any]:
    """Return the settings for the grading of stored answers; the code version covers the default."""
    return {} if thoughts == "drop" else {"evaluation.thoughts": thoughts}


def unfinished_thoughts(answers: pl.Series) -> int:
    """Return the number of answers with thoughts that never end."""
    return sum(without_thoughts(text) is None for text in answers)


def thoughts_sentence(answers: pl.Series, thoughts: str) -> str:
    """Return a sentence about the answers that begin with thoughts, and the effect on grades; empty without any."""
    count = sum(map(begins_with_thoughts, answers))
    if not count:
        return ""
    verb = "begins" if count == 1 else "begin"
    found = f"{count:,} of {plural(answers.len(), 'answer')} {verb} with thoughts"
    if thoughts == "keep":
        return f"{found}, which are graded as a part of them: evaluation.thoughts is keep"
    unfinished = unfinished_thoughts(answers)
    ends = f"; in {unfinished:,} they never end, which counts as an empty answer" if unfinished else ""
    return f"{found}, which are left out of grading{ends}"


# The metrics.


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

    Raises GateauError if jieba is not installed.
    """
    try:
        import jieba
    except ImportError as error:
        raise GateauError(
            "evaluation.package",
            "evaluation: Chinese answers are compared word by word, but jieba, which separates the words, "
            "is not installed: pip install 'gateau-dagster[evaluation]'",
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


def rouge_l(answer: str, right: str) -> float:
    """Return F of the union of the longest common subsequences of all pairs of sentences; 0 if a text has no sentence.

    `rouge` itself uses recursion, which fails on sentences of about five hundred words; this code can score them.
    """
    answer_sentences, right_sentences = _sentences(answer), _sentences(right)
    if not answer_sentences or not right_sentences:
        return 0.0
    common: set[str] = set()
    for reference in right_sentences:
        for sentence in answer_sentences:
            common.update(common_subsequence(reference, sentence))
    recall = len(common) / len({word for sentence in right_sentences for word in sentence})
    precision = len(common) / len({word for sentence in answer_sentences for word in sentence})
    return 2.0 * ((precision * recall) / (precision + recall + 1e-8))


def chinese_rouge_l(answer: str, right: str) -> float:
    """Return ROUGE-L of the words that jieba finds. Raises GateauError if jieba is not installed."""
    return rouge_l(" ".join(chinese_words(answer)), " ".join(chinese_words(right)))


def _sentences(text: str) -> list[list[str]]:
    """Return the words of each piece between full stops. A piece of white space is one empty word."""
    return [" ".join(piece.split()).split(" ") for piece in text.split(".") if piece]


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return a longest common subsequence, reversed; if there are several, drop words of `second` first."""
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above, row = lengths[-1], [0]
        for place, other in enumerate(second):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
        lengths.append(row)
    found, i, j = [], len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            found.append(first[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


_NUMBER = re.compile(r"\d+")
_PASSAGE = re.compile(r"(?:Paragraph |段落)(\d+)")
_COMMENT = ("`", "#", "//")


def number_share(answer: str, right: str) -> float:
    """Return the share of the numbers in the answer that are the right one."""
    numbers = _NUMBER.findall(answer)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def passage_share(answer: str, right: str) -> float:
    """Return `number_share` for the number of the first passage that `right` names."""
    found = _PASSAGE.search(right)
    return number_share(answer, found.group(1)) if found else 0.0


def class_share(answer: str, right: str, classes: Sequence[str]) -> float:
    """Return 1 over the number of classes that the answer names, if the right one is among them; else 0.

    A class that is part of the right one's name does not count, unless it follows another such class directly. The
    published code has this effect, because it removes items from a list while it iterates over it.
    """
    named, place = [each for each in classes if each in answer], 0
    while place < len(named):
        if named[place] in right and named[place] != right:
            named.remove(named[place])
        place += 1
    return 1.0 / len(named) if right in named else 0.0


def line_similarity(answer: str, right: str) -> float:
    """Return the similarity, in hundredths, of the right line and the answer's first line without comment or fence."""
    lines = answer.lstrip("\n").split("\n")
    line = next((each for each in lines if not any(mark in each for mark in _COMMENT)), "")
    if line == right:
        return 1.0
    if not line or not right:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, line, right).ratio()) / 100


def share_contained(answer: str, right: Sequence[str]) -> float:
    """Return the share of the right answers that the answer contains, ignoring case."""
    return sum(each.lower() in answer.lower() for each in right) / len(right)


_MARKS = re.compile(r"[\[\]:]")
_RANKING = re.compile(r"\d+(?:\s*>\s*\d+)*")


def ranked_ids(answer: str) -> list[str]:
    """Return the ids of the longest ranking in an answer, each once; empty if there is no number.

    Brackets, colons and the word ID are removed.
    """
    bare = _MARKS.sub("", answer).lower().replace("id", "")
    longest = max((match.group() for match in _RANKING.finditer(bare)), key=len, default="")
    return list(dict.fromkeys(each.strip() for each in longest.split(">") if each.strip()))


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int], *, depth: int) -> float:
    """Return the normalised discounted cumulative gain of the first `depth`, 0 to 1; the gain is the relevance itself.

    An unknown id has no gain; without any relevance the value is 0.
    """

    def gain(values: Sequence[int]) -> float:
        return math.fsum(value / math.log2(place + 2) for place, value in enumerate(values[:depth]))

    best = gain(sorted(relevance.values(), reverse=True))
    return gain([relevance.get(each, 0) for each in ranked]) / best if best else 0.0
