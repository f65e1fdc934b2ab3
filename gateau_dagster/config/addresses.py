"""Validate addresses in the configuration: local paths, S3 and the Hugging Face hub. Reject credentials in them."""

import re
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator

from gateau_dagster.config.values import possible_path, possible_paths
from gateau_dagster.errors import GateauError

# With one slash or none they would name a local folder.
_PROTOCOLS = {"s3", "s3a", "hf", "file", "http", "https", "memory", "gs", "gcs", "az", "abfs", "abfss", "ftp", "sftp"}
_READABLE_KIND = re.compile(r"[a-z0-9+.-]+(::[a-z0-9+.-]+)*")
_PASSWORD = re.compile(r"^[^/\s:]+:[^\s@]+@[^/\s]")
_QUERY = re.compile(r"[?&;](?!versionId=)[\w.~%-]+=")
_CREDENTIALS = (
    "seems to contain credentials and is not shown. Remove them. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "AWS_PROFILE, or HF_TOKEN in the environment"
)


def store_address(text: str) -> str:
    """Return a local folder or s3://bucket/prefix in its canonical spelling. Raise ValueError for anything else."""
    return _checked(text, {"s3"}, "give a local folder or s3://bucket/prefix")


def input_address(text: str) -> str:
    """Return a local path, an s3:// or hf:// address or a data set's name. Raise ValueError for anything else."""
    return _checked(text, {"s3", "hf"}, "download the file and give its path, or an s3:// or hf:// address")


def model_address(text: str) -> str:
    """Return a local folder or a name of the hub. Raise ValueError for anything else."""
    return _checked(text, set(), "download the model and give its folder, or its name on the Hugging Face hub")


StoreAddress = Annotated[str, AfterValidator(store_address), AfterValidator(possible_path)]
InputAddress = Annotated[str, AfterValidator(input_address)]
InputAddresses = Annotated[InputAddress | list[InputAddress], AfterValidator(possible_paths)]
ModelAddress = Annotated[str, AfterValidator(model_address), AfterValidator(possible_path)]


def _checked(text: str, known: set[str], cure: str) -> str:
    kind, slashes, rest = _parts(text)
    if not kind:
        if _PASSWORD.match(text):
            raise GateauError("config.credentials", _CREDENTIALS)
        return text
    if kind == "file":
        return _local(slashes, rest)
    kind = "s3" if kind == "s3a" else kind
    if kind not in known:
        shown = f"{kind}://" if _READABLE_KIND.fullmatch(kind) else "this kind of address"
        raise GateauError("config.address", f"{shown} is not supported here: {cure}")
    place, _, _ = rest.partition("/")
    if "@" in place or (":" in place and not place.startswith("arn:")) or _QUERY.search(rest):
        raise GateauError("config.credentials", _CREDENTIALS)
    if slashes != "://" or not place:
        raise GateauError("config.address", f"names no {'bucket' if kind == 's3' else 'data set'}: {cure}")
    return f"{kind}://{rest}"


def _parts(text: str) -> tuple[str, str, str]:
    """Return kind, separator and rest of an address; the kind is empty for a local path or a name."""
    kind, slashes, rest = text.partition("://")
    if slashes and "/" not in kind:
        return kind.strip().lower(), slashes, rest
    kind, colon, rest = text.partition(":")
    return (kind.lower(), colon, rest) if kind.lower() in _PROTOCOLS else ("", "", text)


def _local(slashes: str, rest: str) -> str:
    """Return the path of a file: address, which may name this host only."""
    path = rest.removeprefix("localhost") if slashes == "://" else rest
    if not path.startswith("/"):
        raise GateauError(
            "config.address", "a file: address must name an absolute path: write file:///folder/file, or the path alone"
        )
    return unquote(path)
