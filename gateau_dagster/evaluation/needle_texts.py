"""A needle in running text, as LongAlign places it (Bai et al. 2024, after Kamradt 2023): at the end of a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.metrics.word_overlap import normalised_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RESERVED = 200
"""Tokens of a prompt that are reserved for question and answer."""
_STOPS = (".", "。")


@dataclass(frozen=True, kw_only=True)
class NeedleText:
    """A hidden text and its question. frame: the prompt with {context} and {question}."""

    needle: str
    question: str
    frame: str

    @cached_property
    def key(self) -> list[str]:
        """Return the words that an answer must contain: the needle's from the first that is not in the question."""
        asked, words = {*normalised_words(self.question)}, normalised_words(self.needle)
        first = next((place for place, word in enumerate(words) if word not in asked), 0)
        return words[first:]

    def prompt(self, context: str) -> str:
        """Return the context in its frame, with the question."""
        before, after = self.frame.split("{context}")
        return before.replace("{question}", self.question) + context + after.replace("{question}", self.question)


def holds(answer: str, key: Sequence[str]) -> bool:
    """Return whether the key's words occur in a row in the answer, ignoring case and punctuation."""
    return f" {' '.join(key)} " in f" {' '.join(normalised_words(answer))} "


@dataclass(frozen=True, kw_only=True)
class RunningText:
    """The first tokens of a text, and the tokens that end a sentence."""

    tokenizer: PreTrainedTokenizerBase
    ids: tuple[int, ...]

    @cached_property
    def stops(self) -> frozenset[int]:
        """Return the tokens of a full stop, which depend on the text before it."""
        ends = (_ids(self.tokenizer, f"{before}{stop}")[-1:] for stop in _STOPS for before in ("", "a", "好"))
        return frozenset(
            token for end in ends for token in end if str(self.tokenizer.decode([token])).strip() in _STOPS
        )

    def with_needle(self, needle: str, *, length: int, depth: int) -> str:
        """Return the text cut to `length` tokens, less RESERVED, needle included.

        The needle follows the last full stop among the first `depth` per cent of the other tokens. Without a full stop
        it is at the beginning; with depth 100 it is at the end. Raises GateauError for a length without room.
        """
        hidden = _ids(self.tokenizer, needle)
        room = length - RESERVED - len(hidden)
        if room <= 0:
            raise GateauError(
                f"evaluation.generated_needle.lengths: {length} tokens have no room for text: the needle takes "
                f"{len(hidden)}, question and answer {RESERVED}; raise it"
            )
        text = self.ids[:room]
        place = len(text) if depth == 100 else int(len(text) * (depth / 100))
        while depth != 100 and place and text[place - 1] not in self.stops:
            place -= 1
        return str(self.tokenizer.decode([*text[:place], *hidden, *text[place:]], skip_special_tokens=True))


def running_text(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, tokens: int) -> RunningText:
    """Join the texts, and repeat them until there are `tokens` tokens.

    Raises GateauError where there is no text.
    """
    known: list[tuple[str, int]] = []
    taken, count = "", 0
    for text in texts:
        known.append((text, len(_ids(tokenizer, text))))
        taken, count = taken + text, count + known[-1][1]
        if count >= tokens:
            break
    if count == 0:
        raise GateauError(
            "evaluation.generated_needle.haystack: there is no text to hide a needle in: give files that hold some"
        )
    taken *= -(-tokens // count)
    return RunningText(tokenizer=tokenizer, ids=_ids(tokenizer, taken)[:tokens])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])  # pyright: ignore
