"""A context in the making: filler sentences, and statements put between them at known places."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from gateau_dagster.features.demo.language import Fact, Words, fact_words, random_facts, sentences
from gateau_dagster.features.demo.prepare import DISTRACTORS, FAR_SENTENCES, NEAR_SENTENCES

SEGMENT = 128  # tokens; a kind that depends on borders holds for every segment length that divides it
APART = 17  # sentences between places of which no segment of SEGMENT tokens may hold two


# Least and most filler sentences, of eight words each, of a context. The least leaves room for two far places that are
# APART; the most, with all statements, the instruction and the response, is below the 2,048 tokens of theta_B.
LEAST, MOST = FAR_SENTENCES + APART, 168


@dataclass(kw_only=True)
class Page:
    """`sentence_count` sentences; what is stated in slot i stands before sentence i, the last slot at the end."""

    rng: np.random.Generator
    sentence_count: int
    filler: Iterator[Words]
    facts: list[Fact]  # of different attributes, not stated yet
    slots: dict[int, list[Words]] = field(default_factory=dict)

    @classmethod
    def blank(cls, rng: np.random.Generator) -> "Page":
        """Return a page of ordinary filler, with all 32 attributes unused."""
        count = int(rng.integers(LEAST, MOST + 1))
        return cls(rng=rng, sentence_count=count, filler=sentences(rng), facts=random_facts(rng, 32))

    def take(self, count: int) -> list[Fact]:
        """Return facts whose attributes nothing else uses."""
        taken, self.facts = self.facts[:count], self.facts[count:]
        assert len(taken) == count, "the language has 32 attributes"
        return taken

    def slot(self, *, far: bool) -> int:
        """Return a random slot among the last sentences, which theta_A sees, or a far one.

        A far slot is at least 384 tokens before the end: neither in theta_A's window nor in a segment that reaches it.
        """
        last, near = self.sentence_count, self.sentence_count - NEAR_SENTENCES
        return int(self.rng.integers(last - FAR_SENTENCES + 1) if far else self.rng.integers(near, last + 1))

    def far_slots(self) -> tuple[int, int]:
        """Return two far slots, the earlier first, of which no segment of SEGMENT tokens holds both."""
        last = self.sentence_count - FAR_SENTENCES
        first = int(self.rng.integers(last - APART + 1))
        return first, int(self.rng.integers(first + APART, last + 1))

    def state(self, slot: int, statement: Words) -> None:
        """Append a statement to the slot."""
        assert 0 <= slot <= self.sentence_count
        self.slots.setdefault(slot, []).append(statement)

    def state_facts(self, facts: list[Fact], *, far: bool) -> None:
        """State each fact in a separate slot, far or near."""
        for fact in facts:
            self.state(self.slot(far=far), fact_words(fact))

    def distract(self, count: int | None = None) -> None:
        """State `count` facts that nobody asks for, anywhere; default: as many as in the demo's samples."""
        wanted = int(self.rng.integers(DISTRACTORS[0], DISTRACTORS[1] + 1)) if count is None else count
        for fact in self.take(wanted):
            self.state(int(self.rng.integers(1, self.sentence_count + 1)), fact_words(fact))

    def units(self) -> list[Words]:
        """Return sentences and statements in reading order. Consumes the filler: call it once."""
        written: list[Words] = []
        for slot, sentence in enumerate(islice(self.filler, self.sentence_count)):
            written += [*self.slots.get(slot, ()), sentence]
        return written + self.slots.get(self.sentence_count, [])

    def text(self) -> Words:
        """Return the words of the context."""
        return joined(self.units())

    def text_with(self, statement: Words, *, distance: int) -> Words:
        """Return the context with a statement that begins `distance` tokens before its end, or up to 7 more."""
        units = self.units()
        place, behind = len(units), len(statement)
        while behind < distance:
            place -= 1
            behind += len(units[place])
        return joined([*units[:place], statement, *units[place:]])

    def text_across(self, statement: Words, *, first: int) -> Words:
        """Return the context with a far statement of which `first` words end a segment and the others begin the next.

        The context's first sentence loses up to 7 words, as that of a document cut out of a longer one may.
        """
        units = self.units()
        starts = np.cumsum([0, *(len(unit) for unit in units)])
        last = (starts[-1] - FAR_SENTENCES * 8) // SEGMENT
        begin = SEGMENT * int(self.rng.integers(1, last + 1)) - first
        place = int(np.searchsorted(starts, begin))  # the first unit that begins there or behind
        surplus = int(starts[place]) - begin
        assert surplus < len(units[0])
        return joined([units[0][surplus:], *units[1:place], statement, *units[place:]])


def joined(units: list[Words]) -> Words:
    """Return all words, in order."""
    return [word for unit in units for word in unit]
