"""Words that say what a sample needs, the exchange of far texts, and the interval of an AUROC, by slow twins."""

import math
import re
from random import Random

import numpy as np
import pytest

from gateau_dagster.data.sample import Sample
from gateau_dagster.features.control.design import CHANCE, LEAST_SHARE, DrawnSample, Words, drawn, exchanged
from gateau_dagster.selection.statistics import auroc, auroc_interval


def shown(seed: int, count: int = 40) -> list[DrawnSample]:
    """Samples of words of which some are rare; half of the responses hold words of their far text."""
    rng, found = Random(seed), []
    for number in range(count):
        text = [f"w{min(rng.randrange(300), rng.randrange(300))}" for _ in range(60)]
        far, near = " ".join(text[:40]) + " ", " ".join(text[40:])
        taken = rng.sample(text[:40] if number % 2 else text[40:], 3) + [f"w{rng.randrange(300)}" for _ in range(2)]
        context = f"unseen {far}{near}"
        found.append(
            DrawnSample(
                sample=Sample(
                    sample_id=f"s{number}",
                    source="",
                    context=context,
                    instruction=f"ask W{rng.randrange(300)}",
                    response=" ".join(taken),
                ),
                start=7,
                border=7 + len(far),
            )
        )
    return found


def slow_needs_far(samples: list[DrawnSample], place: int) -> bool:
    """The definition of the module's docstring, word by word."""

    def split(text: str) -> set[str]:
        return set(re.findall(r"\w+", text.lower()))

    def rarity(word: str) -> float:
        holding = sum(word in split(each.far) | split(each.near) for each in samples)
        return math.log((len(samples) + 1) / (holding + 1))

    one = samples[place]
    asked = split(one.sample.response) - split(one.sample.instruction)

    def held(other: DrawnSample) -> float:
        return math.fsum(rarity(word) for word in asked if word in split(other.far) and word not in split(one.near))

    own, whole = held(one), math.fsum(map(rarity, asked))
    as_much = [other for other in samples if other is not one and held(other) >= own]
    return own > 0 and own >= LEAST_SHARE * whole and (1 + len(as_much)) / len(samples) <= CHANCE


@pytest.mark.parametrize("seed", range(3))
def test_words_say_what_the_definition_says(seed: int) -> None:
    samples = shown(seed)
    by_words = Words(samples)
    found = [by_words.needs_far(place) for place in range(len(samples))]
    assert found == [slow_needs_far(samples, place) for place in range(len(samples))]
    assert 5 < sum(found[1::2]) > 3 * sum(found[::2]), "words of the far text, not of the near one"


def test_an_exchange_changes_far_text_only_and_removes_what_the_response_is_worded_as() -> None:
    samples = shown(0)
    by_words, words_of = Words(samples), lambda text: {*text.split()}
    for place, own in enumerate(samples):
        other = exchanged(samples, place, by_words)
        assert other.context.endswith(own.near) and len(other.context) == len(own.far) + len(own.near)
        assert (other.instruction, other.response) == (own.sample.instruction, own.sample.response)
        assert other.digest != own.sample.digest
        only_far = words_of(own.sample.response) - words_of(own.near) - words_of(other.instruction.lower())
        assert not only_far & words_of(other.context.removesuffix(own.near))


def test_other_samples_change_no_order_of_the_draw() -> None:
    names = [f"s{number}" for number in range(50)]
    some = names[::3]
    assert drawn(some) == [name for name in drawn(names) if name in {*some}] != some
    assert drawn(names[::-1], 5) == drawn(names)[:5]


def test_the_interval_solves_its_equation_and_covers() -> None:
    for value, one, two in ((0.9, 20, 30), (0.5, 8, 8), (1.0, 25, 30), (0.0, 9, 40)):
        low, high = auroc_interval(value, one, two)
        assert low <= value <= high and high - low > 0.03
        for theta in {low, high} - {0.0, 1.0}:
            more = (one + two) / 2 - 1
            variance = theta * (1 - theta) * (1 + more * (1 - theta) / (2 - theta) + more * theta / (1 + theta))
            assert abs(value - theta) == pytest.approx(1.96 * math.sqrt(variance / one / two), abs=1e-4)
    rng, labels = np.random.default_rng(0), [True] * 20 + [False] * 25
    for shift in (0.0, 1.0, 2.5):
        truth = 0.5 + math.erf(shift / 2) / 2
        draws = (np.concatenate([rng.normal(shift, 1, 20), rng.normal(0, 1, 25)]) for _ in range(300))
        intervals = [auroc_interval(auroc(draw, labels), 20, 25) for draw in draws]
        assert sum(low <= truth <= high for low, high in intervals) >= 0.92 * len(intervals)
