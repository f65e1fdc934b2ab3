"""Tables that are cut, broken, or none: they count as missing, and whoever reads them is told."""

import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.documents import document_stamp
from gateau_dagster.storage.store import DamagedTableError
from tests.error_codes import refused
from tests.storage.stamped import FRAME, STAMP


def test_a_table_that_is_damaged_where_it_lies_is_not_fetched(store: Store, tmp_path: Path) -> None:
    store.write(FRAME, "mix", None, STAMP)
    content = bytearray(store.files.read("mix.parquet"))
    content[50] ^= 1
    store.files.write("mix.parquet", bytes(content))
    with pytest.raises(DamagedTableError, match=r"mix\.parquet is damaged .* set aside"):
        store.fetched("mix", tmp_path / "scratch")
    with refused("storage.not_computed"):
        store.fetched("mix", tmp_path / "scratch")


@pytest.mark.parametrize("data", [b"", b"garbage", b"PAR1" + bytes(100), b"PAR1" + bytes(100) + b"\x10\0\0\0PAR1"])
def test_garbage_counts_as_missing_and_reading_it_says_so(store: Store, data: bytes) -> None:
    store.files.write("cam/0.parquet", data)
    assert store.stamp("cam", "0") is None
    with refused("storage.damaged", r"cam/0\.parquet.*0\.parquet\.damaged"):
        store.read("cam", "0")


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for name in ("cam/0.parquet", "report.html"):
        (tmp_path / name).mkdir(parents=True)
    store.files.write("report.html.stamp.json", Stamp(fingerprint="f").to_json().encode())
    for ask in (
        lambda: store.stamp("cam", "0"),
        lambda: store.read("cam", "0"),
        lambda: store.write(FRAME, "cam", "0", STAMP),
        lambda: document_stamp(store, "report.html"),
    ):
        with refused("storage.path", r"(0\.parquet|report\.html): there is a folder of this name, not a file"):
            ask()


def test_any_cut_or_broken_byte_is_met_without_a_crash(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write(FRAME, "t", None, STAMP)
    good, rng = (tmp_path / "t.parquet").read_bytes(), random.Random(0)
    lost = 0
    for attempt in range(400):
        bad = bytearray(good if attempt % 2 else good[: rng.randrange(len(good))])
        for _ in range(3 if attempt % 2 else 0):
            bad[rng.randrange(len(bad))] ^= rng.randrange(1, 256)
        (tmp_path / "t.parquet").write_bytes(bytes(bad))
        lost += store.stamp("t") is None
        try:
            store.read("t")
        except GateauError as error:
            assert "t.parquet is damaged" in str(error)
    assert lost > 300


def test_a_table_of_someone_else_has_no_stamp(store: Store) -> None:
    buffer = io.BytesIO()
    FRAME.write_parquet(buffer)
    store.files.write("t.parquet", buffer.getvalue())
    assert store.stamp("t") is None
    assert store.read("t").equals(FRAME)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "0.parquet")
    os.mkfifo(tmp_path / "report.html.stamp.json")
    looks: list[Callable[[], object]] = [
        lambda: store.stamp("a", "0"),
        lambda: store.read("a", "0"),
        lambda: document_stamp(store, "report.html"),
    ]
    for look in looks:
        with refused("storage.path"):
            look()
