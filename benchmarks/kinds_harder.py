"""The design's harder set (section 5): near facts with something misleading far away, far facts among other things."""

from functools import partial

from common_asking import other_values, recall
from common_kind import Maker, Parts, kind
from common_page import Page

from gateau_dagster.demo.language import (
    NOUNS,
    SENTENCE_WORDS,
    fact_words,
    noisy_response,
    pick,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)

_WRONG = 3  # statements of other values
_TALE = 4  # sentences around a diluted answer


def _near_repeated_far(page: Page) -> Parts:
    (fact,) = page.take(1)
    page.state(page.near_slot(), fact_words(fact))
    page.state(page.far_slot(), fact_words(fact))
    page.distract()
    return recall(page, [fact])


def _near_wrong_far(page: Page) -> Parts:
    (fact,) = page.take(1)
    page.state(page.near_slot(), fact_words(fact))
    page.state_facts(other_values(page, fact, _WRONG), far=True)
    page.distract()
    return recall(page, [fact])


def _noise(*, far: bool) -> Maker:
    def make(page: Page) -> Parts:
        facts = page.take(int(page.rng.integers(1, 3)))
        page.state_facts(facts, far=far)
        page.distract()
        response = [*recall_response(facts), *noisy_response(page.rng, SENTENCE_WORDS)]
        return Parts(context=page.text(), instruction=recall_instruction(facts), response=response)

    return make


def _far_copies(page: Page) -> Parts:
    (fact,) = page.take(1)
    for slot in page.far_slots():
        page.state(slot, fact_words(fact))
    page.distract()
    return recall(page, [fact])


def _stale_values(page: Page) -> Parts:
    (fact,) = page.take(1)
    (stale,) = other_values(page, fact, 1)
    for slot, each in zip(page.far_slots(), (stale, fact), strict=True):
        page.state(slot, fact_words(each))
    page.distract()
    return recall(page, [fact])


def _dilution(*, far: bool) -> Maker:
    def make(page: Page) -> Parts:
        facts = page.take(1)
        page.state_facts(facts, far=far)
        page.distract()
        noun = pick(page.rng, NOUNS)
        return Parts(
            context=page.text(),
            instruction=[*tell_instruction(noun), *recall_instruction(facts)],
            response=[*tell_response(page.rng, noun, _TALE), *recall_response(facts)],
        )

    return make


_kind = partial(kind, "harder")
HARDER = (
    _kind("near_repeated_far", False, "The fact stands far away too, but the near copy is enough.", _near_repeated_far),
    _kind("near_wrong_far", False, "The near value is asked for; the far context states others.", _near_wrong_far),
    _kind("near_noise", False, "A near fact, then random words that nothing foretells.", _noise(far=False)),
    _kind("near_dilution", False, "A near fact behind four sentences that need no context.", _dilution(far=False)),
    _kind("far_copies", True, "The fact stands twice, both times far away.", _far_copies),
    _kind("stale_values", True, "Two far values of one attribute; the later one is asked for.", _stale_values),
    _kind("dilution", True, "A far fact behind four sentences that need no context.", _dilution(far=True)),
    _kind("far_noise", True, "Far facts, then random words that nothing foretells.", _noise(far=True)),
)
