"""Locate input files, local or remote, and define the records that are read from them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from gateau_dagster.config.base import Verify
from gateau_dagster.config.values import possible_path
from gateau_dagster.data.globs import files_below, matching_files
from gateau_dagster.data.hub import train_files
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import plural
from gateau_dagster.storage.failures import is_gated, readable_input
from gateau_dagster.storage.json_cache import recall_all, remember_all
from gateau_dagster.storage.remote import HUB, S3, filesystem, is_remote

FORMATS = ("jsonl", "json", "parquet")
COMPRESSIONS = ("gz", "zst")
_FORMAT_NAMES = "jsonl, json or parquet"
FILE_DIGESTS = "file-digests.json"
"""The cache file with digests of input files; see content_signature."""
_DATA_FILE = re.compile(rf"\.({'|'.join(FORMATS)})(\.({'|'.join(COMPRESSIONS)}))?$", re.IGNORECASE)
_TEXT_FILE = re.compile(rf"\.txt(\.({'|'.join(COMPRESSIONS)}))?$", re.IGNORECASE)
_PACKED_FILE = re.compile(rf"\.({'|'.join(COMPRESSIONS)})$", re.IGNORECASE)
# Data that is not read, whether packed or not; descriptions of data are excluded.
_FOREIGN_FILE = re.compile(
    r"(?<!/readme)(?<!/license)(?<!/notice)(?<!/requirements)"
    r"\.(arrow|feather|csv|tsv|txt|xlsx?|ods|pkl|pickle|avro|orc|xml|ya?ml|toml|db|sqlite3?|h5|hdf5|npy|npz|msgpack|lance"
    r"|tar|tgz|zip|7z|rar|(jsonl?|parquet|ndjson)\.(bz2|xz|lz4|br|zip|snappy)|ndjson|jsonlines)(\.(gz|zst|bz2|xz))?$",
    re.IGNORECASE,
)
# Files that datasets' save_to_disk writes beside its .arrow files, and above them for a DatasetDict.
_SAVED_BESIDE, _SAVED_ABOVE = ("state.json", "dataset_info.json"), "dataset_dict.json"
_NAMED = 5
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_GLOB = re.compile(r"[*?\[]")

Wanted = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of input. `address` is absolute or remote; `label` names it to users, uniquely among the run's files."""

    address: str
    size: int
    stamp: str
    label: str = ""

    @cached_property
    def name(self) -> str:
        """Return the file's name without its folder; bytes that are not UTF-8 are escaped, so that tables hold it."""
        return PurePosixPath(self.address).name.encode("utf-8", errors="backslashreplace").decode()

    @cached_property
    def stem(self) -> str:
        """Return the file's name without folder and data extensions: 'long' of 'data/long.jsonl.gz'."""
        return _TEXT_FILE.sub("", _DATA_FILE.sub("", self.name))

    @property
    def format(self) -> str | None:
        """Return 'jsonl', 'json', 'parquet', or None for a type that cannot be read."""
        match = _DATA_FILE.search(self.name)
        return match.group(1).lower() if match else None

    @property
    def compression(self) -> str | None:
        """Return 'gz', 'zst' or None."""
        match = _PACKED_FILE.search(self.name)
        return match.group(1).lower() if match else None


def resolve_files(path: str | Sequence[str], folder: Path, *, plain_texts: bool = False) -> list[SourceFile]:
    """Return the files that `path` means, relative to `folder`: patterns in the given order, each one's files sorted.

    A pattern is a local path, folder or glob, or an `s3://` or `hf://` address (glob too). It may be the name of a
    Hugging Face data set, whose train split counts. A file that several patterns name is returned once. Folders and
    data sets contribute their data files, with `plain_texts` also those that end in .txt.

    Raises:
        GateauError: a pattern matches nothing, or storage cannot be reached.
    """
    found: dict[str, SourceFile] = {}
    for pattern in [path] if isinstance(path, str) else path:
        try:
            possible_path(pattern)
        except ValueError as error:
            raise GateauError(f"a path {error}") from error
        files = sorted(_resolve(pattern, folder, _wanted(plain_texts)), key=lambda file: file.address)
        if not files:
            where = "" if is_remote(pattern) or Path(pattern).is_absolute() else f" under {folder.resolve()}"
            bucket = ", that the bucket exists, and AWS_ENDPOINT_URL" if pattern.startswith(S3) else ""
            kind = "file" if plain_texts else "data file"
            foreign = passed_over(pattern, pattern, folder, plain_texts=plain_texts)
            hint = f" ({foreign[0].rstrip('.')})" if foreign else ""
            raise GateauError(
                f"{pattern!r} matches no {kind}{where}: check the path in the configuration{bucket}{hint}"
            )
        for file in files:
            found.setdefault(file.address, file)
    names = Counter(file.name for file in found.values())
    labels = (file.name if names[file.name] == 1 else _short(file.address, folder) for file in found.values())
    return [replace(file, label=label) for file, label in zip(found.values(), labels, strict=True)]


def passed_over(key: str, path: str | Sequence[str], folder: Path, *, plain_texts: bool = False) -> list[str]:
    """Return a sentence for each local folder of `path` that holds data files of a type that is not read.

    Args:
        key: of the configuration, for the sentence.
        path: see resolve_files, with the other arguments.
    """
    sentences = []
    for pattern in [path] if isinstance(path, str) else path:
        local = (folder / Path(pattern).expanduser()).absolute()
        if is_remote(pattern) or not local.is_dir():
            continue
        with readable_input(pattern):
            names = _foreign(map(str, files_below(local, is_foreign)), _wanted(plain_texts))
        if names:
            sentences.append(
                f"{key}: {pattern} holds {plural(len(names), 'file')} that {'is' if len(names) == 1 else 'are'} passed "
                f"over, for no {_FORMAT_NAMES}: {_listed(names)}. Export them to one of these, or move them elsewhere."
            )
    return sentences


def is_foreign(name: str) -> bool:
    """Return whether a file's name indicates data of a type that is not read."""
    return _FOREIGN_FILE.search(f"/{name.rpartition('/')[2]}") is not None


def _foreign(names: Iterable[str], wanted: Wanted) -> list[str]:
    return [name for name in names if is_foreign(name) and not wanted(name)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(PurePosixPath(name).name for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{shown}{more}".encode("utf-8", errors="backslashreplace").decode()


def _check_not_saved(names: Collection[str], pattern: str) -> None:
    """Raise GateauError if files are those of datasets' save_to_disk, including a DatasetDict."""
    arrow = {name.rpartition("/")[0] for name in names if name.lower().endswith(".arrow")}
    beside = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in _SAVED_BESIDE}
    saved = sorted(arrow & beside)
    saved += sorted(name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == _SAVED_ABOVE and arrow)
    if not saved:
        return
    others = [name for name in names if name.rpartition("/")[0] not in arrow and name.rpartition("/")[0] not in saved]
    others += [
        name
        for name in names
        if name.rpartition("/")[0] in arrow
        and not name.endswith(".arrow")
        and name.rpartition("/")[2] not in (*_SAVED_BESIDE, _SAVED_ABOVE)
    ]
    rest = f" Or name the other files alone, {_listed(sorted(others))}." if others else ""
    raise GateauError(
        f"{pattern}: {_shortest(saved)} was written by datasets' save_to_disk, and its Arrow files are not read: load "
        "it with datasets.load_from_disk, export each split with to_parquet or to_json, and give the exported file as "
        f"the path.{rest}"
    )


def _shortest(folders: Sequence[str]) -> str:
    return min(folders, key=len)


def input_signature(files: Sequence[SourceFile]) -> str:
    """Return the SHA-256 (hex) over address, size and stamp of each file; read no content."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.address}\0{file.size}\0{file.stamp}\n".encode("utf-8", errors="surrogatepass"))
    return digest.hexdigest()


def content_signature(files: Sequence[SourceFile], cache: Path, verify: Verify = "signature") -> str:
    """Return the SHA-256 (hex) over name and content of each file, in order; touching a file does not change it.

    A local file is read again only if its size or modification time changed, or if `verify` requires it; `cache`, a
    JSON file, stores digests. Remote files count by their stamp, which S3 and the hub derive from the content.
    """
    known = recall_all(cache)
    fresh = {
        file.address: [file.size, file.stamp, _content(file, {} if verify == "content" else known)]
        for file in files
        if not is_remote(file.address)
    }
    if any(known.get(address) != entry for address, entry in fresh.items()):
        remember_all(cache, fresh)
    parts = [str(fresh[file.address][2]) if file.address in fresh else file.stamp for file in files]
    return text_digest([part for file, content in zip(files, parts, strict=True) for part in (file.name, content)])


def _content(file: SourceFile, known: dict[str, Any]) -> str:
    """Return the digest of a local file's content: the known one if size and stamp are equal."""
    size, stamp, digest = known.get(file.address, [-1, "", ""])
    if (size, stamp) == (file.size, file.stamp):
        return str(digest)
    with readable_input(file.address), Path(file.address).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _short(address: str, folder: Path) -> str:
    path, base = Path(address), folder.absolute()
    inside = not is_remote(address) and path.is_relative_to(base)
    text = path.relative_to(base).as_posix() if inside else address
    return text.encode("utf-8", errors="backslashreplace").decode()


def _wanted(plain_texts: bool) -> Wanted:
    """Return a predicate for the names of data files in a folder."""
    return lambda name: bool(_DATA_FILE.search(name) or (plain_texts and _TEXT_FILE.search(name)))


def _resolve(pattern: str, folder: Path, wanted: Wanted) -> list[SourceFile]:
    if is_remote(pattern):
        return _remote_files(pattern, wanted)
    with readable_input(pattern):
        return _local_files(pattern, folder, wanted)


def _local_files(pattern: str, folder: Path, wanted: Wanted) -> list[SourceFile]:
    """Return the files of a local path, folder or glob, or else of a data set on the hub."""
    local = (folder / Path(pattern).expanduser()).absolute()
    if local.is_file():
        _check_file_not_saved(local, pattern)
        return [_local_file(local)]
    if local.is_dir():
        found = files_below(local, lambda name: wanted(name) or is_foreign(name))
        _check_not_saved([str(path) for path in found], pattern)
        return [_local_file(path) for path in found if wanted(path.name)]
    if _GLOB.search(pattern):
        found = matching_files(str(Path(pattern).expanduser()), folder.absolute())
        for path in found:
            _check_file_not_saved(path, pattern)
        return [_local_file(path) for path in found]
    if _HUB_NAME.match(pattern) and not wanted(pattern) and not local.parent.is_dir():
        return _hub_dataset(pattern, folder, wanted)
    return []


def _check_file_not_saved(path: Path, pattern: str) -> None:
    """Raise GateauError for a file that datasets' save_to_disk wrote."""
    if path.suffix.lower() == ".arrow" or path.name in (*_SAVED_BESIDE, _SAVED_ABOVE):
        names = files_below(path.parent, lambda name: is_foreign(name) or name in (*_SAVED_BESIDE, _SAVED_ABOVE))
        _check_not_saved([str(each) for each in names], pattern)


def _local_file(path: Path) -> SourceFile:
    with readable_input(str(path)):
        status = path.stat()
    return SourceFile(address=str(path), size=status.st_size, stamp=str(status.st_mtime_ns))


def _remote_files(pattern: str, wanted: Wanted) -> list[SourceFile]:
    scheme = S3 if pattern.startswith(S3) else HUB
    with readable_input(pattern):
        fs: Any = filesystem(pattern)
        bare = pattern.removeprefix(scheme)
        if _GLOB.search(bare) and not _is_named(fs, bare):
            infos = fs.glob(bare, detail=True).values()
        else:
            info = fs.info(bare)
            infos = [info]
            if info["type"] == "directory":
                found = fs.find(bare, detail=True)
                _check_not_saved([*found], pattern)
                infos = [child for child in found.values() if wanted(child["name"])]
        return [_remote_file(scheme, info) for info in infos if info["type"] == "file"]


def _is_named(fs: Any, name: str) -> bool:
    """Return whether a name with glob characters is that of an existing file or folder."""
    try:
        fs.info(name)
    except (FileNotFoundError, PermissionError, NotImplementedError, ValueError):  # a bucket has no such name either
        return False
    return True


def _remote_file(scheme: str, info: dict[str, Any]) -> SourceFile:
    """Describe a remote file: S3 has an ETag; the hub a content hash (the blob's, or of the large file behind it)."""
    large = info.get("lfs")
    stamps = (info.get("ETag"), getattr(large, "sha256", None), info.get("blob_id"), info.get("LastModified"))
    stamp = next((str(stamp) for stamp in stamps if stamp), "")
    return SourceFile(address=f"{scheme}{info['name']}", size=info["size"] or 0, stamp=stamp)


def _hub_dataset(name: str, folder: Path, wanted: Wanted) -> list[SourceFile]:
    address = f"{HUB}datasets/{name}"
    with readable_input(address):
        try:
            infos = train_files(filesystem(address), f"datasets/{name}", wanted)
        except FileNotFoundError as error:
            if is_gated(error):
                raise
            raise GateauError(
                f"{name!r} is neither a file under {folder.resolve()} nor a data set that the Hugging Face hub shows:"
                " check the path, or the name and HF_TOKEN"
            ) from error
    if not infos:
        raise GateauError(
            f"the data set {name!r} has no jsonl, json or parquet file in its train split:"
            f" name its files as hf://datasets/{name}/..."
        )
    return [_remote_file(HUB, info) for info in infos]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A parsed record; `number` counts lines of JSON Lines, elements of a JSON list or rows of parquet, from 1."""

    number: int
    value: Any


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A record that cannot be read, or the file itself (`number` 0). The reason begins with its kind and a colon."""

    number: int
    reason: str


def location(file: SourceFile, number: int) -> str:
    """Return a place such as 'long.jsonl:17', or the file alone for number 0."""
    return f"{file.label or file.name}:{number}" if number else file.label or file.name
