"""Kinds built to break `far_gain`, which asks what the best single far segment adds; most have a near counterpart.

Beyond the embedded pair, whose training holds single facts of one form only: `two_hop`, whose
value gets a probability of 0.00 from theta_B, and `order_coded` (0.16; 0.12 is a guess), with `ordered_values` (0.25)
among the controlled kinds. Facts of the other kinds get 0.97 to 0.99, save where others contradict them: `paraphrased`
and `across_border` are no harder here, since a value belongs to one attribute and gives itself away without it. What
the pair cannot read, no score from this pair can be expected to find; the label says what the response needs.
"""

from collections.abc import Iterator
from functools import partial

from common_asking import ordered, other_values, recall
from common_kind import Maker, Parts, kind
from common_page import Page

from gateau_dagster.demo.language import (
    NOUNS,
    Fact,
    Words,
    fact_words,
    pick,
    recall_instruction,
    recall_response,
    sentences,
    tell_instruction,
    tell_response,
)

_ALIKE = 0.15  # of the sentences are about the noun that the response is about


def _two_hop(*, far: bool) -> Maker:
    """`note A B .` and `note B VALUE .`: the value of A is that of B."""

    def make(page: Page) -> Parts:
        asked, known = page.take(2)
        places = page.far_slots() if far else sorted((page.near_slot(), page.near_slot()))
        statements = [["note", asked.attribute, known.attribute, "."], fact_words(known)]
        for slot, index in zip(places, page.rng.permutation(2), strict=True):
            page.state(slot, statements[index])
        page.distract()
        return recall(page, [Fact(attribute=asked.attribute, value=known.value)])

    return make


def _paraphrased(*, far: bool) -> Maker:
    """`the VALUE of the ATTRIBUTE .`, a form in which the model has not seen facts."""

    def make(page: Page) -> Parts:
        (fact,) = page.take(1)
        slot = page.far_slot() if far else page.near_slot()
        page.state(slot, ["the", fact.value, "of", "the", fact.attribute, "."])
        page.distract()
        return recall(page, [fact])

    return make


def _across_border(page: Page) -> Parts:
    """`note ATTRIBUTE` ends a segment, `VALUE .` begins the next: neither says it alone."""
    (fact,) = page.take(1)
    page.distract()
    context = page.text_across(fact_words(fact), first=2)
    return Parts(context=context, instruction=recall_instruction([fact]), response=recall_response([fact]))


def _contradicted(page: Page) -> Parts:
    """A response that is wrong: the far context states another value."""
    (fact,) = page.take(1)
    (wrong,) = other_values(page, fact, 1)
    page.state_facts([fact], far=True)
    page.distract()
    return recall(page, [wrong])


def _alike(page: Page, noun: str) -> Iterator[Words]:
    """Filler in which a sentence about `noun` comes again and again."""
    ordinary = sentences(page.rng)
    while True:
        yield next(sentences(page.rng, noun)) if page.rng.random() < _ALIKE else next(ordinary)


def _look_alikes(page: Page) -> Parts:
    noun = pick(page.rng, NOUNS)
    page.filler = _alike(page, noun)
    page.distract()
    count = int(page.rng.integers(1, 3))
    return Parts(context=page.text(), instruction=tell_instruction(noun), response=tell_response(page.rng, noun, count))


def _far_look_alikes(page: Page) -> Parts:
    page.filler = _alike(page, pick(page.rng, NOUNS))
    facts = page.take(1)
    page.state_facts(facts, far=True)
    page.distract()
    return recall(page, facts)


_kind = partial(kind, "breaking")
BREAKING = (
    _kind(
        "two_hop",
        True,
        "Two far facts, in different segments, give the value together.",
        _two_hop(far=True),
        within_reach=False,
    ),
    _kind("two_hop_near", False, "Both facts stand in the last sentences.", _two_hop(far=False), within_reach=False),
    _kind("paraphrased", True, "The far context states the fact in another form.", _paraphrased(far=True)),
    _kind("paraphrased_near", False, "The last sentences state the fact in another form.", _paraphrased(far=False)),
    _kind(
        "order_coded",
        True,
        "The far context states all values; the first is asked for.",
        ordered(stated=8, asked=1, far=True),
        within_reach=False,
    ),
    _kind(
        "order_coded_near",
        False,
        "The last sentences state all values; the first is asked for.",
        ordered(stated=8, asked=1, far=False),
        within_reach=False,
    ),
    _kind("across_border", True, "A far fact that a segment border cuts in two.", _across_border),
    _kind("contradicted", False, "The response's value stands nowhere; the far context states another.", _contradicted),
    _kind("look_alikes", False, "Chance repetitions of what the response says; it needs no context.", _look_alikes),
    _kind("far_look_alikes", True, "Contexts as those of look_alikes, but a far value is asked for.", _far_look_alikes),
)
