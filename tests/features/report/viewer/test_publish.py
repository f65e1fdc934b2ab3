"""What the page knows of all samples, against the tables that it is made from; the files that hold it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.features.report.viewer.publish import DataFiles, as_json, as_script
from gateau_dagster.storage.files import Files
from tests.features.report.builders import inputs, raw
from tests.features.report.viewer.builders import content_of, index_of, method_scores, write_viewer
from tests.kit.project import configured

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
    given = configured(selection={"method": "length"})
    scores = method_scores(inputs(9), "length")
    found = replace(inputs(9), config=given, combined_scores=None, method_scores=scores["length"])
    index = index_of(write_viewer(tmp_path, found, scores))
    assert index["unit"] == "bytes"
    assert index["context"] == raw(9)["context"].str.len_bytes().to_list()


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_only_what_is_new_is_written_and_only_what_is_old_is_removed(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path) if place == "disk" else f"s3://{request.getfixturevalue('bucket')}/store"
    files = Files(root)
    first = DataFiles(files)
    kept, old = first.put("index", [1]), first.put("index", [2])
    first.write("samples-0.js", ["text"])
    first.remove_others()
    assert files.names("explore") == sorted([kept, old, "samples-0.js"])

    times = {name: files.filesystem.modified(files.address(f"explore/{name}")) for name in (kept, "samples-0.js")}
    second = DataFiles(files, first.versions())
    assert not second.keep("samples-0.js", "samples-1.js"), "one of them is missing"
    assert second.put("index", [1]) == kept
    new = second.put("index", [3])
    assert {kept, old, new} <= {*files.names("explore")}, "the page of before still has its files"
    second.remove_others()
    assert files.names("explore") == sorted([kept, new, "samples-0.js"])
    assert times == {name: files.filesystem.modified(files.address(f"explore/{name}")) for name in times}


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_a_damaged_file_is_written_again_and_one_of_unknown_content_too(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    files = Files(str(tmp_path) if place == "disk" else f"s3://{request.getfixturevalue('bucket')}/store")
    first = DataFiles(files)
    name = first.put("index", ["text"])
    first.write("samples-0.js", ["text"])
    written, whole = first.versions(), {each: files.read(f"explore/{each}") for each in (name, "samples-0.js")}
    for damage in (b"", whole[name][:-1], whole[name].replace(b"text", b"tex4")):
        files.write(f"explore/{name}", damage)
        second = DataFiles(files, written)
        assert second.keep("samples-0.js") and not second.keep(name)
        assert second.put("index", ["text"]) == name and second.versions() == written
        assert {each: files.read(f"explore/{each}") for each in whole} == whole
    assert not DataFiles(files).keep("samples-0.js"), "no stamp says what it held"


@pytest.mark.parametrize(
    "text", ["</script><script>x()", "<!--<script>", "\u2028\u2029", "'\"\\`${x}", "żółć 漢字 \x00"]
)
def test_text_ends_no_script_and_comes_back(text: str) -> None:
    found = as_json([text])
    assert json.loads(found) == [text]
    assert not {"<", "\u2028", "\u2029"} & {*found}


def test_what_is_no_number_in_json_is_refused() -> None:
    with pytest.raises(ValueError):
        as_script("a.js", [float("nan")])
