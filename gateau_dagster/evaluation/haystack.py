"""The text that hides a needle: sentences, cut to a number of tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# A sentence keeps the white space after it, so that joined sentences equal the text. No character is read more than
# twice, because a table of contents has long runs of points.
_SENTENCE = re.compile(r".(?:[.!?。！？]++(?!\s)|[^.!?。！？\n]++)*+(?:[.!?。！？]++\s+|\n+|$)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Haystack:
    """Sentences with their token ids."""

    sentences: tuple[tuple[str, tuple[int, ...]], ...]

    def without(self, key: str) -> Haystack:
        """Return the haystack without sentences that contain the word `key` in either case: they could contradict the
        needle.
        """
        word = re.compile(rf"(?<!\w){re.escape(key.strip())}(?!\w)", re.IGNORECASE)
        return Haystack(sentences=tuple(part for part in self.sentences if not word.search(part[0])))

    def tokens(self, count: int, rng: random.Random) -> tuple[int, ...]:
        """Return `count` token ids from a sentence drawn by `rng` onwards, starting over at the end of the text.

        Raises GateauError when there are no sentences.
        """
        if count == 0:
            return ()
        if not self.sentences:
            raise GateauError(
                "evaluation.no_text",
                "evaluation/needle: no text is left for the haystack without the sentences that name the "
                "needle's key. Choose rarer keys in evaluation.needle.pairs, or remove needle from "
                "evaluation.benchmarks.",
            )
        place = rng.randrange(len(self.sentences))
        taken: list[int] = []
        while len(taken) < count:
            taken.extend(self.sentences[place % len(self.sentences)][1])
            place += 1
        return tuple(taken[:count])


def sentences_of(text: str) -> Iterator[str]:
    """Return the text's sentences, each with the white space after it."""
    return (match.group() for match in _SENTENCE.finditer(text))


def build_haystack(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> Haystack:
    """Return the first sentences of `texts` until they have `tokens` tokens or the texts end."""
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
    """Insert the fact after the first `round(depth * len(hay))` tokens of the hay: depth 0 is its start, 1 its end."""
    place = round(depth * len(hay))
    return (*hay[:place], *fact, *hay[place:])
