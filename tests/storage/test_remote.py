"""One way to a file system, for the store and for the input."""

import pytest

from gateau_dagster.storage.files import Files
from gateau_dagster.storage.remote import filesystem, is_remote


def test_is_remote() -> None:
    addresses = ("s3://b/k", "hf://datasets/a/b", "/s3/x", "a/b")
    assert [is_remote(address) for address in addresses] == [True, True, False, False]


def test_the_store_and_the_input_share_connections(s3_environment: str) -> None:
    assert Files("s3://bucket/prefix").filesystem is filesystem("s3://other/input.jsonl")


@pytest.mark.parametrize("address", ["nonsense://bucket", "gdrive2://x"])
def test_an_address_of_no_known_kind_has_none(address: str) -> None:
    with pytest.raises((ValueError, ImportError)):
        filesystem(address)
