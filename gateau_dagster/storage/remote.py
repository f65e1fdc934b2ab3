"""File systems that are not on this machine, all made here: S3 and the Hugging Face hub."""

from typing import Any

import fsspec
from fsspec import AbstractFileSystem

S3 = "s3://"
HUB = "hf://"
# A server that hangs is reported within a minute: two tries of s3fs, of two tries each of the client below it. Their
# own settings would take six minutes. A time-out counts from the last byte that came.
S3_TRIES = 2
S3_CLIENT: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 14,
    "retries": {"mode": "standard", "total_max_attempts": 2},
}


def is_remote(address: str) -> bool:
    """Whether the address names a file on S3 or on the Hugging Face hub."""
    return address.startswith((S3, HUB))


def filesystem(address: str) -> AbstractFileSystem:
    """The fsspec file system of an address, or the local one. Its listings are not cached: others write there, too.

    Credentials and the end point come from the environment (AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_S3; HF_TOKEN).

    Raises:
        ImportError, ValueError: there is none for addresses of this kind.
    """
    protocol, found, _ = address.partition("://")
    if not found:
        return fsspec.filesystem("file")
    if protocol == "hf":
        from huggingface_hub import HfFileSystem

        return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)  # it remembers what was not there
    if protocol not in {"s3", "s3a"}:
        return fsspec.filesystem(protocol, use_listings_cache=False)
    s3: Any = fsspec.filesystem(protocol, use_listings_cache=False, config_kwargs=S3_CLIENT)
    s3.retries = S3_TRIES
    return s3
