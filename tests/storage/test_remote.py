"""One way to a file system, for the store and for the input."""

import pytest

from gateau_dagster.storage.files import Files
from gateau_dagster.storage.remote import filesystem, is_remote
from tests.error_codes import refused


def test_is_remote() -> None:
    addresses = ("s3://b/k", "hf://datasets/a/b", "/s3/x", "a/b")
    assert [is_remote(address) for address in addresses] == [True, True, False, False]


def test_the_store_and_the_input_share_connections(s3_environment: str) -> None:
    assert Files("s3://bucket/prefix").filesystem is filesystem("s3://other/input.jsonl")


@pytest.mark.parametrize("address", ["nonsense://bucket", "gdrive2://x", "memory://x", "http://host/x"])
def test_an_address_of_no_known_kind_has_none(address: str) -> None:
    with pytest.raises(ValueError, match="neither a local path nor on S3"):
        filesystem(address)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_credentials_in_the_end_point_are_refused(
    s3_environment: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://user:not-to-be-told@127.0.0.1:9")
    with refused("config.credentials", f"^{name} ") as caught:
        Files("s3://bucket/prefix").write("a", b"1")
    assert "user:" not in str(caught.value) and "not-to-be-told" not in str(caught.value)
