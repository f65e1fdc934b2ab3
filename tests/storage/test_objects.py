"""Objects on S3: creation that one of many wins, whatever answer is lost."""

from typing import Any

import pytest
from s3fs import S3File

from gateau_dagster.storage import Store
from gateau_dagster.storage import files as files_module
from gateau_dagster.storage.files import Files
from tests.error_codes import refused


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

    def refused(file: S3File) -> None:
        raise FileNotFoundError("The specified upload does not exist.")

    monkeypatch.setattr(S3File, "commit", refused)
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


def test_nothing_is_created_where_there_is_no_bucket(s3_environment: str) -> None:
    with refused("storage.no_bucket"):
        Files("s3://no-such-bucket/prefix").create("a", b"1")
