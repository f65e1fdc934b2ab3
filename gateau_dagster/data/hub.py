"""The train split of a data set on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import yaml

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
