from collections.abc import Callable
from pathlib import Path

import pytest

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.remote import guarded, is_remote
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.errors import GateauError, TransientError

from .inputs import explicit, jsonl, put

Put = Callable[[str, bytes], None]


def test_is_remote() -> None:
    assert [is_remote(address) for address in ("s3://b/k", "hf://datasets/a/b", "/s3/x", "a/b")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://no-such-bucket/x.jsonl", "s3://no-such-bucket/x.jsonl: the bucket does not exist: check the address"),
        ("s3://no-such-bucket/*.jsonl", "matches no data file: .* that the bucket exists"),
        ("s3://data-bucket/nothing.jsonl", "there is no such file: check the address"),
        ("s3://data-bucket/nothing*.jsonl", "matches no data file"),
    ],
)
def test_s3_without_the_thing(s3_put: Put, tmp_path: Path, address: str, reason: str) -> None:
    with pytest.raises(GateauError, match=reason) as caught:
        resolve_files(address, tmp_path)
    assert not isinstance(caught.value, TransientError)


def test_s3_without_a_server_may_be_tried_again(s3_put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match=r"cannot be used: Could not connect .* check AWS_ENDPOINT_URL"):
        resolve_files("s3://data-bucket/x.jsonl", tmp_path)


def test_s3_without_credentials(s3_put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(GateauError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        resolve_files("s3://data-bucket/x.jsonl", tmp_path)


def test_a_lost_server_is_no_damaged_file(s3_put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_put("lost/x.jsonl.zst", b"anything")
    file = resolve_files("s3://data-bucket/lost/x.jsonl.zst", tmp_path)[0]
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setattr("s3fs.S3File.retries", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TransientError):
        list(read_records(file))


def test_a_local_file_that_vanished(tmp_path: Path) -> None:
    file = put(tmp_path / "x.jsonl", jsonl(explicit("a")))
    (tmp_path / "x.jsonl").unlink()
    with pytest.raises(GateauError, match=r"x\.jsonl does not exist \(any more\)"):
        list(read_records(file))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError("no"), "may not be read: give"),
        (OSError(5, "Input/output error"), "Input/output error: check the disk"),
    ],
)
def test_local_failures_name_a_cure(error: OSError, reason: str) -> None:
    with pytest.raises(GateauError, match=reason), guarded("/d/x"):
        raise error


@pytest.mark.parametrize("address", ["/d/x", "s3://b/x", "hf://datasets/a/b/x"])
def test_other_errors_pass_through(address: str) -> None:
    with pytest.raises(ZeroDivisionError), guarded(address):
        raise ZeroDivisionError
    with pytest.raises(GateauError, match=r"^as it is$"), guarded(address):
        raise GateauError("as it is")


def test_s3_access_denied_and_offline_hub() -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    with pytest.raises(GateauError, match="access denied"), guarded("s3://b/x"):
        raise PermissionError("Forbidden")
    with pytest.raises(GateauError, match="HF_HUB_OFFLINE is set"), guarded("hf://datasets/a/b/x"):
        raise OfflineModeIsEnabled
