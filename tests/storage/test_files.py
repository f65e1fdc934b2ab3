import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import Store
from gateau_dagster.storage.files import Files, local_copy
from tests.error_codes import refused
from tests.project import command_environment


def test_write_read_list_and_remove(store: Store) -> None:
    files = store.files
    assert files.names("f") == [] and not files.exists("f/a")
    files.write("f/a", b"1")
    files.write("f/b", b"2")
    files.write("f/g/c", b"3")
    assert files.read("f/b") == b"2"
    assert files.names("f") == ["a", "b", "g"]
    assert files.exists("f") and files.exists("f/g/c")
    files.remove("f/a")
    files.remove("not there")
    assert files.names("f") == ["b", "g"]
    files.remove("f")
    assert files.names("f") == []
    with pytest.raises(FileNotFoundError):
        files.read("f/b")


def test_another_process_s_files_are_seen_at_once(store: Store) -> None:
    other = Files(store.root)
    assert other.names("f") == []
    store.files.write("f/a", b"1")
    assert other.names("f") == ["a"] and other.exists("f/a")


def test_a_failing_local_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(str(tmp_path))
    files.write("a", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("storage.disk_full", "/a"):
        files.write("a", b"new")
    assert files.read("a") == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("root", ["/proc/nobody", "dangling/store", "dangling"])
def test_a_folder_that_cannot_be_made_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """The system says of it that it is not there, or that it is there already."""
    monkeypatch.chdir(tmp_path)
    Path("dangling").symlink_to("/proc/nobody")
    files = Files(root)
    writes: list[Any] = [files.write, files.create]
    for write in writes:
        with refused("storage.path"):
            write("a", b"1")
    with refused("storage.path"):
        files.write_by("a", Path.touch)


def test_a_file_that_is_filled_in_place_appears_whole_or_not_at_all(store: Store) -> None:
    files = store.files

    def fill(path: Path) -> None:
        path.write_bytes(b"new")

    def fail(path: Path) -> None:
        path.write_bytes(b"half of i")
        raise OSError(28, "No space left on device")

    files.write("f/a", b"old")
    with refused("storage.disk_full", "/f/a"):
        files.write_by("f/a", fail)
    assert files.read("f/a") == b"old" and files.names("f") == ["a"]
    files.write_by("f/a", fill)
    assert files.read("f/a") == b"new" and files.names("f") == ["a"]


LIMITED = """
import resource, signal, sys
import polars as pl
from gateau_dagster.errors import GateauError
from gateau_dagster.storage import Stamp, Store
store = Store(sys.argv[1])
store.write(pl.DataFrame({"n": [1]}), "t", None, Stamp(fingerprint="old"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.write(pl.select(n=pl.int_range(200_000).shuffle(seed=1)), "t", None, Stamp(fingerprint="new"))
except GateauError as error:
    print(error)
print(store.stamp("t").fingerprint, store.read("t").height)
"""


def test_a_file_size_limit_is_named_and_the_old_table_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True, text=True, check=True, env=command_environment(),
    )  # fmt: skip
    message, state = done.stdout.strip().splitlines()
    assert "the file is larger than allowed" in message and "t.parquet" in message
    assert state == "old 1"
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of half a megabyte, where the system lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no right to mount a small disk here; the size limit above stands in")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_old_file_stays(small_disk: Path) -> None:
    files = Files(str(small_disk))
    files.write("a", b"old")
    with refused("storage.disk_full"):
        files.write("a", bytes(2**20))
    assert files.read("a") == b"old" and files.names("") == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(GateauError, match="permission denied"):
            Files(str(tmp_path)).write("a", b"x")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with refused("storage.path"):
        Files(str(tmp_path / "store" / "deeper")).write("a", b"x")


@pytest.mark.parametrize("root", ["nonsense://bucket", "gdrive2://x", "memory://x"])
def test_an_address_of_no_known_kind_is_named(root: str) -> None:
    with refused("storage.root", r"storage\.root.*s3://"):
        Files(root).write("a", b"x")


def uploads(bucket: str) -> list[Any]:
    client: Any = boto3.client("s3")
    return client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])


def test_a_large_object_goes_up_in_parts_and_appears_whole(bucket: str, tmp_path: Path) -> None:
    data = os.urandom(2**20) * 60
    files = Files(f"s3://{bucket}")
    files.write("big", data)
    assert files.read("big") == data
    (tmp_path / "weights").write_bytes(data)
    files.upload("folder/weights", tmp_path / "weights")
    assert files.read("folder/weights") == data
    assert uploads(bucket) == []


def test_a_failed_upload_is_discarded_and_the_old_object_stays(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateau_dagster.storage import files as module

    files = Files(f"s3://{bucket}")
    files.write("big", b"old")
    (tmp_path / "weights").write_bytes(bytes(60 * 2**20))
    seen = []

    def breaking(stream: Any) -> Any:
        while piece := stream.read(30 * 2**20):
            yield piece
            seen.append(len(uploads(bucket)))
        raise RuntimeError("the disk below broke")

    monkeypatch.setattr(module, "_pieces", breaking)
    with pytest.raises(RuntimeError, match="broke"):
        files.upload("big", tmp_path / "weights")
    assert max(seen) == 1, "it was under way"
    assert uploads(bucket) == []
    assert files.read("big") == b"old"


def test_a_local_copy_is_the_file_itself_or_a_download(store: Store, tmp_path: Path) -> None:
    store.files.write("t.parquet", b"1")
    copy = local_copy(store.files, "t.parquet", tmp_path / "copy")
    assert copy.read_bytes() == b"1"
    assert copy.is_relative_to(tmp_path / "copy") != store.files.is_local


def test_a_second_copy_of_a_folder_replaces_the_first(store: Store, tmp_path: Path) -> None:
    """A download into a folder that is there would land one level deeper, and the old model would be evaluated."""
    store.files.write("checkpoint/config.json", b"first")
    store.files.write("checkpoint/old.bin", b"x")
    local_copy(store.files, "checkpoint", tmp_path / "copy")
    store.files.remove("checkpoint/old.bin")
    store.files.write("checkpoint/config.json", b"second")
    folder = local_copy(store.files, "checkpoint", tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"config.json": b"second"}
