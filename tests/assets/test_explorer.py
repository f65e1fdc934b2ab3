"""The viewer beside the report: every sample, only what changed written again, missed when it is lost."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.sample import shard_of
from gateau_dagster.storage.documents import document_stamp
from gateau_dagster.storage.files import Files
from tests.assets.harness import Pipeline
from tests.features.report.viewer.builders import content_of, index_of
from tests.kit.project import sample, write_samples
from tests.storage.builders import flipped

SAMPLES, SHARDS, CHANGED = 24, 4, 7


@pytest.fixture
def store(small: Pipeline) -> Path:
    return small.file.parent / "store"


def texts(store: Path) -> dict[str, Any]:
    """What the page shows of each sample, by id."""
    index = index_of(store / "explore.html")
    pages = [content_of(store / "explore" / name) for shard in index["shards"] for name in shard["pages"]]
    return dict(zip(index["ids"], [one for page in pages for one in page], strict=True))


def written(store: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (store / "explore").iterdir()}


def test_it_shows_every_sample_with_its_evidence(small: Pipeline, store: Path) -> None:
    raw, cam = small.state().read("raw_long_sft"), small.state().read("cam")
    found = texts(store)
    assert [*found] == raw["sample_id"].to_list() and len(found) == SAMPLES
    measured = {row["sample_id"]: row for row in cam.iter_rows(named=True)}
    for row in raw.iter_rows(named=True):
        shown, figures = found[row["sample_id"]], measured[row["sample_id"]]
        assert "".join(text for text, *_ in shown["context"]) == row["context"]
        assert "".join(text for text, *_ in shown["tokens"]) == row["response"]
        assert [token[4] for token in shown["tokens"]] == pytest.approx(figures["far_probability"], abs=1e-4)
        assert shown["segment_count"] == figures["segments"]


@pytest.mark.long
def test_an_edit_writes_the_pages_of_its_shard_alone(small: Pipeline, store: Path) -> None:
    before, shown = written(store), texts(store)
    records = [sample(number) for number in range(SAMPLES)]
    records[CHANGED]["response"] = "something else ."
    write_samples(small.file.parent / "long.jsonl", records)
    small.refresh()
    after = written(store)
    shard = shard_of(records[CHANGED]["id"], SHARDS)
    is_text = lambda name: name.startswith(("samples-", "openings-"))  # noqa: E731
    assert {name for name in before if is_text(name) and name not in after} == {
        name for name in before if name.startswith((f"samples-{shard}-", f"openings-{shard}-"))
    }
    assert {name for name in before if is_text(name) and before[name] == after.get(name)} == {
        name for name in before if is_text(name) and name in after
    }
    assert len(after) == len(before), "what the page of before had, and this one has not, is gone"
    changed = {name for name, one in texts(store).items() if one != shown[name]}
    assert changed == {records[CHANGED]["id"]}


def test_a_flipped_bit_in_any_file_is_noticed_and_only_that_file_written_again(small: Pipeline, store: Path) -> None:
    state, rng = small.state(), random.Random(0)
    cache = state.config.work_folder / "cache" / "page-files.json"
    files = [*sorted((store / "explore").iterdir()), store / "explore.html", store / "explore.html.stamp.json"]
    whole = {file: file.read_bytes() for file in files}
    for file, data in whole.items():
        damages = [flipped(data, rng.randrange(8 * len(data))) for _ in range(5)]
        for damage in [*damages, data[:-1], b""]:
            file.write_bytes(damage)
            assert document_stamp(state.store, "explore.html", cache) is None, file.name
        file.write_bytes(data)
    assert document_stamp(state.store, "explore.html", cache) is not None
    damaged = files[1::2][:-1]
    for file in damaged:
        file.write_bytes(flipped(whole[file], 99))
    assert [work.asset for work in small.state().plan().work] == ["report"]
    before = written(store)
    small.refresh()
    assert {name for name, time in written(store).items() if time != before[name]} == {file.name for file in damaged}
    assert all(file.read_bytes() == whole[file] for file in files if file.parent.name == "explore")
    assert not small.state().plan()


def test_a_page_of_an_earlier_release_is_current(small: Pipeline, store: Path) -> None:
    """Its stamp does not name the files that it loads."""
    stamp, file = document_stamp(small.state().store, "explore.html"), store / "explore.html.stamp.json"
    assert stamp is not None and {*stamp.files} == {f"explore/{name}" for name in written(store)}
    good = file.read_text()
    file.write_text(replace(stamp, files={}).to_json())
    assert not small.state().plan()
    file.write_text(good)


def test_a_lost_page_is_missed(small: Pipeline, store: Path) -> None:
    before = [work.asset for work in small.state().plan().work]
    Files(str(store)).remove("explore.html")
    assert (before, [work.asset for work in small.state().plan().work]) == ([], ["report"])
