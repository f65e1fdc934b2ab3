"""No flipped bit is read in silence: in data, page headers, footer, stamp or the seal itself."""

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateau_dagster.storage import Stamp, Store, content
from gateau_dagster.storage.content import file_digests, model_content
from gateau_dagster.storage.documents import (
    RECORD_NAME,
    document_stamp,
    fetched_folder,
    folder_stamp,
    local_training_record,
    publish_folder,
    read_training_log,
    read_training_record,
    record_bytes,
    write_document,
)
from gateau_dagster.storage.local import keeping, recall, recall_all, remember, remember_all
from gateau_dagster.storage.parquet import (
    DamagedFileError,
    read_columns,
    read_footer,
    read_local,
    verified,
    write_parquet,
)
from gateau_dagster.storage.store import DamagedTableError
from tests.kit.error_codes import refused
from tests.storage.builders import REJECTED, flipped, flips

STAMP = Stamp(fingerprint="f1", inputs={"upstream": {"raw": "d"}}, effort={"seconds": 0.25, "samples": 3})


def frame(rows: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "sample_id": [f"s{row}" for row in range(rows)],
            "perplexity": rng.random(rows),
            "segments": pl.Series([list(rng.random(row % 5)) for row in range(rows)], dtype=pl.List(pl.Float64)),
            "cas": [None if row % 3 == 0 else float(row) for row in range(rows)],
            "text": [f"text {row} " * (row % 4) for row in range(rows)],
        }
    )


def test_two_thousand_flips_and_none_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, its rejects, a row checkpoint: told by the reader, or the table and its stamp are what was written."""
    monkeypatch.setattr(content, "GROUP_ROWS", 15)  # three row groups
    store, table = Store(str(tmp_path)), frame()
    written = store.write(table, "cam", "0", STAMP, REJECTED)
    store.write(table.head(7), "_partial/cam/0/scorer/0", None, STAMP)
    kinds: dict[str, Callable[[], bool]] = {
        "cam/0.parquet": lambda: store.read("cam", "0").equals(table) and store.stamp("cam", "0") in (written, None),
        "cam/rejected/0.parquet": lambda: store.read_rejected("cam", ["0"]).equals(REJECTED),
        "_partial/cam/0/scorer/0.parquet": lambda: store.read("_partial/cam/0/scorer/0").equals(table.head(7)),
    }
    told = 0
    good = {name: (tmp_path / name).read_bytes() for name in kinds}
    for name, is_right in kinds.items():
        for bad in flips(good[name], 700):
            for each, data in good.items():
                (tmp_path / each).write_bytes(data)
            (tmp_path / name).write_bytes(bad)
            try:
                assert is_right(), name
            except DamagedTableError as error:
                told += 1
                assert str(tmp_path / name) in str(error)
                assert not (tmp_path / name).exists()
    assert told > 2000, "only the first four bytes hold nothing"


def test_flips_in_stamps_and_caches(tmp_path: Path) -> None:
    """What says too little is asked again; what it says is true."""
    text = STAMP.to_json().encode()
    cache, values = tmp_path / "cache.json", {"a|1": "digest", "b": [1, 2.5]}
    remember_all(cache, values)
    for bad in flips(text, 500):
        with contextlib.suppress(ValueError):
            assert Stamp.from_json(bad) == STAMP
    good = cache.read_bytes()
    for bad in flips(good, 500):
        cache.write_bytes(bad)
        assert recall_all(cache) in ({}, values)
    cache.write_bytes(good)
    assert recall_all(cache) == values


def test_flips_in_documents_and_models(tmp_path: Path) -> None:
    """And in what lies beside them: a page, a model's file, both stamps."""
    store, folder = Store(str(tmp_path / "store")), tmp_path / "new"
    write_document(store, "report.html", "<p>0.25</p>" * 20, STAMP)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(200)))
    files = file_digests(folder)
    publish_folder(store, folder, "checkpoint", Stamp(fingerprint="f", content=model_content(files), files=files))
    target = tmp_path / "store"
    document, stamp = document_stamp(store, "report.html"), folder_stamp(store, "checkpoint")
    assert document is not None and stamp is not None
    for name in ("report.html", "report.html.stamp.json"):
        good = (target / name).read_bytes()
        for bad in flips(good, 200):
            (target / name).write_bytes(bad)
            assert document_stamp(store, "report.html") is None, "it is made again"
        (target / name).write_bytes(good)
    good = (target / "checkpoint/gateau.json").read_bytes()
    for bad in flips(good, 200):
        (target / "checkpoint/gateau.json").write_bytes(bad)
        assert folder_stamp(store, "checkpoint") is None
    weights = (target / "checkpoint/model.safetensors").read_bytes()
    for bad in flips(weights, 200):
        (target / "checkpoint/gateau.json").write_bytes(good)
        (target / "checkpoint/model.safetensors").write_bytes(bad)
        with refused("storage.damaged", match=r"model\.safetensors"):
            fetched_folder(store, "checkpoint", target)


def test_a_file_without_a_seal_is_read_as_it_is(tmp_path: Path) -> None:
    """Stores of old have none."""
    path = tmp_path / "t.parquet"
    pq.write_table(frame().to_arrow().replace_schema_metadata({"gateau.stamp": STAMP.to_json()}), path)
    with pa.OSFile(str(path)) as file:
        assert read_footer(file).digests == ()
        assert pl.DataFrame(pl.from_arrow(read_columns(["perplexity", "segments"], file))).height == 40
    assert Store(str(tmp_path)).stamp("t") == STAMP


@pytest.mark.parametrize("table", [frame(), frame(0), pl.DataFrame({"n": []}, schema={"n": pl.Int64})])
def test_any_reader_takes_a_sealed_file(tmp_path: Path, table: pl.DataFrame) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(table, {b"key": b"value"}, path)
    assert pl.read_parquet(path).equals(table)
    assert pl.DataFrame(pl.from_arrow(pq.read_table(path))).equals(table)
    found, metadata = read_local(path)
    assert found.equals(table) and metadata[b"key"] == b"value"


def test_a_seal_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(frame(), {}, path)
    with pa.OSFile(str(path)) as file:
        footer = read_footer(file)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[: footer.after_chunks] + data[-8 - length :])
    with pytest.raises(DamagedFileError, match="its seal is broken"):
        read_local(path)


def test_columns_that_are_not_read_are_not_asked_about(tmp_path: Path) -> None:
    """Ids come from a table whose texts are damaged: they are themselves verified."""
    store = Store(str(tmp_path))
    store.write(frame(), "raw", None, STAMP)
    path = tmp_path / "raw.parquet"
    data = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(4)
    path.write_bytes(flipped(data, 8 * (column.data_page_offset + 5)))
    assert store.read("raw", None, ["sample_id", "cas"]).equals(frame().select("sample_id", "cas"))
    with refused("storage.damaged", match=r"raw\.parquet.* \d+ to \d+"):
        store.verify("raw")
    assert store.stamp("raw") is None and store.files.exists("raw.parquet.damaged")


def test_of_a_remote_file_only_the_wanted_columns_are_fetched(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of many rows with long texts; each byte once."""
    monkeypatch.setattr(content, "GROUP_ROWS", 20)
    rng = np.random.default_rng(0)
    texts = [rng.bytes(3000).hex() for _ in range(60)]
    store, table = Store(f"s3://{bucket}/p"), pl.DataFrame({"sample_id": [f"s{n}" for n in range(60)], "text": texts})
    store.write(table, "raw", None, STAMP)
    remote: Any = store.files.filesystem
    with remote.open(store.address("raw"), "rb", cache_type="none") as file:
        fetched: list[int] = []
        read = file.read
        file.read = lambda size: (fetched.append(size), read(size))[1]
        with verified(file, ["sample_id"]) as found:
            ids = found.read(columns=["sample_id"])
        size = file.size
    assert ids["sample_id"].to_pylist() == table["sample_id"].to_list()
    assert sum(fetched) < size / 2
    assert store.read("raw").equals(table)


def test_a_damaged_table_is_looked_at_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that answered wrongly once costs nothing."""
    store = Store(str(tmp_path))
    store.write(frame(), "t", None, STAMP)
    good, path = (tmp_path / "t.parquet").read_bytes(), tmp_path / "t.parquet"
    path.write_bytes(flipped(good, 4000))
    original = pa.OSFile
    opened: list[str] = []

    def mended(name: str) -> pa.OSFile:
        opened.append(name)
        if len(opened) == 2:
            path.write_bytes(good)
        return original(name)

    monkeypatch.setattr(pa, "OSFile", mended)
    assert store.read("t").equals(frame())
    assert len(opened) == 2


def test_damaged_rejects_take_their_table_with_them(store: Store) -> None:
    """Else the rejects would be missing from a table that counts as done."""
    store.write(frame(), "cam", "0", STAMP, REJECTED)
    data = store.files.read("cam/rejected/0.parquet")
    store.files.write("cam/rejected/0.parquet", flipped(data, 100))
    with refused("storage.damaged", match=r"cam/rejected/0\.parquet\.damaged"):
        store.read_rejected("cam", ["0"])
    assert store.stamp("cam", "0") is None and store.files.exists("cam/0.parquet.damaged")
    assert store.read_rejected("cam", ["0"]).is_empty()


def test_what_is_remembered_is_recalled_and_the_rest_kept(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "values.json"
    assert recall(file, "a") is None and recall_all(file) == {}
    remember(file, "a", [1, "x"])
    remember_all(file, {"b": 2, "c": None})
    assert recall(file, "a") == [1, "x"]
    assert recall_all(file) == {"a": [1, "x"], "b": 2, "c": None}
    assert [each.name for each in file.parent.iterdir()] == ["values.json"]


def test_a_damaged_file_or_a_pipe_is_rebuilt_and_a_folder_in_the_way_costs_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    for damaged in ("{half", "[1]", "[" * 200_000, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")):
        file.write_text(damaged)
        assert recall(file, "a") is None
    remember(file, "a", 1)
    assert recall_all(file) == {"a": 1}
    (tmp_path / "blocked").write_text("a file")
    remember(tmp_path / "blocked" / "values.json", "a", 1)
    assert recall(tmp_path / "blocked" / "values.json", "a") is None
    file.unlink()
    os.mkfifo(file)  # which is not waited for
    assert recall(file, "a") is None
    remember(file, "a", 1)
    assert recall_all(file) == {"a": 1}


def test_what_cannot_be_kept_is_said_once_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.json", "b.json"):
        with keeping(tmp_path / name):
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / name))
    (message,) = caplog.messages
    assert str(tmp_path) in message and "the disk is full" in message
    with keeping(tmp_path / "other" / "a.json"):
        raise OSError(errno.EROFS, "Read-only file system")
    assert "read-only" in caplog.messages[1]
    with pytest.raises(ZeroDivisionError), keeping(tmp_path / "a.json"):
        raise ZeroDivisionError


RECORD: dict[str, Any] = {"resume_key": "k", "steps": [{"step": 1, "loss": 2.5, "grad_norm": float("inf")}]}


def test_the_training_log_of_a_published_model(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert read_training_log(store) == []
    for data in (record_bytes(RECORD), json.dumps(RECORD).encode()):  # records of old have no digest
        store.files.write(f"checkpoint/{RECORD_NAME}", data)
        assert read_training_log(store) == RECORD["steps"]
        assert read_training_record(store, "checkpoint") == RECORD
    assert not [record for record in caplog.records if record.name.startswith("gateau")]


def test_no_flipped_bit_is_taken_for_the_truth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, whole = tmp_path / RECORD_NAME, record_bytes(RECORD)
    with caplog.at_level(logging.ERROR):
        for bit in range(8 * len(whole)):
            file.write_bytes(flipped(whole, bit))
            found = local_training_record(tmp_path)
            assert not found or {name: found[name] for name in RECORD} == RECORD, "white space, or the digest's name"


@pytest.mark.parametrize("content", [b"", b"0", b"[1]", b"null", b'{"steps": [', b"\xff", b"[" * 100_000])
def test_a_torn_one_is_named_and_counts_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / RECORD_NAME).write_bytes(content)
    assert read_training_log(Store(str(tmp_path))) == []
    [said] = caplog.messages
    assert f"checkpoint/{RECORD_NAME} is damaged and treated as missing" in said
