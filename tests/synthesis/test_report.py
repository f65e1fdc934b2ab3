"""The report shows the yield of synthetic samples by kind, length and reason, and where their evidence is."""

from pathlib import Path

import polars as pl

from gateau_dagster.report.further import evidence_map, shown_candidates, synthesis_section
from tests.synthesis.test_checks import ROWS, WordModel, checking, tables


def test_the_yield_and_the_shown_samples(tmp_path: Path) -> None:
    questions, _ = given = tables(*ROWS.values(), *[{}] * 20)
    work, _ = checking(tmp_path, WordModel())
    checked = work.table(*given)
    shown = shown_candidates(checked)
    assert shown["accepted"].sum() == 10 and shown.height == 10 + len(ROWS) - 1
    texts = questions.select("sample_id", "question", "answer", "evidence")
    places = pl.DataFrame({"positions": [[{"start": 0, "end": 9}, {"start": 50, "end": 60}]], "characters": [100]})
    section = synthesis_section(checked, shown.join(texts, on="sample_id").join(places, how="cross"))
    by_kind, by_length, reasons, accepted, refused = (each.frame for each in section.tables)
    for each in (by_kind, by_length):
        assert (each["candidates"].sum(), each["accepted"].sum()) == (checked.height, checked["accepted"].sum())
    assert reasons["candidates"].sum() == checked.height - checked["accepted"].sum()
    assert {*refused["reason"]} == {*ROWS} - {""} and accepted.height == 10
    assert accepted["map"][0].startswith("1···········2···········"), "at 0 and 50 of 100 characters"


def test_a_map_without_a_context_is_empty() -> None:
    row = {"positions": None, "characters": None, "passage_gains": None}
    assert evidence_map(row) == ""
