"""Which samples are shown, and with what."""

import polars as pl
import pytest

from gateau_dagster.report.build import SampleCard, sample_cards
from gateau_dagster.report.inputs import ReportInputs

from .builders import inputs, page_of, raw, scores


def all_cards(given: ReportInputs) -> list[SampleCard]:
    found = sample_cards(given)
    return found.top + found.bottom


@pytest.mark.parametrize(("count", "sizes"), [(1, (1, 0)), (2, (1, 1)), (5, (3, 2)), (20, (10, 10)), (50, (10, 10))])
def test_no_sample_is_shown_twice(count: int, sizes: tuple[int, int]) -> None:
    found = sample_cards(inputs(count))
    top, bottom = found.top, found.bottom
    assert (len(top), len(bottom)) == sizes
    assert len({card.sample_id for card in top + bottom}) == sum(sizes)
    assert [card.rank for card in top] == list(range(1, sizes[0] + 1))
    assert [card.rank for card in bottom] == list(range(count - sizes[1] + 1, count + 1))


def test_a_card_holds_the_sample_s_own_texts_and_scores() -> None:
    given = inputs(30)
    texts = {row["sample_id"]: row for row in raw(30).iter_rows(named=True)}
    assert given.combined_scores is not None
    rows = {row["sample_id"]: row for row in given.combined_scores.iter_rows(named=True)}
    for card in all_cards(given):
        text, row = texts[card.sample_id], rows[card.sample_id]
        assert text["context"].startswith(card.context.start)
        assert text["context"].endswith(card.context.end)
        assert card.context.left_out == len(text["context"]) - 1400
        assert (card.instruction.start, card.response.start) == (text["instruction"], text["response"])
        assert (card.score, dict(card.facts)["HMP"]) == (row["score"], row["hmp"])
        assert dict(card.ranks) == {preset: row[f"rank_{preset}"] for preset in ("paper", "official", "robust")}
        assert card.terms is not None and card.terms.score == row["score"]
        assert card.far == (text["source"] == "far")
        assert card.selected == (row["rank"] <= 3)


def test_a_null_cas_stays_none() -> None:
    top = sample_cards(inputs(5, combined_scores=scores(5, segments=1))).top
    assert dict(top[0].facts)["CAS"] is None


def test_the_part_of_a_context_that_no_model_saw_is_struck_out() -> None:
    unseen = pl.DataFrame({"sample_id": ["s000000", "s000002"], "unseen": [0.99, 0.1]})
    given = inputs(5, unseen=unseen)
    cards = {card.sample_id: card.context for card in all_cards(given)}
    text = {row["sample_id"]: row["context"] for row in raw(5).iter_rows(named=True)}
    nearly_all, little = cards["s000000"], cards["s000002"]
    assert nearly_all.unseen == round(0.99 * len(text["s000000"]))
    assert (nearly_all.unseen_start, nearly_all.start) == (text["s000000"][:700], "")
    assert text["s000000"].endswith(nearly_all.unseen_end + nearly_all.end) and nearly_all.end.endswith("end 0")
    assert text["s000002"].startswith(little.unseen_start + little.start) and little.start and not little.unseen_end
    assert not any(card.unseen for name, card in cards.items() if name not in {"s000000", "s000002"})
    page = page_of(given)
    assert len(page.attributes("del")) == 3, "two ends, and one"
    assert page.text("samples").count("No model saw about the first") == 2
    assert "No model saw" not in page_of(inputs(5)).text()
