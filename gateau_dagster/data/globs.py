"""The local files that a glob means, also where links lead round in a circle."""

import glob
import os
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

_ANY_DEPTH = "**"


def matching_files(pattern: str, base: Path) -> list[Path]:
    """The files that a pattern means, relative to `base` unless it is absolute; each path once.

    As `glob.glob` finds them, except that no folder is entered twice below a `**`: links may lead back above it.
    """
    return [path for path in dict.fromkeys(_matches(pattern, base)) if path.is_file()]


def _matches(pattern: str, base: Path) -> Iterator[Path]:
    parts = pattern.split("/")
    if _ANY_DEPTH not in parts:
        # glob, for Path.glob takes no absolute pattern.
        yield from (base / name for name in glob.glob(pattern, root_dir=base))  # noqa: PTH207
        return
    place = parts.index(_ANY_DEPTH)
    above, below = "/".join(parts[:place]), [*dropwhile(_ANY_DEPTH.__eq__, parts[place:])] or ["*"]
    tops = _matches(above, base) if glob.has_magic(above) else [base / (above or ("/" if place else ""))]
    for top in tops:
        for folder in _folders(top):
            yield from _matches("/".join(below), folder)


def _folders(top: Path) -> Iterator[Path]:
    """The folder and those below it, without hidden ones; each by one of its shortest paths."""
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
            if os.access(folder, os.R_OK | os.X_OK):
                shown = (child for child in sorted(folder.iterdir()) if not child.name.startswith("."))
                inner += [child for child in shown if child.is_dir()]
        waiting = inner
