"""GATEAU and its halves are columns of `combined_scores`; without the normalisation of Eq. 2 against plain loops."""

import math
from typing import Any

import polars as pl
import pytest

from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.selection.combine import combine
from tests.methods.configured import configured, scores_of
from tests.selection.tables_in_test import cam_table, perplexity_table

SHORT, LONG, CAS = [9.0, 4.0, 30.0, 2.5], [3.0, 3.9, 29.0, 2.5], [0.2, None, 0.9, 0.4]


def scores(preset: str = "paper") -> pl.DataFrame:
    segments = [[2.0, 3.0], [2.0], [5.0, 4.0, 6.0], [2.0, 2.0]]
    tables = (perplexity_table(SHORT), perplexity_table(LONG), cam_table(segments, CAS))
    return combine(*tables, preset=preset, alpha=0.7)  # pyright: ignore[reportArgumentType]


def run(name: str, preset: str = "paper", **options: Any) -> dict[str, Any]:
    return scores_of(name, {"combined_scores": scores()}, options=options, alpha=0.7, preset=preset)


@pytest.mark.parametrize(("name", "kind"), [("gateau", "score"), ("hmg", "hmp"), ("cam", "cas")])
@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
def test_a_column_of_the_preset(name: str, kind: str, preset: str) -> None:
    expected = dict(scores().select("sample_id", f"{kind}_{preset}").iter_rows())
    assert run(name, preset) == expected


def test_a_half_has_the_preset_of_the_selection_or_one_of_its_own() -> None:
    stored = {"combined_scores": scores()}
    own = scores_of("hmg", stored, options={"preset": "robust"}, preset="paper")
    assert own == run("hmg", "robust") != run("hmg", "paper")


def test_gateau_that_chooses_has_the_preset_of_the_selection() -> None:
    reason = r"options.gateau.preset: paper, but selection.preset is robust.*: set selection.preset: paper"
    with pytest.raises(ValueError, match=reason):
        configured(options={"gateau": {"preset": "paper"}})
    configured(options={"gateau": {"preset": "paper"}}, preset="paper")
    compared = configured(method="hmg", compare=["gateau"], options={"gateau": {"preset": "paper"}})
    assert chosen_methods(compared)["gateau"].reads() == {"combined_scores": ["sample_id", "score_paper"]}


def test_a_sample_without_cas_has_no_score_by_cam_alone() -> None:
    assert run("cam")["s1"] is None


def test_unnormalised_against_plain_loops() -> None:
    hmp = [short - long for short, long in zip(SHORT, LONG, strict=True)]
    total = math.fsum(math.exp(value) for value in hmp)
    known = [value for value in CAS if value is not None]
    cas_total = math.fsum(math.exp(value) for value in known)
    for index, cas in enumerate(CAS):
        term = -1.0 if cas is None else 0.3 * math.exp(cas) / cas_total
        expected = 0.7 * math.exp(hmp[index]) / total + term
        assert run("gateau_unnormalised")[f"s{index}"] == pytest.approx(expected, rel=1e-12)
