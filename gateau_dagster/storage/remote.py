"""Create remote file systems, in one place: S3 and the Hugging Face hub."""

import os
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from gateau_dagster.errors import GateauError

S3 = "s3://"
HUB = "hf://"
# A hanging server is reported within a minute: tries, time-outs, and pauses between them (3 seconds in all). A server
# that fails every fifth time goes unnoticed. A time-out counts from the last received byte.
S3_TRIES = 6
S3_CLIENT: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 9,
    "retries": {"mode": "standard", "total_max_attempts": 1},
}


def is_remote(address: str) -> bool:
    """Return whether the address names a file on S3 or on the Hugging Face hub."""
    return address.startswith((S3, HUB))


def filesystem(address: str) -> AbstractFileSystem:
    """Return the fsspec file system of an address, or the local one; uncached, since others write there, too.

    Credentials and the end point come from the environment (AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_S3; HF_TOKEN).

    Raises:
        ValueError: addresses of this kind have no file system.
        GateauError: the end point contains credentials, or the hub's token is invalid.
    """
    protocol, found, _ = address.partition("://")
    if not found:
        return fsspec.filesystem("file")
    if protocol == "hf":
        from huggingface_hub import HfFileSystem

        from gateau_dagster.storage.hub_client import prepare_hub

        prepare_hub()
        return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)  # it caches missing files
    if protocol != "s3":
        raise ValueError("it is not a local path, an s3:// address or an hf:// address")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if "@" in os.environ.get(name, ""):  # messages contain the end point, and no request to it succeeds
            raise GateauError(
                "config.credentials",
                f"{name} contains a user name or a password. Remove them: S3 credentials come from AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            )
    from gateau_dagster.storage.s3 import make_patient  # imports s3fs

    s3 = fsspec.filesystem("s3", use_listings_cache=False, config_kwargs=S3_CLIENT)
    make_patient(s3, S3_TRIES)
    return s3
