"""What the page knows of all samples, against the tables that it is made from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.report.inputs import ReportInputs
from tests.explore.builders import content_of, index_of, method_scores, write_viewer
from tests.report.builders import config, inputs, raw

COUNT = 130


@pytest.fixture(scope="module")
def given() -> ReportInputs:
    unseen = pl.DataFrame({"sample_id": ["s000004"], "unseen": [0.25]})
    rejected = {"cam": pl.DataFrame({"sample_id": ["s000007", "gone"], "reason": ["too long\x07", "?"]})}
    scored = inputs(COUNT).combined_scores
    assert scored is not None
    return inputs(
        COUNT, unseen=unseen, rejected=rejected, reserved=["s000009"],
        combined_scores=scored.filter(pl.col("sample_id") != "s000007"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(given: ReportInputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_viewer(tmp_path_factory.mktemp("viewer"), given, method_scores(given, "ladm"))


@pytest.fixture(scope="module")
def index(page: Path) -> dict[str, Any]:
    return index_of(page)


def test_lengths_sources_and_marks(index: dict[str, Any], given: ReportInputs) -> None:
    row = {sample_id: number for number, sample_id in enumerate(index["ids"])}
    samples = raw(COUNT)
    assert index["ids"] == samples["sample_id"].to_list()
    assert [index["sources"][place] for place in index["source"]] == samples["source"].to_list()
    assert given.combined_scores is not None
    for sample_id, context, response in given.combined_scores.select(
        "sample_id", "context_tokens", "response_tokens"
    ).iter_rows():
        assert (index["context"][row[sample_id]], index["response"][row[sample_id]]) == (context, response)
    assert index["context"][row["s000007"]] is None
    assert {index["ids"][number] for number in index["selected"]} == {*given.selected_subset["sample_id"]}
    assert [index["ids"][number] for number in index["far"]] == samples.filter(source="far")["sample_id"].to_list()
    assert (index["reserved"], index["unseen"]) == ([row["s000009"]], [[row["s000004"], 0.25]])


def test_ranks_and_scores_by_row(index: dict[str, Any], page: Path, given: ReportInputs) -> None:
    assert given.combined_scores is not None
    columns = content_of(page.parent / "explore" / index["rankings"][0]["file"])
    known = {one: (rank, score) for one, rank, score in given.combined_scores["sample_id", "rank", "score"].iter_rows()}
    for sample_id, rank, score in zip(index["ids"], columns["rank"], columns["score"], strict=True):
        assert rank == known.get(sample_id, (0, None))[0]
        assert score == (pytest.approx(known[sample_id][1], rel=1e-5) if sample_id in known else None)
    assert index["rankings"][0]["scored"] == COUNT - 1


def test_each_row_is_found_on_its_page(index: dict[str, Any], page: Path) -> None:
    found = []
    for shard in index["shards"]:
        parts = [content_of(page.parent / "explore" / name) for name in shard["pages"]]
        assert all(len(part) <= index["page_rows"] for part in parts)
        assert sum(map(len, parts)) == shard["rows"] == len(content_of(page.parent / "explore" / shard["openings"]))
        found += [one["instruction"] for part in parts for one in part]
    assert found == raw(COUNT)["instruction"].to_list()


def test_why_samples_were_turned_down(index: dict[str, Any], page: Path) -> None:
    assert content_of(page.parent / "explore" / index["rejected"]) == [[7, "cam", "too long\ufffd"]]


def test_lengths_in_bytes_where_no_model_counts(tmp_path: Path) -> None:
    given = config(selection={"method": "length"})
    scores = method_scores(inputs(9), "length")
    found = replace(inputs(9), config=given, combined_scores=None, method_scores=scores["length"])
    index = index_of(write_viewer(tmp_path, found, scores))
    assert index["unit"] == "bytes"
    assert index["context"] == raw(9)["context"].str.len_bytes().to_list()
