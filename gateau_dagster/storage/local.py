"""Write atomic files on this machine, with the rights of any new file: the umask's, or the folder's default ACL.

Below: caches of measurements and digests between commands, small JSON files that are safe to delete.
"""

# Why a temporary file and a rename: rename is the one operation that replaces a file at once on local disks, NFS and
# Lustre. Written in place, a file is half old and half new after a kill, and for every reader meanwhile.
#
# What it costs: one fsync per file, which is milliseconds on a disk and more on a network. Without it, a power cut may
# leave a name without content, since a file system may order the rename before the data. The folder itself is not
# synced: losing the rename leaves the old file, which is whole.

import errno
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gateau_dagster.errors import GateauError
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.fence import Fence, numbers_in
from gateau_dagster.storage.stamp import fingerprint

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP}


def replace_local(path: Path, fill: Callable[[Path], None], fence: Fence | None = None) -> None:
    """Replace a file by what `fill` writes to a temporary path: a rename is atomic within one folder.

    Raises:
        LeaseLostError: another run has taken over the store; the temporary file is removed.
    """
    if fence is None or not fence.tokens:
        with _filled(path, fill) as temporary:
            temporary.replace(path)
        return
    # Proved once the content is on the disk, right before the rename. After a take-over between the two, the temporary
    # is gone and the rename fails.
    with _filled(path, fill, fence.mark) as temporary, fence.committing():
        temporary.replace(path)


def sweep_local(root: Path, is_dead: Callable[[int], bool]) -> None:
    """Remove every temporary that names a dead lease, so that its late rename fails; see `fence`.

    A folder that was being published only loses the lease's name: the next publication completes or discards it.
    """
    for folder, folders, files in os.walk(root):
        # Not walked into: the folder gets its plain name back as a whole.
        for name in [name for name in folders if any(map(is_dead, numbers_in(name)))]:
            folders.remove(name)
            place, plain = Path(folder, name), Path(folder, re.sub(r"\.lease-[\d-]+", "", name))
            shutil.rmtree(plain, ignore_errors=True)
            with suppress(FileNotFoundError):
                place.rename(plain)
        for name in files:
            if any(map(is_dead, numbers_in(name))):
                Path(folder, name).unlink(missing_ok=True)


def check_apart(file: Path, used: Iterable[tuple[str, Path]]) -> None:
    """Check that a file to write is none of the used files, and is in none of the used folders.

    Files are compared as the system knows them: links of both kinds, `..` and letters of another case change nothing.

    Args:
        file: to be written; it need not exist.
        used: what each file or folder is used as, for the message, and its path.

    Raises:
        GateauError: the file is one of them.
    """
    # Compared by inode as well as by name: hard links, and file systems that ignore case, give one file two names.
    named = file.parent.resolve() / file.name  # a link itself would be replaced, not what it leads to
    places = {each: None for place in (named, file.resolve()) for each in (place, *place.parents)}
    present = {identity for place in places if (identity := _identity(place)) is not None}
    for what, path in used:
        if path.resolve() in places or _identity(path) in present:
            inside = path.is_dir()
            raise GateauError(
                "storage.file_in_use",
                f"{file} {f'is in {path}' if inside else f'is {path}'}, {what}: writing it would change "
                f"{'what is there' if inside else 'that file'}. Nothing is written. Give another path",
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the system's identifier of a file or folder; None if nothing is there."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return status.st_dev, status.st_ino


def write_if_other(path: Path, text: str) -> None:
    """Replace a file by this text unless it has it already, which keeps its time."""
    data = text.encode()
    # A new time would make every cache that knows the file by its time read it again.
    if not path.exists() or path.read_bytes() != data:
        replace_local(path, partial(fill_with, data=data))


def check_regular(path: Path) -> os.stat_result | None:
    """Return the status of a file, or None if nothing is there; opening a pipe would block forever.

    Raises:
        OSError: something other than a file is there, or it cannot be accessed.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    except ValueError:  # not a valid file name
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    return status


def create_local(path: Path, data: bytes) -> bool:
    """Create a file with this content unless it exists; return whether this call made it.

    A hard link makes it appear with its content. On a file system without links the name appears first: for a moment a
    reader may see part of the content.
    """
    with _filled(path, partial(fill_with, data=data)) as temporary:
        try:
            # Not O_EXCL: that makes the name first and the content later, so a reader could see an empty file. A link
            # has both at once, and fails if the name exists.
            os.link(temporary, path)
        except FileExistsError:
            # An NFS client that lost the server's answer asks again: then the link exists, and it is ours.
            return temporary.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, data)
        return True


def moves_into(folder: Path, parent: Path) -> bool:
    """Give a folder the rights and the group of new files in its new parent; return whether it can be moved there.

    safetensors writes files for its user only, regardless of the umask. In a setgid folder, new files get its group.
    The result is False if a move cannot set the group; a copy inherits it.
    """
    # A test file shows the rights: reading the umask would change it for every thread.
    with _filled(folder / "rights", Path.touch) as new:
        rights = stat.S_IMODE(new.stat().st_mode)
    status = parent.stat()
    to_group = bool(status.st_mode & stat.S_ISGID)
    for path in (folder, *(path for path in folder.rglob("*") if not path.is_symlink())):
        if to_group:
            try:
                os.chown(path, -1, status.st_gid)
            except PermissionError:
                return False
        if not path.is_dir():
            path.chmod(rights)
        elif to_group:
            path.chmod(path.stat().st_mode | stat.S_ISGID)
    return True


def copy_folder(folder: Path, target: Path) -> None:
    """Copy a folder with the rights and the group of new files; shutil.copytree would keep the old ones."""
    target.mkdir()
    for path in sorted(folder.rglob("*")):
        place = target / path.relative_to(folder)
        if path.is_dir():
            place.mkdir()
        else:
            shutil.copyfile(path, place)


def flush_folder(folder: Path) -> None:
    """Flush each file of a finished folder to the disk, so that its source may be removed.

    Otherwise a power cut soon after could leave the folder's name without content.
    """
    for path in folder.rglob("*"):
        if path.is_file():  # not every file system accepts it for a folder
            with path.open("rb") as file:
                os.fsync(file.fileno())


def fill_with(path: Path, data: bytes) -> None:
    """Write data from memory, as the `fill` of `replace_local`."""
    path.write_bytes(data)


@contextmanager
def _filled(path: Path, fill: Callable[[Path], None], mark: str = "") -> Iterator[Path]:
    """Yield a new file beside `path`, filled and flushed; remove its name afterwards. `mark`: of the lease."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random part, as two processes may replace one file at a time. The last rename wins, and both files are whole.
    named = f"{mark}.{secrets.token_hex(4)}" if mark else secrets.token_hex(4)
    temporary = path.with_name(f".{path.name}.{named}.tmp")
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "rb+") as file:
            fill(temporary)
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _create_without_links(path: Path, data: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise
    return True


_DIGEST, _VALUES = "digest", "values"
_log = logging.getLogger(__name__)
_told: set[Path] = set()


@contextmanager
def keeping(file: Path) -> Iterator[None]:
    """Write a cache within the block; a failure is logged once per folder and process, and stops nothing."""
    try:
        with readable_failures(f"write the cache of measurements in {file.parent}"):
            yield
    except (GateauError, OSError) as error:
        if file.parent not in _told:
            _log.warning(f"{error} Until then, every command reads all input and all models again.")
        _told.add(file.parent)


def recall(file: Path, key: str) -> Any:
    """Return the value under `key`; None if it is unknown, or the file is missing or damaged."""
    return recall_all(file).get(key)


def recall_all(file: Path) -> dict[str, Any]:
    """Return all values by key; empty if the file is missing or damaged."""
    try:
        check_regular(file)
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    # A cache with a flipped bit would give a wrong digest of an input, silently. So it carries its own, and a damaged
    # cache is an empty one.
    values = content.get(_VALUES) if isinstance(content, dict) else None
    if not isinstance(values, dict) or content.get(_DIGEST) != fingerprint(values):
        return {}
    return values


def remember(file: Path, key: str, value: Any) -> None:
    """Store a JSON value; see `remember_all`."""
    remember_all(file, {key: value})


def remember_all(file: Path, values: Mapping[str, Any]) -> None:
    """Store JSON values by key; a reader sees the old file or the new one. An unwritable folder is logged (`keeping`).

    If two processes write at once, one's values may be lost, and are measured again.
    """
    # The values take the form in which they are read: keys as texts, tuples as lists.
    known = json.loads(json.dumps({**recall_all(file), **values}))
    content = json.dumps({_DIGEST: fingerprint(known), _VALUES: known}, indent=1)
    with keeping(file):
        replace_local(file, partial(fill_with, data=content.encode()))
