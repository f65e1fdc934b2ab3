"""The text that a needle is hidden in: sentences, cut to a number of tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A sentence keeps the white space after it, so that joined sentences give the text back. No character is read more
# than twice: a table of contents has long runs of points.
_SENTENCE = re.compile(r".(?:[.!?。！？]++(?!\s)|[^.!?。！？\n]++)*+(?:[.!?。！？]++\s+|\n+|$)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """Sentences with their token ids."""

    sentences: tuple[tuple[str, tuple[int, ...]], ...]

    def without(self, key: str) -> Haystack:
        """The sentences that do not name `key` as a word, in either case: they could contradict the needle."""
        word = re.compile(rf"(?<!\w){re.escape(key.strip())}(?!\w)", re.IGNORECASE)
        return Haystack(sentences=tuple(part for part in self.sentences if not word.search(part[0])))

    def tokens(self, count: int, rng: random.Random) -> tuple[int, ...]:
        """`count` token ids from a sentence drawn by `rng` on, starting over at the end of the text.

        Raises GateauError when there are none to start with.
        """
        if count == 0:
            return ()
        if not self.sentences:
            raise GateauError(
                "evaluation/needle: no text is left for the haystack once sentences that name the needle's key are "
                "out. Choose rarer keys in evaluation.needle.pairs, or take needle out of evaluation.benchmarks."
            )
        place = rng.randrange(len(self.sentences))
        taken: list[int] = []
        while len(taken) < count:
            taken.extend(self.sentences[place % len(self.sentences)][1])
            place += 1
        return tuple(taken[:count])


def sentences_of(text: str) -> Iterator[str]:
    """The text's sentences, each with the white space after it."""
    return (match.group() for match in _SENTENCE.finditer(text))


def build_haystack(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> Haystack:
    """Sentences of `texts`, in order, until `tokens` of them are there or the texts end."""
    from gateau_dagster.models.prompt import encode

    sentences: list[tuple[str, tuple[int, ...]]] = []
    total = 0
    for text in texts:
        for sentence in sentences_of(text):
            ids = encode(tokenizer, sentence)
            if ids:
                sentences.append((sentence, ids))
                total += len(ids)
            if total >= tokens:
                return Haystack(sentences=tuple(sentences))
    return Haystack(sentences=tuple(sentences))


def insert_needle(hay: Sequence[int], fact: Sequence[int], *, depth: float) -> tuple[int, ...]:
    """The fact's tokens after the first `round(depth * len(hay))` tokens of the hay: 0 is its start, 1 its end."""
    place = round(depth * len(hay))
    return (*hay[:place], *fact, *hay[place:])
