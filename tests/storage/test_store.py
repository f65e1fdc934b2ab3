import io
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import Stamp, Store, content, parquet
from gateau_dagster.storage import store as module
from gateau_dagster.storage.content import frame_digest
from gateau_dagster.storage.documents import document_stamp
from gateau_dagster.storage.files import local_copy
from tests.kit.error_codes import refused
from tests.storage.builders import FRAME, REJECTED, STAMP, flipped


@pytest.mark.parametrize(("asset", "partition"), [("perplexity/short", "03"), ("combined_scores", None)])
def test_a_table_comes_back_with_its_stamp(store: Store, asset: str, partition: str | None) -> None:
    assert store.stamp(asset, partition) is None
    with refused("storage.not_computed", rf"{asset}.*\.parquet"):
        store.read(asset, partition)
    store.write(FRAME.head(1), asset, partition, Stamp(fingerprint="f0"))
    written = store.write(FRAME, asset, partition, STAMP)
    assert store.read(asset, partition).equals(FRAME)
    assert store.stamp(asset, partition) == written
    assert (written.rows, written.content) == (2, frame_digest(FRAME))
    assert (written.fingerprint, written.inputs, written.scorer) == ("f1", STAMP.inputs, "s1")
    assert store.read(asset, partition, columns=["cas"]).columns == ["cas"]


def test_files_lie_where_the_design_says(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write(FRAME, "perplexity/short", "03", STAMP, REJECTED)
    store.write(FRAME, "combined_scores", None, STAMP, REJECTED)
    found = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert found == {
        "perplexity/short/03.parquet",
        "perplexity/short/rejected/03.parquet",
        "combined_scores.parquet",
        "combined_scores/rejected.parquet",
    }
    assert pq.read_table(tmp_path / "combined_scores.parquet").num_rows == 2  # any Parquet reader can read it


def test_partitions_and_rejects_are_read_together(store: Store) -> None:
    store.write(FRAME, "cam", "0", STAMP, REJECTED)
    store.write(FRAME.head(0), "cam", "1", STAMP)
    assert store.read_all("cam", ["0", "1"]).equals(FRAME)
    store.write(FRAME.head(1).with_columns(further=pl.lit("x")), "cam", "2", STAMP)
    assert store.read_all("cam", ["0", "2"])["further"].to_list() == [*[None] * FRAME.height, "x"]
    assert store.read_rejected("cam", ["0", "1"]).rows() == [("z", "no response")]
    assert store.read_rejected("cam", ["1"]).is_empty()
    assert store.read_rejected("cam", ["1"]).columns == ["sample_id", "reason"]
    stamps = store.stamps([("cam", "0"), ("cam", "7")])
    assert stamps[("cam", "0")] is not None and stamps[("cam", "7")] is None


def test_without_rejects_there_is_no_file_of_them(store: Store) -> None:
    store.write(FRAME, "cam", "0", STAMP, REJECTED)
    for frame in (FRAME, FRAME.head(1)):
        store.write(frame, "cam", "0", STAMP, REJECTED.clear())
        assert [*store.files.sizes()] == ["cam/0.parquet"]
    assert store.read_rejected("cam", ["0"]).is_empty()


def test_a_table_without_rows_has_no_row_group(tmp_path: Path) -> None:
    """Check the file: `datasets` takes the rows of the first group as its batch size, which must not be 0."""
    store = Store(str(tmp_path))
    store.write(FRAME.clear(), "cam", "0", STAMP)
    assert pq.ParquetFile(tmp_path / "cam" / "0.parquet").num_row_groups == 0
    assert store.read("cam", "0").equals(FRAME.clear())
    assert store.read_rows("cam", "0", FRAME.select("sample_id")).equals(FRAME.clear())


def test_stamps_of_many_are_those_of_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [("cam", "0"), ("cam", "1"), ("scores", None)]

    def fingerprints() -> list[str | None]:
        stamps = store.stamps(keys).values()
        return [None if stamp is None else stamp.fingerprint for stamp in stamps]

    assert fingerprints() == [None, None, None]
    for version in ("f1", "f2", "f1"):
        for asset, partition in keys[1:]:
            store.write(FRAME, asset, partition, Stamp(fingerprint=version))
        assert fingerprints() == [None, version, version]
    store.files.write(store.table_name("cam", "1"), b"garbage")
    store.files.remove(store.table_name("scores"))
    assert fingerprints() == [None, None, None]


@pytest.mark.parametrize("slow", [False, True])
def test_stamps_of_many_are_read_side_by_side_where_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    store, keys = Store(str(tmp_path)), [("cam", str(number)) for number in range(100)]
    for asset, partition in keys[::3]:
        store.write(FRAME.head(1), asset, partition, Stamp(fingerprint=f"f{partition}"))
    readers, opened, clock = set[str](), module._opened, {"passed": 0.0, "worked": 0.0}

    def read(*arguments: Any) -> Any:
        readers.add(threading.current_thread().name)
        clock["passed"] += 0.01  # a clock of the test's own: a busy machine makes any disk slow
        clock["worked"] += 0.001 if slow else 0.01
        time.sleep(0.001)  # long enough that one thread does not do it all
        return opened(*arguments)

    monkeypatch.setattr(module, "perf_counter", lambda: clock["passed"])
    monkeypatch.setattr(module, "thread_time", lambda: clock["worked"])
    monkeypatch.setattr(module, "_opened", read)
    found = store.stamps(keys)
    assert list(found) == keys
    assert [each and each.fingerprint for each in found.values()] == [
        None if number % 3 else f"f{number}" for number in range(100)
    ]
    assert (len(readers) > 1) == slow


def test_stamps_on_s3_are_read_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"s3://{bucket}/store")
    keys: list[tuple[str, str | None]] = [("cam", str(shard)) for shard in range(5)]
    for asset, partition in keys:
        store.write(FRAME, asset, partition, STAMP)
    first = store.stamps(keys)
    requests, ask = [], store.files.filesystem._call_s3  # pyright: ignore[reportAttributeAccessIssue]

    async def counted(method: str, *arguments: Any, **options: Any) -> Any:
        requests.append(method)
        return await ask(method, *arguments, **options)

    monkeypatch.setattr(store.files.filesystem, "_call_s3", counted)
    assert Store(f"s3://{bucket}/store").stamps(keys) == first
    assert set(requests) <= {"list_objects_v2"} and requests
    store.write(FRAME, "cam", "3", Stamp(fingerprint="f2"))
    changed = store.stamps(keys)
    assert {key for key in keys if changed[key] != first[key]} == {("cam", "3")}
    no_versions = dict.fromkeys(store.files.versions(), "")
    monkeypatch.setattr(store.files, "versions", lambda: no_versions)
    monkeypatch.setattr(module, "_known", {})
    assert store.stamps(keys) == changed, "a server without ETags"


TEXTS = pl.DataFrame({"sample_id": [f"s{n}" for n in range(10)], "text": [f"text {n}" * n for n in range(10)]})


@pytest.mark.parametrize("batch_bytes", [parquet._BATCH_BYTES, 400, 1], ids=["whole", "batches", "rows"])
@pytest.mark.parametrize("wanted", [[], ["s9"], ["s7", "s2", "no such"], list(TEXTS["sample_id"])])
def test_chosen_rows_are_read_in_the_order_of_the_table(
    store: Store, wanted: list[str], batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "GROUP_ROWS", 4)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", batch_bytes)
    store.write(TEXTS, "raw", "0", STAMP)
    found = store.read_rows("raw", "0", pl.DataFrame({"sample_id": wanted}, schema={"sample_id": pl.String}))
    assert found.equals(TEXTS.filter(pl.col("sample_id").is_in(wanted)))
    with refused("storage.not_computed", r"raw/1\.parquet"):
        store.read_rows("raw", "1", found)


def test_a_table_in_many_groups_is_one_table(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "GROUP_ROWS", 3)
    written = store.write(TEXTS, "raw", None, STAMP)
    file = pq.ParquetFile(local_copy(store.files, "raw.parquet", tmp_path))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [3, 3, 3, 1]
    assert store.read("raw").equals(TEXTS) and store.stamp("raw") == written


def test_a_fetched_file_is_the_one_that_was_verified_and_fetched_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training reads the file itself: another copy than the verified one may be damaged on its way."""
    store.write(FRAME, "mix", None, STAMP)
    fetches, damages = list[str](), iter([True, False, False])
    real = store.files.filesystem.get

    def get(address: str, target: str, **options: Any) -> None:
        fetches.append(target)
        real(address, target, **options)
        if next(damages):
            Path(target).write_bytes(flipped(Path(target).read_bytes(), 8 * 50))

    monkeypatch.setattr(store.files.filesystem, "get", get)
    path = store.fetched("mix", tmp_path / "scratch")
    assert pl.read_parquet(path).equals(FRAME)
    if store.files.is_local:
        assert str(path) == store.address("mix") and not fetches
        return
    assert fetches == [str(path)] * 2 and path.is_relative_to(tmp_path / "scratch"), "the damaged copy was no good"
    store.fetched("mix", tmp_path / "scratch")
    assert len(fetches) == 3, "a whole one is fetched once"


def test_the_rejects_stand_before_the_table_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    real, order = store.files.write_by, []
    monkeypatch.setattr(store.files, "write_by", lambda name, fill: (order.append(name), real(name, fill)))
    store.write(FRAME, "cam", "0", STAMP, REJECTED)
    assert order == ["cam/rejected/0.parquet", "cam/0.parquet"]


def test_a_reader_always_sees_a_whole_table(store: Store) -> None:
    frames = [pl.DataFrame({"n": [number] * 5000}) for number in range(2)]
    store.write(frames[0], "t", None, Stamp(fingerprint="0"))
    failures: list[BaseException] = []
    stop = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        other = Store(store.root)
        try:
            while not stop.is_set():
                stamp, table = other.stamp("t"), other.read("t")
                assert stamp is not None and table.height == 5000 and table["n"].n_unique() == 1
                seen.add(stamp.fingerprint)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    started = time.monotonic()
    number = 0
    # For a while, and on a busy machine until enough was written and read to say something.
    while not failures and (time.monotonic() < started + 1.5 or number <= 10 or len(seen) < 2):
        assert time.monotonic() < started + 60, f"{number} tables written, {sorted(seen)} read"
        number += 1
        store.write(frames[number % 2], "t", None, Stamp(fingerprint=str(number % 2)))
    stop.set()
    reader.join()
    assert not failures


def test_a_table_that_is_replaced_at_every_look_is_whole_and_not_damaged(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"s3://{bucket}")
    frames = [pl.DataFrame({"n": [number] * 5000}) for number in range(2)]
    written = 0
    open_file = type(store.files.filesystem).open

    def write() -> None:
        nonlocal written
        store.write(frames[written % 2], "t", None, Stamp(fingerprint=str(written % 2)))
        written += 1

    def replaced_when_open(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        file = open_file(self, path, mode, **options)
        if mode == "rb":
            write()
        return file

    write()
    monkeypatch.setattr(type(store.files.filesystem), "open", replaced_when_open)
    stamp, table = store.stamp("t"), store.read("t")
    assert stamp is not None and table["n"].n_unique() == 1 and table.height == 5000
    assert written > 5 and not store.files.exists("t.parquet.damaged")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file had changed long ago."""
    monkeypatch.setattr(module, "_SETTLED_NS", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files whose stamp was read."""
    found: list[object] = []
    monkeypatch.setattr(module, "metadata", lambda file: (found.append(file), parquet.metadata(file))[1])
    return found


@pytest.mark.usefixtures("settled")
def test_a_table_is_read_once_while_it_stays_and_again_when_it_is_replaced(tmp_path: Path, reads: list[object]) -> None:
    for number in range(5):
        Store(str(tmp_path)).write(FRAME, "cam", "0", Stamp(fingerprint=f"{number}"))
        for _ in range(3):
            found = Store(str(tmp_path)).stamps([("cam", "0"), ("cam", "1")])
            stamp = found["cam", "0"]
            assert stamp is not None and stamp.fingerprint == f"{number}" and found["cam", "1"] is None
        assert len(reads) == number + 1
    (tmp_path / "cam" / "0.parquet").unlink()
    assert Store(str(tmp_path)).stamp("cam", "0") is None and len(reads) == 5


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


def test_a_file_that_changed_just_now_is_read_each_time(tmp_path: Path, reads: list[object]) -> None:
    store = Store(str(tmp_path))
    store.write(FRAME, "cam", "0", Stamp(fingerprint="one"))
    assert store.stamp("cam", "0") == store.stamp("cam", "0")
    assert len(reads) == 2
    assert module.local_version((tmp_path / "cam" / "0.parquet").stat()) == ""


def test_a_table_that_is_damaged_where_it_lies_is_not_fetched(store: Store, tmp_path: Path) -> None:
    store.write(FRAME, "mix", None, STAMP)
    store.files.write("mix.parquet", flipped(store.files.read("mix.parquet"), 8 * 50))
    with refused("storage.damaged", match=r"mix\.parquet"):
        store.fetched("mix", tmp_path / "scratch")
    with refused("storage.not_computed"):
        store.fetched("mix", tmp_path / "scratch")


@pytest.mark.parametrize("data", [b"", b"garbage", b"PAR1" + bytes(100), b"PAR1" + bytes(100) + b"\x10\0\0\0PAR1"])
def test_garbage_counts_as_missing_and_reading_it_says_so(store: Store, data: bytes) -> None:
    store.files.write("cam/0.parquet", data)
    assert store.stamp("cam", "0") is None
    with refused("storage.damaged", r"cam/0\.parquet.*0\.parquet\.damaged"):
        store.read("cam", "0")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_in_the_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    store, make = Store(str(tmp_path)), os.mkfifo if kind == "pipe" else os.mkdir
    (tmp_path / "cam").mkdir()
    for name in ("cam/0.parquet", "report.html"):
        make(tmp_path / name)
    looks: list[Callable[[], object]] = [lambda: store.stamp("cam", "0"), lambda: store.read("cam", "0")]
    if kind == "folder":
        store.files.write("report.html.stamp.json", Stamp(fingerprint="f").to_json().encode())
        looks.append(lambda: store.write(FRAME, "cam", "0", STAMP))
    else:
        os.mkfifo(tmp_path / "report.html.stamp.json")
    for look in (*looks, lambda: document_stamp(store, "report.html")):
        with refused("storage.path", "it is a folder, not a file" if kind == "folder" else None):
            look()


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
