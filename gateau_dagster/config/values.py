"""Validate values of several sections: paths, addresses without credentials, and counts that a machine can hold."""

import os
import re
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from gateau_dagster.errors import GateauError, secret_found, secret_variable_named

# Generous but finite limits: larger values would show only as an endless run, or as a full memory.
LONGEST = 100_000_000
"""The most tokens of a sequence."""
MOST_TOKENS = 10**15
"""The most tokens of a training run."""
MOST_EPOCHS = 1000
MOST_ROWS = 100_000_000
"""The most rows of a training run, all of which are planned before it begins: a plan of about 10 GB."""
MOST_SEEDS = 2**32
"""The exclusive upper bound of seeds."""

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_USUAL_VARIABLE = re.compile(r"^[A-Z_][A-Z0-9_]{0,99}\Z")
_KEY_LIKE = re.compile(r"(?=[A-Z]*[0-9])[A-Z0-9]{16}")  # such as AKIAIOSFODNN7EXAMPLE; names have words with _ between
_UNFILLED = re.compile(r"\$\{\w+\}|^\$\w+")  # unexpanded shell variables: no folder is meant to have such a name
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # bytes; the limits of Linux and, except for the path, of macOS


def part_of(count: int, fraction: float) -> int:
    """Return round-half-up(count * fraction), at least 1.

    It computes in decimals, as the fraction is written: 0.145 of 100 is 15, though the nearest binary number is
    smaller.
    """
    exact = Decimal(repr(float(fraction))) * count
    return max(1, int(exact.to_integral_value(ROUND_HALF_UP)))


def as_written(share: float) -> Fraction:
    """Return a share exactly as its decimal digits say: 0.1 is 1/10, and not the nearest binary number."""
    return Fraction(repr(float(share)))


def possible_path(path: str) -> str:
    """Return the path or address unchanged.

    Raises:
        ValueError: the path is blank, or no path can have this name; the message says why.
    """
    if not path.strip():
        raise GateauError("config.path", "is empty: give a path, . for the folder of this file")
    if "\0" in path:
        raise GateauError("config.path", "contains a null character: remove it")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise GateauError("config.path", "contains half of a character (a surrogate): correct it") from error
    if unfilled := _UNFILLED.search(path):
        raise GateauError(
            "config.path", f"contains {unfilled.group()}, but variables are not replaced here: write the full path"
        )
    scheme, found, address = path.partition("://")
    if found and not (scheme and address.strip("/ ")):
        raise GateauError(
            "config.path", f"is {path!r}, which is not an address: give an address such as s3://bucket/folder"
        )
    names = [] if found else encoded.split(b"/")
    if len(encoded) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in names):
        raise GateauError(
            "config.path",
            f"begins with {path[:40]!r} and has {len(encoded):,} bytes. A path has at most {_LONGEST_PATH:,} bytes, "
            f"and a name in it {_LONGEST_NAME}: shorten it",
        )
    if path.startswith("~"):
        try:
            Path(path).expanduser()
        except RuntimeError as error:
            raise GateauError(
                "config.path", f"begins with {path.partition('/')[0]}, an unknown user: name a folder"
            ) from error
    return path


def possible_paths(paths: str | list[str]) -> str | list[str]:
    """Return one or several paths unchanged. Raise GateauError as `possible_path` does, and for an empty list."""
    if isinstance(paths, list):
        if not paths:
            raise GateauError("config.path", "is an empty list: name at least one path")
        for number, path in enumerate(paths, start=1):
            try:
                possible_path(path)
            except GateauError as error:
                raise error.reworded(f"path {number} of the list {error}") from error
        return paths
    return possible_path(paths)


def is_variable_name(text: str) -> bool:
    """Return whether a text is the name of an environment variable, rather than a variable's value."""
    if _VARIABLE.match(text) is None:
        return False
    return text in os.environ or bool(_USUAL_VARIABLE.match(text) and not _KEY_LIKE.search(text))


def secret_variable(text: str, *, what: str, example: str) -> str:
    """Return the name of the environment variable that holds a secret, and make messages mask its value.

    An invalid name, which may be the secret itself, is masked in all messages. A name that looks like a secret is
    rejected unless a variable with this name is set.

    Raises:
        ValueError: the text is not the name of a variable.
    """
    if not is_variable_name(text):
        secret_found(text)
        raise GateauError(
            "config.secret_in_file",
            f"must be the name of an environment variable that contains {what}, such as {example}: set such a "
            f"variable, and remove {what} from the file",
        )
    secret_variable_named(text)
    return text


def _variable_of(what: str, example: str) -> AfterValidator:
    return AfterValidator(partial(secret_variable, what=what, example=example))


def known_time_zone(name: str) -> str:
    """Return the name unchanged.

    Raises:
        ValueError: this machine knows no such time zone.
    """
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise GateauError(
            "config.time_zone", f"is {name!r}, which is not a time zone: give a name such as UTC or Europe/Berlin"
        ) from error
    return name


TimeZone = Annotated[str, AfterValidator(known_time_zone)]

AnyPath = Annotated[str, AfterValidator(possible_path)]
KeyVariable = Annotated[str, _variable_of("the key", "OPENAI_API_KEY")]
PasswordVariable = Annotated[str, _variable_of("the password", "GATEAU_MAIL_PASSWORD")]
HookVariable = Annotated[str, _variable_of("the address of the web hook", "GATEAU_WEBHOOK")]
DatabaseVariable = Annotated[str, _variable_of("the URL with the password", "DAGSTER_POSTGRES_URL")]

Beta = Annotated[float, Field(ge=0, lt=1)]
AdamBetas = Annotated[tuple[Beta, Beta], Field(strict=False)]  # YAML and JSON have lists


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


def output_path(text: str) -> Path:
    """Return the path of a local file that a command writes. Raise GateauError for an address elsewhere."""
    return Path(possible_path(_checked(text, set(), "name a local file, and copy it afterwards"))).expanduser()


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
