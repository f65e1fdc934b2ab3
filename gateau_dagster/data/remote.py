"""Files that are not on this machine: `s3://` and `hf://` through fsspec, with errors that a user can act on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from gateau_dagster.errors import GateauError, PassingError

S3 = "s3://"
HUB = "hf://"
_S3_CURE = "check AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, then run again"
_HUB_CURE = "check the network, HF_ENDPOINT and HF_TOKEN, then run again"
# Connecting is given up early; reading is not, for a busy server may be slow. s3fs retries on top of it.
_S3_OPTIONS: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}


def is_remote(address: str) -> bool:
    """Whether the address names a file on S3 or on the Hugging Face hub."""
    return address.startswith((S3, HUB))


def filesystem(address: str) -> Any:
    """The fsspec file system of a remote address, without listing caches: a changed file is seen at once.

    Credentials and the end point come from the environment (AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_S3; HF_TOKEN).
    """
    if address.startswith(S3):
        import s3fs

        return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=_S3_OPTIONS)
    from huggingface_hub import HfFileSystem

    return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)


@contextmanager
def guarded(address: str) -> Iterator[None]:
    """Turn what goes wrong between here and `address` into a GateauError with cause and cure.

    It is a PassingError if trying again may help. Anything that is no failure of the connection, the credentials or
    the disk passes through as it is.
    """
    try:
        yield
    except GateauError:
        raise
    except Exception as error:
        explained = _explained(error, address)
        if explained is None:
            raise
        raise explained from error


def _explained(error: Exception, address: str) -> GateauError | None:
    """The error with cause and cure, or None when it is not of this module's kind."""
    if address.startswith(S3):
        return _explained_s3(error, address)
    if address.startswith(HUB):
        return _explained_hub(error, address)
    if isinstance(error, FileNotFoundError):
        return GateauError(f"{address} does not exist (any more): check the path")
    if isinstance(error, PermissionError):
        return GateauError(f"{address} may not be read: give this user the permission to read it")
    if isinstance(error, OSError):
        return GateauError(f"{address} cannot be read: {error}: check the disk, then run again")
    return None


def _explained_s3(error: Exception, address: str) -> GateauError | None:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return GateauError(f"{address}: no S3 credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if isinstance(error, FileNotFoundError):
        cause = "the bucket does not exist" if "NoSuchBucket" in repr(error.__cause__) else "there is no such file"
        return GateauError(f"{address}: {cause}: check the address and AWS_ENDPOINT_URL")
    if isinstance(error, PermissionError):
        return GateauError(f"{address}: access denied ({error}): check the credentials and the bucket's permissions")
    if isinstance(error, (BotoCoreError, ClientError, OSError, TimeoutError)):
        return PassingError(f"{address}: the S3 server cannot be used: {error}: {_S3_CURE}")
    return None


def _explained_hub(error: Exception, address: str) -> GateauError | None:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled

    if any(isinstance(cause, GatedRepoError) for cause in (error, *_causes(error))):
        return GateauError(f"{address}: the data set is gated: accept its terms on the hub and set HF_TOKEN")
    if isinstance(error, FileNotFoundError):
        cause = "the Hugging Face hub has no such data set, revision or file"
        return GateauError(f"{address}: {cause}: check the name, and set HF_TOKEN if it is private")
    if isinstance(error, OfflineModeIsEnabled):
        return GateauError(f"{address}: HF_HUB_OFFLINE is set: unset it, or download the file and give its path")
    if isinstance(error, (HfHubHTTPError, OSError, *_http_errors())):
        return PassingError(f"{address}: the Hugging Face hub cannot be used: {error}: {_HUB_CURE}")
    if isinstance(error, (NotImplementedError, ValueError)):
        return GateauError(f"{address}: {error}: write hf://datasets/owner/name/file")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


@lru_cache(maxsize=1)
def _http_errors() -> tuple[type[Exception], ...]:
    """The base error of whichever HTTP client this huggingface_hub uses: it is not part of its interface."""
    from huggingface_hub import HfFileSystem

    module = inspect.getmodule(HfFileSystem)
    clients = [getattr(module, name, None) for name in ("httpx2", "httpx", "requests")]
    return tuple(client.HTTPError for client in clients if client is not None)
