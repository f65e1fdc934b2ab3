"""GATEAU and its halves are columns of `combined_scores`; without the normalisation of Eq. 2 against plain loops."""

import math
from typing import Any

import polars as pl
import pytest

from gateau_dagster.selection.combine import combine
from tests.methods.configured import scores_of
from tests.selection.tables_in_test import cam_table, perplexity_table

SHORT, LONG, CAS = [9.0, 4.0, 30.0, 2.5], [3.0, 3.9, 29.0, 2.5], [0.2, None, 0.9, 0.4]


def scores(preset: str = "paper") -> pl.DataFrame:
    segments = [[2.0, 3.0], [2.0], [5.0, 4.0, 6.0], [2.0, 2.0]]
    tables = (perplexity_table(SHORT), perplexity_table(LONG), cam_table(segments, CAS))
    return combine(*tables, preset=preset, alpha=0.7)  # pyright: ignore[reportArgumentType]


def run(name: str, **options: Any) -> dict[str, float | None]:
    return scores_of(name, {"combined_scores": scores()}, options=options, alpha=0.7, preset="paper")


@pytest.mark.parametrize(("name", "kind"), [("gateau", "score"), ("hmg", "hmp"), ("cam", "cas")])
@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
def test_a_column_of_the_preset(name: str, kind: str, preset: str) -> None:
    expected = dict(scores().select("sample_id", f"{kind}_{preset}").iter_rows())
    assert run(name, preset=preset) == expected


def test_the_preset_of_the_selection_is_the_default() -> None:
    assert run("hmg") == run("hmg", preset="paper") != run("hmg", preset="robust")


def test_a_sample_without_cas_has_no_score_by_cam_alone() -> None:
    assert run("cam", preset="paper")["s1"] is None


def test_unnormalised_against_plain_loops() -> None:
    hmp = [short - long for short, long in zip(SHORT, LONG, strict=True)]
    total = math.fsum(math.exp(value) for value in hmp)
    known = [value for value in CAS if value is not None]
    cas_total = math.fsum(math.exp(value) for value in known)
    for index, cas in enumerate(CAS):
        term = -1.0 if cas is None else 0.3 * math.exp(cas) / cas_total
        expected = 0.7 * math.exp(hmp[index]) / total + term
        assert run("gateau_unnormalised")[f"s{index}"] == pytest.approx(expected, rel=1e-12)
