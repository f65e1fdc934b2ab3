"""Find the local files that a folder or a glob means, even if links form a cycle."""

import errno
import glob
import os
from collections.abc import Callable, Iterator
from itertools import dropwhile
from pathlib import Path

from gateau_dagster.errors import GateauError

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
        raise GateauError(f"Cannot read the folder {folder}: permission denied. Check its rights, or name the others.")
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
        f"Cannot read {path}: it is a link to {path.readlink()}, which is not there. Bring that back (mount its disk, "
        "fetch its content), or remove the link."
    )
