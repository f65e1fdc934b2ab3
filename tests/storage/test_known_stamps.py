"""A stamp is read once while its file stays; a file that is another one, or was changed, is read again."""

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage import store as module

FRAME = pl.DataFrame({"sample_id": ["a", "b"]})


class Reads:
    """How often a stamp was read from a file."""

    def __init__(self) -> None:
        self.count = 0

    def metadata(self, file: object) -> dict[bytes, bytes]:
        from gateau_dagster.storage.parquet import metadata

        self.count += 1
        return metadata(file)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    found = Reads()
    monkeypatch.setattr(module, "metadata", found.metadata)
    yield found


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file had changed long ago."""
    monkeypatch.setattr(module, "_SETTLED_NS", 0)


@pytest.mark.usefixtures("settled")
def test_a_file_that_stays_is_read_once(tmp_path: Path, reads: Reads) -> None:
    Store(str(tmp_path)).write(FRAME, "cam", "0", Stamp(fingerprint="one"))
    for _ in range(3):
        found = Store(str(tmp_path)).stamps([("cam", "0"), ("cam", "1")])
        stamp = found["cam", "0"]
        assert stamp is not None and stamp.fingerprint == "one" and found["cam", "1"] is None
    assert reads.count == 1


@pytest.mark.usefixtures("settled")
def test_a_table_that_is_replaced_is_read_again(tmp_path: Path, reads: Reads) -> None:
    store = Store(str(tmp_path))
    for number in range(5):
        store.write(FRAME, "cam", "0", Stamp(fingerprint=f"{number}"))
        found = store.stamp("cam", "0")
        assert found is not None and found.fingerprint == f"{number}"
    (tmp_path / "cam" / "0.parquet").unlink()
    assert store.stamp("cam", "0") is None
    assert reads.count == 5


@pytest.mark.usefixtures("settled")
def test_damage_is_seen_though_size_and_time_are_put_back(tmp_path: Path) -> None:
    store, file = Store(str(tmp_path)), tmp_path / "cam" / "0.parquet"
    store.write(FRAME, "cam", "0", Stamp(fingerprint="one"))
    assert store.stamp("cam", "0") is not None
    before = file.stat()
    content = file.read_bytes()
    place = content.index(b'"one"')
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # clocks of file systems tick slowly
        file.write_bytes(content[:place] + b'"two"' + content[place + 5 :])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert store.stamp("cam", "0") is None


def test_a_file_that_changed_just_now_is_read_each_time(tmp_path: Path, reads: Reads) -> None:
    store = Store(str(tmp_path))
    store.write(FRAME, "cam", "0", Stamp(fingerprint="one"))
    assert store.stamp("cam", "0") == store.stamp("cam", "0")
    assert reads.count == 2
    assert module.local_version((tmp_path / "cam" / "0.parquet").stat()) == ""
