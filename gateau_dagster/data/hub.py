"""Find the train split of a data set on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from posixpath import normpath
from typing import Any

import yaml
from fsspec.utils import glob_translate
from pydantic import BaseModel

from gateau_dagster.errors import GateauError
from gateau_dagster.storage.remote import HUB

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
            f"the card {HUB}{name} cannot be read, which says what is the train split: name files as {HUB}{root}/..."
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
