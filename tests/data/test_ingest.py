import json
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config import LongSftConfig
from gateau_dagster.data import catalogue
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.index import build_index, read_shards
from gateau_dagster.data.sample import Sample
from tests.kit.error_codes import refused

from .inputs import explicit, jsonl, packed, parquet

RECORDS = [explicit(f"s{i}", source=f"kind{i % 3}") for i in range(90)]
CONFIG = LongSftConfig(path="long*", shards=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "long1.jsonl.gz").write_bytes(packed(jsonl(*RECORDS[:30], explicit("bad", ""), 7), ".gz"))
    (tmp_path / "long2.json").write_bytes(json.dumps(RECORDS[30:60]).encode())
    (tmp_path / "long3.parquet").write_bytes(parquet(RECORDS[60:] + RECORDS[60:70], row_group_size=7))
    return tmp_path


def test_all_shards_hold_all_samples(folder: Path) -> None:
    index = build_index(CONFIG, folder)
    found = list(read_shards(CONFIG, index, range(8)))
    assert sorted(shard for shard, _, _ in found) == list(range(8))
    for _, raw, rejected in found:
        assert raw.schema == tables.schema(tables.RAW_LONG_SFT)
        assert rejected.schema == tables.schema(tables.REJECTED)
        assert raw["sample_id"].is_sorted()
    rows = {row["sample_id"]: row for row in pl.concat([raw for _, raw, _ in found]).to_dicts()}
    assert len(rows) == 90
    for record in RECORDS:
        (sample,) = to_samples(record, location="", stem="")
        assert isinstance(sample, Sample)
        assert rows[sample.sample_id] == {
            "sample_id": sample.sample_id,
            "source": sample.source,
            "context": sample.context,
            "instruction": sample.instruction,
            "response": sample.response,
            "digest": sample.digest,
        }
    rejected = pl.concat([rejected for _, _, rejected in found]).sort("sample_id")
    assert rejected["sample_id"].to_list() == ["bad", "long1.jsonl.gz:32"]


def test_samples_of_one_record_are_read_in_their_shards(tmp_path: Path) -> None:
    turns = [{"role": role, "content": role} for role in ("user", "assistant") * 6]
    (tmp_path / "long.jsonl").write_bytes(jsonl({"id": "t", "messages": turns}, explicit("a")))
    config = LongSftConfig(path="long.jsonl", shards=4, turns="each")
    index = build_index(config, tmp_path)
    found = {shard: raw for shard, raw, _ in read_shards(config, index, range(4))}
    whole = pl.concat(found.values(), how="diagonal")
    assert sorted(whole["sample_id"]) == ["a", *(f"t#{number}" for number in range(1, 7))]
    assert whole.filter(pl.col("conversation").is_null())["sample_id"].to_list() == ["a"]
    for shard, raw in found.items():
        ((_, alone, _),) = read_shards(config, index, [shard])
        assert alone.equals(raw)
    turns[3]["content"] = "changed"
    (tmp_path / "long.jsonl").write_bytes(jsonl({"id": "t", "messages": turns}, explicit("a")))
    with refused("data.changed"):
        list(read_shards(config, index, range(4)))


def test_only_wanted_shards_and_only_files_that_hold_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(CONFIG, folder)
    target = index.accepted.filter(pl.col("file") == 1)["shard"][0]
    (folder / "long4.jsonl").write_bytes(jsonl(explicit("alone")))
    index = build_index(CONFIG, folder)
    shard = index.accepted.filter(pl.col("sample_id") == "alone")["shard"][0]
    opened: list[str] = []
    original = catalogue.read_records
    monkeypatch.setattr(catalogue, "read_records", lambda file, **k: opened.append(file.name) or original(file, **k))
    for wanted in {target, shard}:
        opened.clear()
        ((found, raw, _),) = read_shards(CONFIG, index, [wanted])
        assert found == wanted
        expected = index.accepted.filter(pl.col("shard") == wanted)
        assert raw["sample_id"].to_list() == sorted(expected["sample_id"])
        assert opened == [index.files[number].name for number in sorted(set(expected["file"]))]


def test_an_empty_shard_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_bytes(jsonl(explicit("a")))
    index = build_index(CONFIG, tmp_path)
    found = {shard: len(raw) for shard, raw, _ in read_shards(CONFIG, index, range(8))}
    assert sorted(found.values()) == [0] * 7 + [1]


def test_a_shard_is_given_as_soon_as_it_is_complete(folder: Path) -> None:
    index = build_index(CONFIG, folder)
    calls: list[tuple[float, float | None]] = []
    shards = read_shards(CONFIG, index, range(8), lambda done, total, unit, note="": calls.append((done, total)))
    next(shards)
    assert 0 < len(calls) < 90
    assert len(list(shards)) == 7
    assert calls[-1] == (90, 90)


@pytest.mark.parametrize(
    "now",
    [
        jsonl(explicit("a"), explicit("b", "changed")),
        jsonl(explicit("a")),
        jsonl(explicit("b"), explicit("a")),
        jsonl(explicit("a")) + b"{oops\n",
        jsonl(explicit("a"), explicit("b", "")),
        parquet([explicit("a")]),
    ],
)
def test_an_input_that_changes_meanwhile_is_told(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "long.jsonl"
    path.write_bytes(jsonl(explicit("a"), explicit("b")))
    index = build_index(CONFIG, tmp_path)
    path.write_bytes(now)
    with refused("data.changed"):
        list(read_shards(CONFIG, index, range(8)))
    path.unlink()
    with refused("data.missing"):
        list(read_shards(CONFIG, index, range(8)))
