"""Find samples that need far text by their words, and make samples that need none by exchanging their far text.

Both are known without labels, and neither is found by a model:

- *Needs far text*: the words of the response, weighted by their rarity, are in the sample's far text, and neither in
  its near text nor in its instruction. They make up LEAST_SHARE of the response, and the far texts of at most CHANCE of
  the other samples hold as much. Far text is the part of the context that theta_A does not see.
- *Needs none*: the sample's far text is replaced by that of other samples, and all else stays. Whatever its response
  needs is near, or nowhere.

The control is the AUROC of the score over both: the probability that the first kind scores above the second.
"""

# Why not the evidence of theta_B: the score is made of the same probabilities. Samples that they call far rank high by
# construction, so the AUROC would be near 1 whatever the model misses. Words do not know the model.
#
# Why the far text only is exchanged: with another context, a sample with near evidence would lose it, and become one
# that nothing predicts. The samples of a data set that need no far text are mostly others, and their scores differ.

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateau_dagster.data.sample import Sample
from gateau_dagster.selection.statistics import uniform

# Raise it when the same samples give another control.
CODE_VERSION = "1"
DRAWN = 120
"""Samples whose words are compared. Among them are those that need far text."""
EXCHANGED = 30
"""Samples whose far text is exchanged, and that models therefore read."""
LEAST_SHARE = 0.15
CHANCE = 0.05
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")


@dataclass(frozen=True, kw_only=True)
class DrawnSample:
    """A sample, and the first characters of its context that theta_B (`start`) and theta_A (`border`) see."""

    sample: Sample
    start: int
    border: int

    @property
    def far(self) -> str:
        """Return the text that only theta_B sees."""
        return self.sample.context[self.start : self.border]

    @property
    def near(self) -> str:
        """Return the text that both see."""
        return self.sample.context[self.border :]


def words(text: str) -> set[str]:
    """Return the words of a text, in lower case."""
    return {*_WORD.findall(text.lower())}


def drawn(ids: Sequence[str], count: int = DRAWN) -> list[str]:
    """Return the first `count` ids in an order by their hash, which other samples do not change."""
    return sorted(ids, key=lambda name: (uniform(name, 0), name))[:count]


class Words:
    """The words of samples, and how much of each response is in far text. One sample is known by its place."""

    def __init__(self, shown: Sequence[DrawnSample]) -> None:
        self.far = [words(each.far) for each in shown]
        near = [words(each.near) for each in shown]
        holding = Counter(word for far, other in zip(self.far, near, strict=True) for word in far | other)
        rarity = {word: math.log((len(shown) + 1) / (count + 1)) for word, count in holding.items()}
        self._unknown = math.log(len(shown) + 1)
        self._rarity, self.asked = rarity, []
        for each, known in zip(shown, near, strict=True):
            response = words(each.sample.response) - words(each.sample.instruction)
            self.asked.append((response, response - known))

    def weight(self, some: set[str]) -> float:
        """Return the sum of log((n + 1) / (m + 1)) of words that m of the n contexts hold."""
        return math.fsum(self._rarity.get(word, self._unknown) for word in some)

    def from_far(self, place: int, other: int) -> float:
        """Return the weight of the response's words that another sample's far text holds, and the near text lacks."""
        return self.weight(self.asked[place][1] & self.far[other])

    def needs_far(self, place: int) -> bool:
        """Return whether a sample's words say that it needs far text."""
        own, whole = self.from_far(place, place), self.weight(self.asked[place][0])
        if own <= 0 or own < LEAST_SHARE * whole:
            return False
        as_much = sum(self.from_far(place, other) >= own for other in range(len(self.far)) if other != place)
        return 1 + as_much <= CHANCE * len(self.far)


def exchanged(shown: Sequence[DrawnSample], place: int, by_words: Words) -> Sample:
    """Return a sample whose far text is replaced by as much of that of others, without the words of its response.

    The others follow it in the order of `shown`. Those that hold words of its response come last.
    """
    own = shown[place]
    others = [other % len(shown) for other in range(place + 1, place + len(shown))]
    others = [other for other in others if shown[other].sample.context != own.sample.context]
    others.sort(key=lambda other: by_words.from_far(place, other) > 0)
    text = ""
    for other in others:
        text += shown[other].far + "\n\n"
        if len(text) > len(own.far):
            break
    return replace(own.sample, context=text[-len(own.far) :] + own.near, conversation="")
