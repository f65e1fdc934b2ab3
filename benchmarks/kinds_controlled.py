"""Kinds in which one thing is varied: number of facts, distance, distractors, repetition, the response's words."""

from functools import partial
from itertools import cycle, islice

from common_asking import ordered, recall
from common_kind import Maker, Parts, kind
from common_page import Page

from gateau_dagster.demo.language import (
    FILLER_WORDS,
    NOUNS,
    fact_words,
    pick,
    recall_instruction,
    recall_response,
    sentences,
    tell_instruction,
    tell_response,
)

_EVERY = 12  # sentences between the copies of a fact that is stated everywhere
_BLOCK = 3  # sentences that a repetitive context repeats


def _facts(count: int, *, far: bool, distractors: int | None = None) -> Maker:
    def make(page: Page) -> Parts:
        facts = page.take(count)
        page.state_facts(facts, far=far)
        page.distract(distractors)
        return recall(page, facts)

    return make


def _at(distance: int) -> Maker:
    def make(page: Page) -> Parts:
        (fact,) = page.take(1)
        page.distract()
        context = page.text_with(fact_words(fact), distance=distance)
        return Parts(context=context, instruction=recall_instruction([fact]), response=recall_response([fact]))

    return make


def _at_start(page: Page) -> Parts:
    (fact,) = page.take(1)
    page.state(0, fact_words(fact))
    page.distract()
    return recall(page, [fact])


def _in_instruction(page: Page) -> Parts:
    (fact,) = page.take(1)
    page.distract()
    instruction = [*fact_words(fact), *recall_instruction([fact])]
    return Parts(context=page.text(), instruction=instruction, response=recall_response([fact]))


def _absent(page: Page) -> Parts:
    facts = page.take(int(page.rng.integers(1, 4)))
    page.distract()
    return recall(page, facts)


def _long_tale(page: Page) -> Parts:
    page.distract()
    noun = pick(page.rng, NOUNS)
    return Parts(context=page.text(), instruction=tell_instruction(noun), response=tell_response(page.rng, noun, 4))


def _rare_words(page: Page) -> Parts:
    """Sentences in which every second word that carries meaning is a value that stands nowhere in the context."""
    page.distract()
    noun = pick(page.rng, NOUNS)
    response = tell_response(page.rng, noun, 2)
    carrying = [place for place, word in enumerate(response) if word in FILLER_WORDS][1::2]
    for place, fact in zip(carrying, page.take(len(carrying)), strict=True):
        response[place] = fact.value
    return Parts(context=page.text(), instruction=tell_instruction(noun), response=response)


def _repeating(page: Page) -> list[list[str]]:
    """Makes the filler a block of sentences over and over; returns the block."""
    block = list(islice(sentences(page.rng), _BLOCK))
    page.filler = cycle(block)
    return block


def _repetitive(page: Page) -> Parts:
    block = _repeating(page)
    page.distract()
    chosen = block[int(page.rng.integers(_BLOCK))]
    return Parts(context=page.text(), instruction=tell_instruction(chosen[1]), response=list(chosen))


def _repetitive_far(page: Page) -> Parts:
    _repeating(page)
    facts = page.take(1)
    page.state_facts(facts, far=True)
    page.distract()
    return recall(page, facts)


def _everywhere(page: Page) -> Parts:
    (fact,) = page.take(1)
    for slot in range(page.sentence_count - 2, -1, -_EVERY):
        page.state(slot, fact_words(fact))
    page.distract()
    return recall(page, [fact])


_kind = partial(kind, "controlled")
_FAR = "The values stand only where theta_A cannot see them."
_NEAR = "The values stand in the last sentences of the context."
CONTROLLED = (
    *(_kind(f"far_count_{count}", True, _FAR, _facts(count, far=True)) for count in (1, 3, 6)),
    *(_kind(f"near_count_{count}", False, _NEAR, _facts(count, far=False)) for count in (1, 3, 6)),
    _kind("near_at_100", False, "The value is 100 tokens before the end, within theta_A's 256.", _at(100)),
    _kind("near_at_190", False, "The value is 190 tokens before the end, within theta_A's 256.", _at(190)),
    _kind(
        "far_at_280",
        True,
        "The value is just out of theta_A's sight, in a segment that theta_A sees a part of.",
        _at(280),
    ),
    _kind("far_at_450", True, _FAR, _at(450)),
    _kind("far_at_start", True, "The value is the first thing in the context.", _at_start),
    _kind("far_among_0", True, _FAR, _facts(1, far=True, distractors=0)),
    _kind("far_among_24", True, _FAR, _facts(1, far=True, distractors=24)),
    _kind("near_among_0", False, _NEAR, _facts(1, far=False, distractors=0)),
    _kind("near_among_24", False, _NEAR, _facts(1, far=False, distractors=24)),
    _kind("local_only", False, "The instruction itself states what it asks for.", _in_instruction),
    _kind("absent", False, "What is asked for stands nowhere: no context helps.", _absent),
    _kind("long_tale", False, "Four sentences of the language about a noun; the context is not needed.", _long_tale),
    _kind("rare_words", False, "The response's rare words stand nowhere in the context.", _rare_words),
    _kind("repetitive", False, "The response repeats a sentence that every part of the context repeats.", _repetitive),
    _kind("repetitive_far", True, "The filler repeats itself, but the value stands only far away.", _repetitive_far),
    _kind("stated_everywhere", False, "The fact stands in every part of the context, the last included.", _everywhere),
    _kind(
        "ordered_values",
        True,
        "Three values of one attribute, all far, are asked for in the order of their statement.",
        ordered(stated=3, asked=3, far=True),
        within_reach=False,
    ),
    _kind(
        "ordered_values_near",
        False,
        "Three values of one attribute in the last sentences, asked for in the order of their statement.",
        ordered(stated=3, asked=3, far=False),
        within_reach=False,
    ),
)
