"""The index: its file in the cache, its shards, and when it is made again."""

import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config import LongSftConfig
from gateau_dagster.config.inputs import Turns
from gateau_dagster.data import index as module
from gateau_dagster.data import sample as sample_module
from gateau_dagster.data.index import (
    INDEX_ACCEPTED,
    INDEX_REJECTED,
    build_index,
    cached_index,
    load_index,
    read_shards,
    save_index,
)
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import shard_of
from tests.kit.error_codes import refused

from .inputs import explicit, jsonl


@pytest.fixture(params=[[], [explicit("bad", "")]], ids=["no rejects", "rejects"])
def index(tmp_path: Path, request: pytest.FixtureRequest) -> InputIndex:
    (tmp_path / "x.jsonl").write_bytes(jsonl(explicit("a"), explicit("b"), explicit("a"), *request.param))
    return build_index(LongSftConfig(path="x.jsonl", shards=4), tmp_path)


def test_round_trip(index: InputIndex, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "i.parquet"
    save_index(index, path)
    loaded = load_index(path)
    assert loaded is not None
    assert loaded.accepted.equals(index.accepted)
    assert loaded.rejected.equals(index.rejected)
    assert (loaded.accepted.schema, loaded.rejected.schema) == (INDEX_ACCEPTED, INDEX_REJECTED)
    assert (loaded.files, loaded.signature, loaded.shards) == (index.files, index.signature, 4)
    assert (loaded.records, loaded.duplicates_dropped) == (index.records, 1)
    assert [loaded.shard_digest(shard) for shard in range(4)] == [index.shard_digest(shard) for shard in range(4)]
    assert [child.name for child in path.parent.iterdir()] == ["i.parquet"]


def test_a_damaged_cache_is_none(tmp_path: Path) -> None:
    path = tmp_path / "i.parquet"
    assert load_index(path) is None
    for content in (b"", b"PAR1 not really PAR1", b"hello"):
        path.write_bytes(content)
        assert load_index(path) is None
    pl.DataFrame({"a": [1]}).write_parquet(path)
    assert load_index(path) is None, "another table"


def test_a_failed_write_leaves_the_old_file(index: InputIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "i.parquet"
    save_index(index, path)
    before = path.read_bytes()

    def full(frame: pl.DataFrame, metadata: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_parquet", full)
    with refused("storage.disk_full"):
        save_index(index, path)
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == ["i.parquet"]


CONFIG = LongSftConfig(path="*.jsonl", shards=8)
RECORDS = [explicit(f"s{i}") for i in range(200)]


def index_of(folder: Path, records: list, config: LongSftConfig = CONFIG) -> InputIndex:
    (folder / "x.jsonl").write_bytes(jsonl(*records))
    return build_index(config, folder)


def changed_shards(one: InputIndex, other: InputIndex) -> set[int]:
    return {shard for shard in range(one.shards) if one.shard_digest(shard) != other.shard_digest(shard)}


def test_shards_are_those_of_the_ids(tmp_path: Path) -> None:
    index = index_of(tmp_path, [*RECORDS, explicit("bad", "")])
    assert all(shard == shard_of(name, 8) for name, shard in index.accepted.select("sample_id", "shard").iter_rows())
    assert index.rejected.select("sample_id", "shard").row(0) == ("bad", shard_of("bad", 8))


def test_one_edit_changes_one_shard(tmp_path: Path) -> None:
    before = index_of(tmp_path, RECORDS)
    for position, edited in (
        (7, explicit("s7", "other")),
        (9, explicit("s9", source="elsewhere")),
        (11, explicit("s11", "")),
    ):
        after = index_of(tmp_path, [*RECORDS[:position], edited, *RECORDS[position + 1 :]])
        assert changed_shards(before, after) == {shard_of(f"s{position}", 8)}

    assert changed_shards(before, index_of(tmp_path, RECORDS[1:])) == {shard_of("s0", 8)}
    assert changed_shards(before, index_of(tmp_path, [explicit("new"), *RECORDS])) == {shard_of("new", 8)}
    other = [dict(reversed(list(record.items()))) for record in reversed(RECORDS)]
    assert changed_shards(before, index_of(tmp_path, other)) == set(), "order and spelling"


def test_empty_shards_have_a_digest(tmp_path: Path) -> None:
    index = index_of(tmp_path, RECORDS[:1])
    digests = {shard: index.shard_digest(shard) for shard in range(8)}
    assert len(set(digests.values())) == 2
    assert all(len(digest) == 64 for digest in digests.values())


def test_an_input_without_usable_sample_says_why(tmp_path: Path) -> None:
    records = [explicit("a", ""), explicit("b", " "), {"text": "x"}]
    with refused("data.no_usable_record") as caught:
        index_of(tmp_path, records)
    first, empty, unknown = str(caught.value).splitlines()
    assert first.startswith("long_sft.path: no usable sample in *.jsonl")
    assert empty.startswith("  2 x empty response: ") and unknown.startswith("  1 x unknown form: ")
    assert "(first at x.jsonl:1)" in empty and "(first at x.jsonl:3)" in unknown


def test_the_same_texts_under_other_ids_are_said(tmp_path: Path) -> None:
    """Real sets have them: each would be chosen beside the other, for they have one score."""
    records = [explicit(name, f"answer {name}") for name in ("a", "b", "c")]
    assert index_of(tmp_path, records).repeats(kept=False) == []
    again = [{**records[1], "id": "z"}, {**records[0], "id": "y"}]
    found = index_of(tmp_path, [*again, *records])
    assert found.accepted.height == 5
    for kept, what in ((False, "one of each can be chosen"), (True, "trained on together")):
        (said,) = found.repeats(kept=kept)
        assert "2 of 5 samples (40 %)" in said and "(the first: a repeats y)." in said and what in said


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`gateau plan` in a project that belongs to somebody else."""
    (tmp_path / "x.jsonl").write_bytes(jsonl(*RECORDS))
    found = cached_index(CONFIG, tmp_path, tmp_path / "x.jsonl" / "cache")
    assert found.accepted.height == len(RECORDS)
    assert [str(tmp_path / "x.jsonl" / "cache") in message for message in caplog.messages] == [True]


def test_cached_index_is_reused_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    (data / "x.jsonl").write_bytes(jsonl(*RECORDS))
    passes = []
    original = module.scan
    monkeypatch.setattr(module, "scan", lambda *args: passes.append(1) or original(*args))
    first = cached_index(CONFIG, data, cache)
    again = cached_index(CONFIG, data, cache)
    assert len(passes) == 1
    assert again.accepted.equals(first.accepted)
    assert (again.signature, again.files) == (first.signature, first.files)
    assert changed_shards(first, again) == set()
    os.utime(data / "x.jsonl", ns=(1, 1))
    cached_index(CONFIG, data, cache)
    assert len(passes) == 2
    assert cached_index(CONFIG.model_copy(update={"shards": 3}), data, cache).shards == 3
    assert len(passes) == 3
    monkeypatch.setattr(module, "CODE_VERSION", "raised")
    cached_index(CONFIG.model_copy(update={"shards": 3}), data, cache)
    assert len(passes) == 4
    files = len(list(cache.iterdir()))
    cached_index(LongSftConfig(path="x.jsonl"), data, cache)
    assert len(list(cache.iterdir())) == files + 1, "inputs do not push each other out"


def rewritten(path: Path, content: bytes) -> None:
    """As `rsync -t` leaves a file: other bytes, the size and the time of before."""
    status = path.stat()
    assert len(content) == status.st_size
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_other_bytes_of_the_same_size_and_time_are_noticed_where_contents_are_read(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    changed = [*RECORDS[:7], explicit("s7", "A"), *RECORDS[8:]]
    before, after = (jsonl(*records) for records in ([*RECORDS[:7], explicit("s7", "B"), *RECORDS[8:]], changed))
    trusting, reading = CONFIG, CONFIG.model_copy(update={"verify": "content"})
    (data / "x.jsonl").write_bytes(before)
    first, read = cached_index(trusting, data, cache), cached_index(reading, data, cache)
    assert changed_shards(first, read) == set(), "how it is looked at changes nothing"
    assert cached_index(reading, data, cache).signature == read.signature != first.signature
    cached_index(trusting, data, cache)
    rewritten(data / "x.jsonl", after)
    assert changed_shards(first, cached_index(trusting, data, cache)) == set()
    assert changed_shards(first, cached_index(reading, data, cache)) == {shard_of("s7", 8)}
    assert changed_shards(first, cached_index(trusting, data, cache)) == {shard_of("s7", 8)}, (
        "and is known from then on"
    )


def test_a_file_that_is_written_behind_the_index_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(jsonl(explicit("a", "yes"), explicit("b")))
    config, cache = LongSftConfig(path="x.jsonl", shards=1), tmp_path / "cache"
    cached_index(config, tmp_path, cache)
    rewritten(tmp_path / "x.jsonl", jsonl(explicit("a", "yet"), explicit("b")))
    with refused("data.changed"):
        list(read_shards(config, cached_index(config, tmp_path, cache), [0]))
    reading = config.model_copy(update={"verify": "content"})
    ((_, table, _),) = read_shards(reading, cached_index(reading, tmp_path, cache), [0])
    assert table.filter(sample_id="a")["response"].item() == "yet"


def test_another_way_to_read_turns_reads_the_files_again(tmp_path: Path) -> None:
    turns = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    image = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}, turns[1]]
    (tmp_path / "x.jsonl").write_bytes(jsonl({"id": "t", "messages": turns}, {"id": "i", "messages": image}))
    ways: list[dict[str, Any]] = [{"turns": "last"}, {"turns": "each"}, {"turns": "each"}, {}, {"parts": "drop"}]
    ids = [
        {*cached_index(LongSftConfig(path="x.jsonl", **way), tmp_path, tmp_path / "cache").accepted["sample_id"]}
        for way in ways
    ]
    assert ids == [{"t"}, {"t#1", "t#2"}, {"t#1", "t#2"}, {"t"}, {"t", "i"}]


def test_a_conversation_that_begins_another_is_left_out_or_said(tmp_path: Path) -> None:
    """With `last` the longer one holds its answers; `observations` learns only the last of each."""
    roles = ("user", "assistant", "tool", "assistant") * 2
    turns: list[dict[str, Any]] = [{"role": role, "content": role} for role in roles]
    turns[1] |= {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    turns[5] |= turns[1]
    records = [{"id": "parent", "messages": turns[:4]}, {"id": "fork", "messages": turns}, explicit("a")]
    ways: dict[Turns, int] = {"last": 2, "observations": 3, "each": 7}
    for way, usable in ways.items():
        config = LongSftConfig(path="x.jsonl", shards=1, turns=way)
        index = index_of(tmp_path, records, config)
        assert index.accepted.height == usable
        assert index.rejected["sample_id"].to_list() == ["parent"] * (way == "last")
        assert index.records == index.accepted.height + index.rejected.height
        save_index(index, tmp_path / "i.parquet")
        loaded = load_index(tmp_path / "i.parquet")
        assert loaded is not None and loaded.beginnings == index.beginnings
        said = " ".join([*loaded.beginnings, *loaded.repeats(kept=False)])
        assert ("(the first: parent begins fork)" in said) == (way != "each")
        assert ("(the first: fork#1 repeats parent#1)" in said) == (way == "each")
        assert sum(table.height for _, table, _ in read_shards(config, loaded, [0])) == usable
    one = [{"role": role, "content": role} for role in ("user", "assistant") * 2]
    exchange = [{"id": "one", "messages": one[:2]}, {"id": "two", "messages": one}, explicit("a")]
    each = index_of(tmp_path, exchange, LongSftConfig(path="x.jsonl", shards=1, turns="each"))
    assert each.rejected["sample_id"].to_list() == ["one"], "a record of one exchange holds the texts of two#1"
    without_loss = [*({**turn, "weight": 0} if turn["role"] == "assistant" else turn for turn in turns[:-1]), turns[-1]]
    both = index_of(tmp_path, [records[0], {"id": "fork", "messages": without_loss}])
    assert both.accepted.height == 2 and both.beginnings == [], "the answer of the shorter one is learned there only"


def test_only_shards_with_control_tokens_differ_from_an_early_release_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read such texts differently, so their samples have another digest; all others keep theirs."""
    said = {"a": "so</s> it is", "b": "<p>none</p> [1] <think>", "c": "<｜User｜>", "d": "x"}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"q": "[INST]"}'}}
    turns = [
        *({"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}),
        *({"role": "tool", "content": "none", "tool_call_id": "1"}, {"role": "assistant", "content": "done"}),
    ]
    records = [*(explicit(name, text) for name, text in said.items()), {"id": "e", "messages": turns}]
    (tmp_path / "x.jsonl").write_bytes(jsonl(*records))
    config = LongSftConfig(path="x.jsonl", shards=64)
    found = build_index(config, tmp_path)
    spelled = dict(found.accepted.select("sample_id", "control_tokens").iter_rows())
    assert spelled == {"a": ["</s>"], "b": [], "c": ["<｜User｜>"], "d": [], "e": ["[INST]"]}
    monkeypatch.setattr(sample_module, "_CONTROL_TOKEN", re.compile("(?!)"))
    early = build_index(config, tmp_path)
    differ = {shard for shard in range(64) if found.shard_digest(shard) != early.shard_digest(shard)}
    assert differ == {shard_of(name, 64) for name in "ace"} and len(differ) == 3
