"""What a judge said beside the benchmarks, and questions that stand in the data, as figures and on the page."""

import numpy as np
import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.features.evaluation.contamination import OVERLAPS, UNTOUCHED
from gateau_dagster.features.evaluation.judging.characteristics import CHARACTERISTICS
from gateau_dagster.features.evaluation.judging.judge_answers import PAIRWISE
from gateau_dagster.features.report.build import _environment
from gateau_dagster.features.report.further import (
    FurtherSection,
    characteristics_section,
    contamination_section,
    pairwise_section,
)

RATED = [("s1", "best", "coherence", 4.0), ("s2", "best", "coherence", None), ("s3", "worst", "coherence", 1.5)]
MATCHES = [
    ("a", "b", "q1", 0, 1.0, 1.0, "win"),
    ("a", "b", "q2", 0, 1.0, 0.0, "tie"),
    ("a", "b", "q3", 0, None, 0.0, None),
]


def _rows(section: FurtherSection, place: int = 0) -> list[dict]:
    table = section.tables[place]
    return table.frame.select([*table.columns]).to_dicts()


def _html(*sections: FurtherSection) -> str:
    return _environment().get_template("further.html.j2").render(further=sections, pictures={})


def test_characteristics_are_means_of_both_ends() -> None:
    section = characteristics_section(pl.DataFrame(RATED, schema=tables.schema(CHARACTERISTICS), orient="row"))
    rows = {row["characteristic"]: row for row in _rows(section)}
    assert rows["coherence"] == {"characteristic": "coherence", "best": 4.0, "worst": 1.5, "difference": 2.5}
    assert len(rows) == 5 and rows["necessity"]["best"] is None
    (figure,) = section.figures
    assert figure.name == "characteristics"
    (axis,) = figure.draw().axes
    best, worst = axis.lines
    (good, above), (bad, below) = (np.ravel(line.get_xydata()) for line in (best, worst))
    assert (good, bad) == (4.0, 1.5) and above > below
    assert [text.get_text() for text in axis.get_yticklabels()][-1] == "coherence", "the first stands above"
    assert "1 rating " in " ".join(section.sentences) and "coherence" in _html(section)


def test_pairs_are_counted_and_a_judge_s_bias_is_told() -> None:
    section = pairwise_section({"chat": pl.DataFrame(MATCHES, schema=tables.schema(PAIRWISE), orient="row")})
    (row,) = _rows(section)
    assert (row["benchmark"], row["model"], row["against"]) == ("chat", "a", "b")
    assert [row[name] for name in ("won", "tied", "lost", "unreadable")] == [1, 1, 0, 1]
    assert (row["consistent"], row["bias"]) == (0.5, 0.5) and len(section.sentences) == 3
    assert ">chat<" in _html(section)
    (figure,) = section.figures
    (axis,) = figure.draw().axes
    assert figure.name == "pairwise/chat" and [text.get_text() for text in axis.get_yticklabels()] == ["a – b"]
    widths = [100 * bar.get_window_extent().width / axis.bbox.width for bar in axis.patches]
    assert widths == pytest.approx([50, 50, 0]), "won, tied, lost; the unreadable one left out"


def test_without_a_pair_there_is_no_figure() -> None:
    assert not pairwise_section({}).figures


@pytest.fixture
def compared() -> tuple[pl.DataFrame, pl.DataFrame]:
    """The experiment's table, and that without the questions in the data."""
    blank = dict.fromkeys(tables.schema(UNTOUCHED))
    rows = [
        {**blank, "benchmark": "quiz", "variant": name, "value": value} for name, value in (("base", 50.0), ("b", 60.0))
    ]
    table = pl.DataFrame(rows, schema=tables.schema(UNTOUCHED))
    return table.drop("touched"), table.with_columns(pl.col("value") - 5, touched=pl.lit(2, dtype=pl.Int32))


def test_questions_in_the_data_are_named_with_what_they_change(compared: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    overlaps = [("s1", "q<1>", 9, 0.5, 0.1), ("s2", "q<1>", 9, 0.25, 0.9), ("s1", "q2", 3, 0.06, 0.0)]
    table = pl.DataFrame(overlaps, schema=tables.schema(OVERLAPS), orient="row")
    section = contamination_section({"quiz": table, "other": table.clear()}, *compared)
    assert _rows(section)[0] == {"benchmark": "quiz", "questions": 2, "samples": 2}
    assert _rows(section)[1]["questions"] == 0
    changes = [(row["variant"], row["all"], row["without"], row["change"]) for row in _rows(section, 1)]
    assert changes == [("base", 50.0, 45.0, -5.0), ("b", 60.0, 55.0, -5.0)]
    assert [row["question_id"] for row in _rows(section, 2)] == ["q<1>", "q2"]
    page = _html(section)
    assert "q&lt;1&gt;" in page and "q<1>" not in page and 'id="contamination"' in page


def test_where_none_stands_in_the_data_nothing_is_compared(compared: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    none = pl.DataFrame(schema=tables.schema(OVERLAPS))
    section = contamination_section({"quiz": none}, *compared)
    assert len(section.tables) == 1 and _rows(section) == [{"benchmark": "quiz", "questions": 0, "samples": 0}]
