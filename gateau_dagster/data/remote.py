"""Addresses that are not on this machine: S3 and the Hugging Face hub."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

import yaml

from gateau_dagster.errors import GateauError, TransientError

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

    It is a TransientError if trying again may help. Anything that is no failure of the connection, the credentials or
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
        return TransientError(f"{address}: the S3 server cannot be used: {error}: {_S3_CURE}")
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
        return TransientError(f"{address}: the Hugging Face hub cannot be used: {error}: {_HUB_CURE}")
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


_TRAIN = re.compile(r"(^|[^a-z0-9])train([^a-z0-9]|$)", re.IGNORECASE)
_OTHER = re.compile(r"(^|[^a-z0-9])(test|validation|valid|val|dev|eval)([^a-z0-9]|$)", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)


def train_files(fs: Any, root: str, readable: Callable[[str], bool]) -> list[dict[str, Any]]:
    """fsspec infos of the train split of the data set at `root` ('datasets/owner/name').

    The card's default configuration decides where it names data files (its split `train`, else the first one whose name
    starts so); otherwise the files with 'train' as a word of their path; otherwise all but test and validation files.

    Raises what the file system raises (FileNotFoundError for an unknown data set).
    """
    found = fs.find(root, detail=True)
    infos = {name.removeprefix(f"{root}/"): info for name, info in found.items() if readable(name)}
    patterns = card_patterns(fs.cat_file(f"{root}/README.md")) if f"{root}/README.md" in found else []
    if patterns:
        return [info for path, info in infos.items() if any(fnmatch(path, pattern) for pattern in patterns)]
    train = [info for path, info in infos.items() if _TRAIN.search(path)]
    return train or [info for path, info in infos.items() if not _OTHER.search(path)]


def card_patterns(card: bytes) -> list[str]:
    """Glob patterns of the train split in a data-set card (README.md with YAML front matter); [] if it names none."""
    match = _FRONT_MATTER.match(card.decode("utf-8", errors="replace").removeprefix("\ufeff"))
    front = yaml.safe_load(match.group(1)) if match else None
    configs = front.get("configs") if isinstance(front, dict) else None
    if not isinstance(configs, list) or not configs:
        return []
    chosen = next((c for c in configs if c.get("default") or c.get("config_name") == "default"), configs[0])
    files = chosen.get("data_files") or []
    if isinstance(files, str) or (isinstance(files, list) and all(isinstance(item, str) for item in files)):
        return _as_list(files)
    splits = [item for item in files if isinstance(item, dict)] if isinstance(files, list) else []
    exact = [item for item in splits if item.get("split") == "train"]
    named = exact or [item for item in splits if str(item.get("split")).startswith("train")]
    return _as_list(named[0].get("path", [])) if named else []


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
