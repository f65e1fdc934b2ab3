import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import pytest
from s3fs import S3File

from gateau_dagster.errors import GateauError
from gateau_dagster.storage import Stamp, Store, documents
from gateau_dagster.storage import files as files_module
from gateau_dagster.storage.documents import publish_folder
from gateau_dagster.storage.files import Files, local_copy
from gateau_dagster.storage.local import fill_with, flush_folder, write_if_other
from gateau_dagster.storage.remote import filesystem, is_remote
from tests.kit.error_codes import refused
from tests.kit.project import command_environment
from tests.storage.builders import mounted_disk

NOT_PERMITTED = PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("name", ["../a", "a/../../b", "..", "/etc/a", "a/..", "a\0b"])
def test_no_name_leads_out_of_the_store(store: Store, name: str) -> None:
    """On S3 as well, where clients and proxies resolve such names."""
    files = store.files
    for act in (files.read, files.remove, files.exists, files.names, files.size, partial(files.write, data=b"x")):
        with refused("storage.outside"):
            act(name)
    for act in (partial(files.create, data=b"x"), partial(files.rename, new="a"), partial(files.write_by, fill=print)):
        with refused("storage.outside"):
            act(name)
    assert files.sizes() == {}


def test_write_read_list_and_remove(store: Store) -> None:
    files, other = store.files, Files(store.root)
    assert files.names("f") == other.names("f") == [] and not files.exists("f/a")
    files.write("f/a", b"1")
    assert other.names("f") == ["a"] and other.exists("f/a"), "another process's files are seen at once"
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


def test_a_failing_local_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a creation that fails nothing."""
    files = Files(str(tmp_path))
    files.write("a", b"old")

    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with refused("storage.disk_full", "/a"):
        files.write("a", b"new")
    with refused("storage.disk_full", "/b"):
        files.create("b", b"1")
    assert files.read("a") == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("root", ["/proc/nobody", "dangling/store", "dangling", "file/deeper"])
def test_a_folder_that_cannot_be_made_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """The system says of it that it is not there, or that it is there already."""
    monkeypatch.chdir(tmp_path)
    Path("dangling").symlink_to("/proc/nobody")
    Path("file").touch()
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
    assert "the file exceeds the size limit" in message and "t.parquet" in message
    assert state == "old 1"
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "512k") as folder:
        files = Files(str(folder))
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


@pytest.mark.parametrize("address", ["nonsense://bucket", "gdrive2://x", "memory://x", "http://host/x"])
def test_an_address_of_no_known_kind_is_named(address: str) -> None:
    assert [is_remote(each) for each in ("s3://b/k", "hf://datasets/a/b", "/s3/x", "a/b")] == [True, True, False, False]
    with refused("storage.root", r"storage\.root.*s3://"):
        Files(address).write("a", b"x")
    with pytest.raises(ValueError, match="not a local path"):
        filesystem(address)


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


def test_a_second_copy_of_a_folder_replaces_the_first(store: Store, tmp_path: Path) -> None:
    """A download into a folder that is there would land one level deeper, and the old model would be evaluated."""
    store.files.write("checkpoint/config.json", b"first")
    store.files.write("checkpoint/old.bin", b"x")
    local_copy(store.files, "checkpoint", tmp_path / "copy")
    store.files.remove("checkpoint/old.bin")
    store.files.write("checkpoint/config.json", b"second")
    folder = local_copy(store.files, "checkpoint", tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"config.json": b"second"}
    assert folder.is_relative_to(tmp_path / "copy") != store.files.is_local, "the folder itself, or a download"


@pytest.fixture
def private() -> Iterator[None]:
    """Whoever runs the test keeps new files to themselves."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("private")
def test_new_files_and_folders_have_the_rights_that_the_umask_gives(tmp_path: Path) -> None:
    files = Files(str(tmp_path / "store"))
    files.write("f/a", b"1")
    files.write_by("f/b", partial(fill_with, data=b"1"))
    files.create("f/c", b"1")
    assert {rights(path) for path in (tmp_path / "store" / "f").iterdir()} == {0o600}
    assert rights(tmp_path / "store" / "f") == rights(tmp_path / "store") == 0o700
    os.umask(0o002)
    files.write("f/a", b"for the group")
    assert rights(tmp_path / "store" / "f" / "a") == 0o664


@pytest.mark.parametrize("other_disk", [False, True])
def test_what_is_published_has_the_rights_that_the_umask_gives(
    tmp_path: Path, private: None, other_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors makes files that their user alone may read."""
    for umask, file, folder in ((0o077, 0o600, 0o700), (0o022, 0o644, 0o755)):
        os.umask(umask)
        (tmp_path / "made" / "sub").mkdir(parents=True)
        weights = tmp_path / "made" / "sub" / "weights"
        weights.write_text("1")
        weights.chmod(0o600)
        if other_disk:
            monkeypatch.setattr(documents, "moves_into", lambda new, parent: False)
        publish_folder(Store(str(tmp_path / f"store{umask}")), tmp_path / "made", "models/a", Stamp(fingerprint="f"))
        for path in (tmp_path / f"store{umask}").rglob("*"):
            assert rights(path) == (folder if path.is_dir() else file), path


def test_one_of_many_creates_the_file(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: files.create("f/a", str(number).encode()), range(32)))
    assert made.count(True) == 1
    assert files.read("f/a") == str(made.index(True)).encode()
    assert files.names("f") == ["a"]


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def asked_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    assert Files(str(tmp_path)).create("a", b"1")
    assert not Files(str(tmp_path)).create("a", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=NOT_PERMITTED))
    files = Files(str(tmp_path))
    assert [files.create("a", b"1"), files.create("a", b"2")] == [True, False]
    assert files.read("a") == b"1" and files.names("") == ["a"]


@pytest.mark.parametrize("member", [True, False])
def test_what_is_published_in_a_group_s_folder_is_the_group_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: bool
) -> None:
    """Not who publishes decides, by the group of the scratch folder, who may replace a model."""
    group = 4321 if os.geteuid() == 0 else os.getgroups()[-1]
    root, made = tmp_path / "store", tmp_path / "made"
    root.mkdir()
    os.chown(root, -1, group)
    root.chmod(0o2775)
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "weights").write_text("1")
    if not member:
        monkeypatch.setattr(os, "chown", mock.Mock(side_effect=NOT_PERMITTED))
    publish_folder(Store(str(root)), made, "models/a", Stamp(fingerprint="f"))
    found = [root / "models", *(root / "models").rglob("*")]
    assert {path.name for path in found} == {"models", "a", "sub", "weights", "gateau.json"}
    assert {path.stat().st_gid for path in found} == {group}
    if member:
        assert all(path.stat().st_mode & stat.S_ISGID for path in found if path.is_dir())
    assert not made.exists()


def test_a_text_that_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.yaml"
    write_if_other(file, "naïve: 1\n")
    os.utime(file, (1, 1))
    write_if_other(file, "naïve: 1\n")
    assert file.stat().st_mtime == 1
    for other in (b"naive: 1\n", b"na\xefve: 1\n"):  # the second is no UTF-8
        file.write_bytes(other)
        write_if_other(file, "naïve: 1\n")
        assert file.read_text(encoding="utf-8") == "naïve: 1\n"
    assert [each.name for each in file.parent.iterdir()] == ["file.yaml"]


def test_each_file_of_a_finished_folder_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/weights", "a/b/part"):
        (tmp_path / name).write_text("x")
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    flush_folder(tmp_path / "a")
    assert sorted(flushed) == [str(tmp_path / name) for name in ("a/b/part", "a/weights")]


def test_a_file_is_created_once(store: Store) -> None:
    files = store.files
    assert [files.create("f/a", b"1"), files.create("f/a", b"1"), files.create("f/a", b"2")] == [True, False, False]
    assert files.read("f/a") == b"1" and files.names("f") == ["a"]
    files.remove("f/a")
    assert files.create("f/a", b"2") and files.read("f/a") == b"2"
    files.write("f/a", b"3")
    assert not files.create("f/a", b"4") and files.read("f/a") == b"3"


def test_a_creation_whose_answer_was_lost_is_known_as_this_call_s(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(f"s3://{bucket}")
    server: Any = files.filesystem
    once = server.pipe_file

    def asked_twice(*arguments: Any, **options: Any) -> Any:
        once(*arguments, **options)
        return once(*arguments, **options)

    monkeypatch.setattr(server, "pipe_file", asked_twice)
    assert files.create("a", b"1"), "the second time it is there already"
    assert not files.create("a", b"1")


def test_an_upload_whose_last_answer_was_lost_is_known_as_this_call_s(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, the server knows of no such upload: it has become the object."""
    monkeypatch.setattr(files_module, "_CHUNK_BYTES", 1000)
    files, commit = Files(f"s3://{bucket}"), S3File.commit

    def lost(file: S3File) -> None:
        commit(file)
        raise FileNotFoundError("The specified upload does not exist.")

    with monkeypatch.context() as patch:
        patch.setattr(S3File, "commit", lost)
        files.write("a", bytes(2500))
    assert files.read("a") == bytes(2500)
    monkeypatch.setattr(S3File, "commit", mock.Mock(side_effect=FileNotFoundError("no such upload")))
    with pytest.raises(FileNotFoundError):
        files.write("a", bytes(3000))
    assert files.read("a") == bytes(2500)


def test_where_another_s_creation_failed_it_is_tried_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateau_dagster.storage import objects

    files = Files(f"s3://{bucket}")
    server: Any = files.filesystem
    once, asked = server.pipe_file, []

    def refused_first(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            cause: Any = RuntimeError("ConditionalRequestConflict")
            cause.response = {"ResponseMetadata": {"HTTPStatusCode": 409}}
            raise OSError(5, "conflict") from cause
        return once(*arguments, **options)

    monkeypatch.setattr(objects, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(server, "pipe_file", refused_first)
    assert files.create("a", b"1") and len(asked) == 2


def test_the_store_and_the_input_share_connections(s3_environment: str) -> None:
    assert Files("s3://bucket/prefix").filesystem is filesystem("s3://other/input.jsonl")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_credentials_in_the_end_point_are_refused(
    s3_environment: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://user:not-to-be-told@127.0.0.1:9")
    with refused("config.credentials", f"^{name} ") as caught:
        Files("s3://bucket/prefix").write("a", b"1")
    assert "user:" not in str(caught.value) and "not-to-be-told" not in str(caught.value)
