"""Locate input files, local or remote, and define the records that are read from them."""

# Why files are looked for by functions of this module: `glob.glob` passes over closed folders in silence, and would
# follow a link in circles below `**`. Data that are missing for such a reason would change a selection, and nobody
# would notice.
#
# Why data sets of the hub are read as files: unless it streams, `datasets.load_dataset` writes a data set again as
# Arrow before the first record. Here each file is a stream, and its digest on the hub is its stamp. The price: data
# sets that need a loading script, or have other formats, must be exported first.

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import dropwhile, takewhile
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

import yaml
from fsspec.utils import glob_translate
from pydantic import BaseModel

from gateau_dagster.config.base import Verify, made_inputs
from gateau_dagster.config.values import possible_path
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import plural
from gateau_dagster.storage.failures import is_gated, readable_input
from gateau_dagster.storage.local import recall_all, remember_all
from gateau_dagster.storage.remote import HUB, S3, filesystem, is_remote

_ANY_DEPTH = "**"
# It never holds user data, and is closed on every disk that has one.
_OF_THE_DISK = "lost+found"


def files_below(top: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the files of a folder and below it whose name is wanted; hidden files and folders are left out.

    Links are followed, and no folder is entered twice.

    Raises:
        GateauError: a folder is closed or a link is broken, since their data would be missed silently.
    """
    named = (child for folder in _folders(top) for child in _shown(folder) if wanted(child.name))
    return [child for child in named if _is_file(child)]


def matching_files(pattern: str, base: Path) -> list[Path]:
    """Return the files that a pattern means, relative to `base` unless it is absolute; each path once.

    The result is that of `glob.glob`, but no folder is entered twice below a `**`: links may lead back above it.

    Raises:
        GateauError: for the reasons of `files_below`.
    """
    return [path for path in dict.fromkeys(_matches(pattern, base)) if _is_file(path)]


def _matches(pattern: str, base: Path) -> Iterator[Path]:
    parts = pattern.split("/")
    if _ANY_DEPTH not in parts:
        # Path.glob accepts no absolute pattern.
        yield from (base / name for name in glob.glob(pattern, root_dir=base))  # noqa: PTH207
        return
    place = parts.index(_ANY_DEPTH)
    above, below = "/".join(parts[:place]), [*dropwhile(_ANY_DEPTH.__eq__, parts[place:])] or ["*"]
    tops = _matches(above, base) if glob.has_magic(above) else [base / (above or ("/" if place else ""))]
    for top in tops:
        for folder in _folders(top):
            yield from _matches("/".join(below), folder)


def _folders(top: Path) -> Iterator[Path]:
    """Yield the folder and those below it, without hidden ones; each by one of its shortest paths."""
    entered: set[tuple[int, int]] = set()
    waiting = [top] if top.is_dir() else []
    while waiting:
        inner: list[Path] = []
        for folder in waiting:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            yield folder
            inner += [child for child in _shown(folder) if _is_folder(child)]
        waiting = inner


def _shown(folder: Path) -> list[Path]:
    """Return the entries of a folder that are not hidden."""
    if not os.access(folder, os.R_OK | os.X_OK):
        if folder.name == _OF_THE_DISK:
            return []
        raise GateauError(
            "storage.permission",
            f"Cannot read the folder {folder}: permission denied. Check its rights, or name the others.",
        )
    return [child for child in sorted(folder.iterdir()) if not child.name.startswith(".")]


def _is_file(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise _leads_nowhere(path)
    return path.is_file()


def _is_folder(path: Path) -> bool:
    """Return whether it is a folder; a broken link without a file extension raises, since its disk may be absent."""
    try:
        path.stat()
    except FileNotFoundError:
        if path.is_symlink() and not path.suffix:
            raise _leads_nowhere(path) from None
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link to itself never leads anywhere
            raise
        return False
    return path.is_dir()


def _leads_nowhere(path: Path) -> GateauError:
    return GateauError(
        "data.broken_link",
        f"Cannot read {path}: it is a link to {path.readlink()}, which does not exist. Mount its disk, fetch "
        "its content, or remove the link.",
    )


_TRAIN = re.compile(r"(^|[^a-z0-9])train([^a-z0-9]|$)", re.IGNORECASE)
_OTHER = re.compile(r"(^|[^a-z0-9])(test|validation|valid|val|dev|eval)([^a-z0-9]|$)", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
# Exceptions of PyYAML for text that it cannot read, or with invalid values: `!!int ''`, `2024-99-99`.
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


def train_files(fs: Any, root: str, readable: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the fsspec infos of the train split of the data set at `root` ('datasets/owner/name').

    If the card's default configuration names data files, it decides: its split `train`, else the first one whose name
    starts so. Otherwise the files with 'train' as a word of their path count; otherwise all but test and validation
    files. A configuration's `data_dir` is the base of its paths.

    Raises:
        GateauError: the card cannot be read. Errors of the file system pass (FileNotFoundError: unknown data set).
    """
    found, name = fs.find(root, detail=True), f"{root}/README.md"
    card = fs.cat_file(name) if name in found else b""
    try:
        folder, patterns = card_files(card)
        wanted = [re.compile(glob_translate(normpath(pattern))) for pattern in patterns]
    except _NOT_YAML as error:
        raise GateauError(
            "data.hub_split",
            f"the card {HUB}{name}, which lists the files of the train split, cannot be read: name files as "
            f"{HUB}{root}/...",
        ) from error
    base = f"{normpath(f'{root}/{folder}')}/"
    infos = {name.removeprefix(base): info for name, info in found.items() if name.startswith(base) and readable(name)}
    if patterns:
        return [info for path, info in infos.items() if any(pattern.match(path) for pattern in wanted)]
    train = [info for path, info in infos.items() if _TRAIN.search(path)]
    return train or [info for path, info in infos.items() if not _OTHER.search(path)]


class _Split(BaseModel):
    split: Any
    path: str | list[str]


class _Configuration(BaseModel):
    config_name: Any = None
    default: Any = False
    data_dir: str | None = None
    data_files: str | dict[str, str | list[str]] | list[str] | list[_Split] | None = None


class _Front(BaseModel):
    configs: list[_Configuration] | None = None


def card_files(card: bytes) -> tuple[str, list[str]]:
    """Return (folder, glob patterns below it) of the train split in a data-set card: README.md with YAML front matter.

    The result is ('', []) if the card names none. Raises one of _NOT_YAML for an invalid card.
    """
    match = _FRONT_MATTER.match(card.decode("utf-8", errors="replace").removeprefix("\ufeff"))
    front = yaml.safe_load(match.group(1)) if match else None
    configs = _Front.model_validate(front).configs if isinstance(front, dict) else None
    if not configs:
        return "", []
    chosen = next((each for each in configs if each.default or each.config_name == "default"), configs[0])
    return chosen.data_dir or "", _patterns(chosen.data_files or [])


def _patterns(files: str | dict[str, str | list[str]] | Sequence[str | _Split]) -> list[str]:
    if isinstance(files, str):
        return [files]
    if isinstance(files, dict):
        splits = [*files.items()]
    else:
        splits = [(str(item.split), item.path) for item in files if isinstance(item, _Split)]
        if not splits:
            return [item for item in files if isinstance(item, str)]
    exact = [path for split, path in splits if split == "train"]
    named = exact or [path for split, path in splits if split.startswith("train")]
    return ([named[0]] if isinstance(named[0], str) else named[0]) if named else []


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
    """A file of input.

    address: absolute or remote.
    label: names it to users, uniquely among the run's files.
    path: from the configuration's folder; of a file elsewhere, the address.
    session_id: the id of the session in it; empty if that is the stem.
    """

    address: str
    size: int
    stamp: str
    label: str = ""
    path: str = ""
    session_id: str = ""

    @cached_property
    def name(self) -> str:
        """Return the file's name without its folder; bytes that are not UTF-8 are escaped, so that tables hold it."""
        return PurePosixPath(self.address).name.encode("utf-8", errors="backslashreplace").decode()

    @cached_property
    def stem(self) -> str:
        """Return the file's name without folder and data extensions: 'long' of 'data/long.jsonl.gz'."""
        return _TEXT_FILE.sub("", _DATA_FILE.sub("", self.name))

    @property
    def is_made(self) -> bool:
        """Return whether the file is a shard of samples that the pipeline makes itself, of which one may hold none."""
        folder = self.address.rpartition("/")[0]
        return any(folder.endswith(made.files.rpartition("/")[0]) for made in made_inputs().values())

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
        except GateauError as error:
            raise error.reworded(f"a path {error}") from error
        if is_remote(pattern):
            meant = _remote_files(pattern, _wanted(plain_texts))
        else:
            with readable_input(pattern):
                meant = _local_files(pattern, folder, _wanted(plain_texts))
        files = sorted(meant, key=lambda file: file.address)
        made = any(pattern.endswith(each.files) for each in made_inputs().values())
        if not files and not made:  # files that the pipeline makes may still be to be made
            where = "" if is_remote(pattern) or Path(pattern).is_absolute() else f" under {folder.resolve()}"
            bucket = ", that the bucket exists, and AWS_ENDPOINT_URL" if pattern.startswith(S3) else ""
            kind = "file" if plain_texts else "data file"
            foreign = passed_over(pattern, pattern, folder, plain_texts=plain_texts)
            hint = f" ({foreign[0].rstrip('.')})" if foreign else ""
            raise GateauError(
                "data.missing",
                f"{pattern!r} matches no {kind}{where}: check the path in the configuration{bucket}{hint}",
            )
        for file in files:
            found.setdefault(file.address, file)
    names = Counter(file.name for file in found.values())
    paths = [_short(file.address, folder) for file in found.values()]
    return [
        replace(file, label=file.name if names[file.name] == 1 else path, path=path)
        for file, path in zip(found.values(), paths, strict=True)
    ]


def local_places(path: str | Sequence[str], folder: Path, file: Path) -> Iterator[Path]:
    """Yield the local files and folders that `path` means, also what is below a folder; remote addresses are left out.

    Args:
        path, folder: see resolve_files.
        file: which may not exist yet; it is yielded if a pattern will mean it.
    """
    for pattern in [path] if isinstance(path, str) else path:
        place = (folder / Path(pattern).expanduser()).absolute()
        if is_remote(pattern) or (place.exists() and not place.is_dir()):
            yield from () if is_remote(pattern) else (place,)
        elif place.is_dir():
            yield from (place, *(below for below in place.rglob("*") if not below.is_dir()))
        elif _GLOB.search(pattern):
            yield from map(Path, glob.iglob(str(place), recursive=True))  # noqa: PTH207  an absolute pattern
            fixed = [*takewhile(lambda part: not _GLOB.search(part), place.parts)]
            meant = str(Path(*fixed).resolve().joinpath(*place.parts[len(fixed) :]))
            if re.fullmatch(glob_translate(meant), str(file.parent.resolve() / file.name)):
                yield file


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
            wanted = _wanted(plain_texts)
            names = [name for name in map(str, files_below(local, is_foreign)) if not wanted(name)]
        if names:
            sentences.append(
                f"{key}: {pattern} holds {plural(len(names), 'file')} that {'is' if len(names) == 1 else 'are'} passed "
                f"over, for no {_FORMAT_NAMES}: {_listed(names)}. Export them to one of these, or move them elsewhere."
            )
    return sentences


def is_foreign(name: str) -> bool:
    """Return whether a file's name indicates data of a type that is not read."""
    return _FOREIGN_FILE.search(f"/{name.rpartition('/')[2]}") is not None


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
        "data.saved_to_disk",
        f"{pattern}: {min(saved, key=len)} was written by datasets' save_to_disk, whose Arrow files are not read. "
        "Load it with datasets.load_from_disk, export each split with to_parquet or to_json, and give the exported "
        f"file as the path.{rest}",
    )


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
    known, fresh = recall_all(cache), dict[str, list[Any]]()
    for file in files:
        if is_remote(file.address):
            continue
        size, stamp, digest = known.get(file.address, [-1, "", ""])
        if verify == "content" or (size, stamp) != (file.size, file.stamp):
            with readable_input(file.address), Path(file.address).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        fresh[file.address] = [file.size, file.stamp, str(digest)]
    if any(known.get(address) != entry for address, entry in fresh.items()):
        remember_all(cache, fresh)
    parts = [fresh[file.address][2] if file.address in fresh else file.stamp for file in files]
    return text_digest([part for file, content in zip(files, parts, strict=True) for part in (file.name, content)])


def _short(address: str, folder: Path) -> str:
    path, base = Path(address), folder.absolute()
    inside = not is_remote(address) and path.is_relative_to(base)
    text = path.relative_to(base).as_posix() if inside else address
    return text.encode("utf-8", errors="backslashreplace").decode()


def _wanted(plain_texts: bool) -> Wanted:
    return lambda name: bool(_DATA_FILE.search(name) or (plain_texts and _TEXT_FILE.search(name)))


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
                "data.missing",
                f"{name!r} is neither a file under {folder.resolve()} nor a data set that the Hugging Face hub shows:"
                " check the path, or the name and HF_TOKEN",
            ) from error
    if not infos:
        raise GateauError(
            "data.hub_split",
            f"the data set {name!r} has no jsonl, json or parquet file in its train split:"
            f" name its files as hf://datasets/{name}/...",
        )
    return [_remote_file(HUB, info) for info in infos]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A parsed record; `number` counts lines of JSON Lines, elements of a JSON list or rows of parquet, from 1.

    is_session: whether the record is a session file, whose id is that of the file.
    """

    number: int
    value: Any
    is_session: bool = False


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A record that cannot be read, or the file itself (`number` 0). The reason begins with its kind and a colon."""

    number: int
    reason: str


def location(file: SourceFile, number: int) -> str:
    """Return a place such as 'long.jsonl:17', or the file alone for number 0."""
    return f"{file.label or file.name}:{number}" if number else file.label or file.name
