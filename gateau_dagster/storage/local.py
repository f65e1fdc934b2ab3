"""Atomic files on this machine; their rights are those of any new file: the umask's, or the folder's default ACL."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gateau_dagster.storage.fence import Fence, numbers_in

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP}


def replace_local(path: Path, fill: Callable[[Path], None], fence: Fence | None = None) -> None:
    """Replaces a file by what `fill` writes to the path it is given: rename is atomic within one folder.

    Raises:
        LeaseLostError: another run has taken over the store; nothing is left of the temporary file.
    """
    if fence is None or not fence.tokens:
        with _filled(path, fill) as temporary:
            temporary.replace(path)
        return
    with _filled(path, fill, fence.mark) as temporary, fence.committing():
        temporary.replace(path)


def sweep_local(root: Path, is_dead: Callable[[int], bool]) -> None:
    """Removes every temporary that names a lease which is dead, so that a late rename of it fails; see `fence`.

    A folder that was being published loses the lease's name only: whoever publishes next completes it, or discards it.
    """
    for folder, folders, files in os.walk(root):
        for name in [name for name in folders if any(map(is_dead, numbers_in(name)))]:
            folders.remove(name)
            place, plain = Path(folder, name), Path(folder, re.sub(r"\.lease-[\d-]+", "", name))
            shutil.rmtree(plain, ignore_errors=True)
            with suppress(FileNotFoundError):
                place.rename(plain)
        for name in files:
            if any(map(is_dead, numbers_in(name))):
                Path(folder, name).unlink(missing_ok=True)


def write_if_other(path: Path, text: str) -> None:
    """Replaces a file by this text; one that has it already is left as it is, its time included."""
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        replace_local(path, partial(fill_with, data=data))


def check_regular(path: Path) -> os.stat_result | None:
    """Before a file is opened: a pipe by its name would be waited for without end. Its status; None where nothing is.

    Raises:
        OSError: something else than a file is there, or it cannot be seen.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    except ValueError:  # no name of a file
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    return status


def create_local(path: Path, data: bytes) -> bool:
    """Makes a file with this content unless there is one; whether this call made it. A link appears with the content.

    Where the file system has no links the name comes first: for a moment a reader may see less than all of it.
    """
    with _filled(path, partial(fill_with, data=data)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # An NFS client that lost the server's answer asks again: then the link is there, and it is ours.
            return temporary.stat().st_nlink > 1
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_without_links(path, data)
        return True


def moves_into(folder: Path, parent: Path) -> bool:
    """Gives a folder that is to be moved into another one the rights and the group of what is new there.

    safetensors writes for its user alone, whatever the umask says; a setgid folder's group is for what is made in it.
    False where the group is not to be had: what is copied there has it all the same.
    """
    status, rights = parent.stat(), _rights_of_new_files(folder)
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


def _rights_of_new_files(folder: Path) -> int:
    """By a new file: the umask cannot be read without being changed, for every thread."""
    with _filled(folder / "rights", Path.touch) as new:
        return stat.S_IMODE(new.stat().st_mode)


def copy_folder(folder: Path, target: Path) -> None:
    """A copy whose rights and group are those of what is new there; shutil.copytree would bring the old ones."""
    target.mkdir()
    for path in sorted(folder.rglob("*")):
        place = target / path.relative_to(folder)
        if path.is_dir():
            place.mkdir()
        else:
            shutil.copyfile(path, place)


def flush_folder(folder: Path) -> None:
    """Brings each file of a finished folder to the disk: what it was made from may then be removed.

    Else a power cut soon after leaves the folder's name, and nothing behind it.
    """
    for path in folder.rglob("*"):
        if path.is_file():  # of a folder, not every file system takes it
            with path.open("rb") as file:
                os.fsync(file.fileno())


def fill_with(path: Path, data: bytes) -> None:
    """Writes data that is in memory, as the `fill` of `replace_local`."""
    path.write_bytes(data)


@contextmanager
def _filled(path: Path, fill: Callable[[Path], None], mark: str = "") -> Iterator[Path]:
    """A new file beside `path`, filled and on the disk; afterwards its name is gone. `mark`: of the lease."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
