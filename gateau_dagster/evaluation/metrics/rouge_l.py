"""Compute ROUGE-L of a text against a reference, over all of its sentences (Lin 2004, section 3.2).

It follows the package `rouge`: distinct words, sentences that end at a full stop, F with equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateau_dagster.evaluation.metrics.word_overlap import chinese_words


def rouge_l(answer: str, right: str) -> float:
    """Return F of the union of the longest common subsequences of all pairs of sentences; 0 where either text has none.

    `rouge` itself uses recursion, which fails on sentences of about five hundred words; this code scores them, too.
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
    """Return ROUGE-L of the words that jieba finds. Raises GateauError where it is not installed."""
    return rouge_l(" ".join(chinese_words(answer)), " ".join(chinese_words(right)))


def _sentences(text: str) -> list[list[str]]:
    """Return the words of each piece between full stops. A piece of white space is one empty word."""
    return [" ".join(piece.split()).split(" ") for piece in text.split(".") if piece]


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return a longest common subsequence, reversed; of several, the one that drops words of `second` first."""
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
