from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index
from gateau_dagster.data.index_file import INDEX_ACCEPTED, INDEX_REJECTED, InputIndex, load_index, save_index
from gateau_dagster.errors import GateauError

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


@pytest.mark.parametrize("content", [b"", b"PAR1 not really PAR1", b"hello"])
def test_a_damaged_cache_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.parquet"
    assert load_index(path) is None
    path.write_bytes(content)
    assert load_index(path) is None


def test_another_table_is_no_index(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "i.parquet")
    assert load_index(tmp_path / "i.parquet") is None


def test_a_failed_write_leaves_the_old_file(index: InputIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "i.parquet"
    save_index(index, path)
    before = path.read_bytes()

    def full(self: pl.DataFrame, file: str, **options: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(GateauError, match="the disk is full"):
        save_index(index, path)
    assert path.read_bytes() == before
    assert [child.name for child in path.parent.iterdir()] == ["i.parquet"]
