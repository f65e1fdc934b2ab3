"""What kinds of several groups ask for: facts of a page, other values of a fact, values in the order of statement."""

from common_kind import Maker, Parts
from common_page import Page

from gateau_dagster.demo.language import VALUES, Fact, fact_words, recall_instruction, recall_response


def recall(page: Page, facts: list[Fact]) -> Parts:
    """The question for these facts and its answer, in the order of asking."""
    return Parts(context=page.text(), instruction=recall_instruction(facts), response=recall_response(facts))


def other_values(page: Page, fact: Fact, count: int) -> list[Fact]:
    """The same attribute with `count` different other values."""
    others = [value for value in VALUES[fact.attribute] if value != fact.value]
    return [Fact(attribute=fact.attribute, value=others[index]) for index in page.rng.permutation(len(others))[:count]]


def ordered(*, stated: int, asked: int, far: bool) -> Maker:
    """`stated` of the eight values of an attribute stand in the context; the first `asked` are the answer, in order."""
    assert 1 <= asked <= stated <= 8

    def make(page: Page) -> Parts:
        (fact,) = page.take(1)
        values = VALUES[fact.attribute]
        facts = [Fact(attribute=fact.attribute, value=values[index]) for index in page.rng.permutation(8)[:stated]]
        slots = sorted(page.far_slot() if far else page.near_slot() for _ in facts)
        for slot, each in zip(slots, facts, strict=True):
            page.state(slot, fact_words(each))
        page.distract()
        return recall(page, facts[:asked])

    return make
