"""Read and write atomic files on a local path or on S3: a reader sees the old content or the new, never half of one."""

import errno
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

from fsspec import AbstractFileSystem

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.fence import Fence, LeaseLostError, roots_to_prove
from gateau_dagster.storage.local import check_regular, create_local, fill_with, replace_local, sweep_local
from gateau_dagster.storage.objects import (
    abort_upload,
    create_object,
    replace_object,
    sweep_objects,
    unfinished_uploads,
)
from gateau_dagster.storage.remote import filesystem

_CHUNK_BYTES = 32 * 2**20
_REMOVALS = 5  # S3 may report success and keep some of the objects
# Also for large objects: s3fs resumes a truncated body, but not one of several ranges.
_WHOLE: dict[str, Any] = {"max_concurrency": 1}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A listed file: its bytes, when it was written, in seconds since 1970, and whether it is a link."""

    size: int
    changed: float
    is_link: bool

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> "Found":
        """Return the file that fsspec describes."""
        when = details.get("mtime") or details.get("LastModified") or 0.0
        changed = when.timestamp() if isinstance(when, datetime) else when
        return cls(size=int(details["size"] or 0), changed=changed, is_link=details.get("islink", False))


class Files:
    """The file operations of the store, below `root` (a local folder or s3://bucket/prefix).

    If this process has a lease of the root, each replacement, renaming and removal proves it first. It raises
    LeaseLostError if another run has taken over; see `fence`.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.is_local = "://" not in root

    @cached_property
    def filesystem(self) -> AbstractFileSystem:
        """Return the fsspec file system; see `remote.filesystem`."""
        with readable_failures(f"open {self.root}"):
            try:
                return filesystem(self.root)
            except GateauError:
                raise
            except ValueError as error:
                raise GateauError(
                    "storage.root",
                    f"storage.root: {self.root} cannot be used ({error}). Give a local folder or s3://bucket/prefix.",
                ) from error

    def address(self, name: str) -> str:
        """Return the full path or address of a file.

        Raises:
            GateauError: the name leads out of the store.
        """
        if name.startswith("/") or "\0" in name or ".." in name.split("/"):
            raise GateauError(
                "storage.outside",
                f"The name {name!a} leads out of the store {self.root}, or is no path. Nothing is read or written. "
                "Correct the name of the model, method, benchmark or variant that it comes from",
            )
        return f"{self.root}/{name}"

    @property
    def fence(self) -> Fence:
        """Return the fence that this process, or thread, proves at a commit."""
        return Fence(self.root, self._read_lease)

    def _read_lease(self, name: str) -> bytes:
        return Path(self.address(name)).read_bytes() if self.is_local else self.read(name)

    def sweep(self, is_dead: Callable[[int], bool]) -> None:
        """Remove pending commits under a dead lease, so that they never happen.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        with readable_failures(f"take over {self.root}"):
            if self.is_local:
                sweep_local(Path(self.root), is_dead)
            else:
                sweep_objects(self.filesystem, self.root, is_dead)

    def write(self, name: str, data: bytes) -> None:
        """Replace the file in one step.

        Raises:
            GateauError: the disk is full, there is no bucket, no right to write, ...
            TransientError: the server does not answer.
        """
        with self._writing(name):
            if self.is_local:
                replace_local(Path(self.address(name)), partial(fill_with, data=data), self.fence)
            else:
                pieces = _pieces(io.BytesIO(data))
                replace_object(self.filesystem, self.address(name), pieces, self.fence, self.root)

    def check_writable(self) -> None:
        """Check that files can be written below the root; leave none behind, and make no folder.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        if not self.is_local:
            probe = f".gateau-probe-{uuid.uuid4().hex}"
            self.write(probe, b"")
            self.remove(probe)
            return
        root = Path(self.root)
        folder = next(each for each in (root, *root.parents) if each.exists())
        with readable_failures(f"write {self.root}"):
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "no right to write", str(folder))
            with tempfile.TemporaryFile(dir=folder):
                pass

    def create(self, name: str, data: bytes) -> bool:
        """Write the file in one step unless it exists; return whether this call made it. Of concurrent calls, one
        succeeds.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        with self._writing(name):
            if self.is_local:
                return create_local(Path(self.address(name)), data)
            return create_object(self.filesystem, self.address(name), data)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Explain failures of a write; on a disk, a missing file means a missing folder."""
        try:
            with readable_failures(f"write {self.address(name)}"):
                yield
        except FileNotFoundError as error:
            if not self.is_local:
                raise
            raise GateauError(
                "storage.path",
                f"Cannot write {self.address(name)}: its folder cannot be created, or was removed. Check the path, "
                "then run again.",
            ) from error

    def write_by(self, name: str, fill: Callable[[Path], None]) -> None:
        """Replace the file in one step by what `fill` writes to a local path: it need not fit in memory.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        with self._writing(name):
            if self.is_local:
                replace_local(Path(self.address(name)), fill, self.fence)
                return
            with tempfile.TemporaryDirectory(prefix="gateau-") as folder:
                path = Path(folder) / "file"
                fill(path)
                self.upload(name, path)

    def upload(self, name: str, file: Path) -> None:
        """Replace an object by a local file's content, piece by piece: a model's weights need not fit into memory.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        assert not self.is_local
        with readable_failures(f"write {self.address(name)}"), file.open("rb") as stream:
            replace_object(self.filesystem, self.address(name), _pieces(stream), self.fence, self.root)

    def read(self, name: str) -> bytes:
        """Return the file's content; raise FileNotFoundError if it is missing."""
        with readable_failures(f"read {self.address(name)}"):
            if self.is_local:
                check_regular(Path(self.address(name)))
            data = self.filesystem.cat_file(self.address(name), **({} if self.is_local else _WHOLE))
        return data if isinstance(data, bytes) else data.encode()

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None for a folder, a pipe or the like. Raise FileNotFoundError for nothing."""
        with readable_failures(f"read {self.address(name)}"):
            found: Any = self.filesystem.info(self.address(name))
        return int(found["size"] or 0) if found["type"] == "file" else None

    def exists(self, name: str) -> bool:
        """Return whether the file or folder exists."""
        with readable_failures(f"read {self.address(name)}"):
            return bool(self.filesystem.exists(self.address(name)))

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files directly in a folder; empty if it is missing."""
        with readable_failures(f"list {self.address(folder)}"):
            try:
                found = self.filesystem.ls(self.address(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def versions(self, folder: str = "") -> dict[str, str]:
        """Return the ETag of each object below a folder, by its name, from one listing of a store on S3.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        assert not self.is_local
        return {name: found["ETag"] for name, found in self._found(folder).items()}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name, from one listing; empty if the store does not exist yet."""
        return {name: found.size for name, found in self.listing().items()}

    def listing(self) -> dict[str, Found]:
        """Return each file by its name, from one listing; empty if the store does not exist yet."""
        return {name: Found.of(details) for name, details in self._found("").items()}

    def unfinished_uploads(self) -> list[tuple[str, str, int]]:
        """Return name, id and bytes of the uploads to S3 below the root that were begun and not completed.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        if self.is_local:
            return []
        with readable_failures(f"list {self.root}"):
            return unfinished_uploads(self.filesystem, self.root)

    def abort_upload(self, name: str, upload: str) -> None:
        """Remove the parts of an unfinished upload; do nothing if it is gone.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        with readable_failures(f"remove the upload of {self.address(name)}"):
            self.fence.prove()
            abort_upload(self.filesystem, self.address(name), upload)

    def _found(self, folder: str) -> dict[str, Any]:
        address = self.address(folder) if folder else self.root
        with readable_failures(f"list {address}"):
            try:
                found: Any = self.filesystem.find(address, detail=True)
            except FileNotFoundError:
                return {}
        root = self.root.partition("://")[2] or self.root
        return {name.removeprefix(f"{root}/"): details for name, details in found.items()}

    def rename(self, name: str, new: str) -> None:
        """Rename a file, replacing any file with the new name; not in one step on S3.

        Raises:
            GateauError, TransientError: for the reasons of `write`. FileNotFoundError: there is no such file.
        """
        with readable_failures(f"rename {self.address(name)}"), self.fence.committing():
            if self.is_local:
                Path(self.address(name)).replace(self.address(new))
            else:
                self.filesystem.mv(self.address(name), self.address(new))

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists.

        Raises:
            GateauError, TransientError: for the reasons of `write`.
        """
        fence = self.fence
        with readable_failures(f"remove {self.address(name)}"):
            for _ in range(_REMOVALS):
                if not self.filesystem.exists(self.address(name)):
                    return
                with suppress(FileNotFoundError):  # another process was faster
                    if fence.tokens:
                        self._remove_fenced(name, fence)
                    else:
                        self.filesystem.rm(self.address(name), recursive=True)
        raise TransientError(
            "storage.server_failed",
            f"Cannot remove {self.address(name)}: the storage server kept it. Run again later.",
        )

    def _remove_fenced(self, name: str, fence: Fence) -> None:
        """Remove only what is listed now, which excludes another run's files after a take-over."""
        address = self.address(name)
        if self.is_local:
            for file in [*_files_below(Path(address))]:
                fence.prove()
                file.unlink(missing_ok=True)
            for place, _, _ in os.walk(address, topdown=False):
                with suppress(OSError):  # a folder with other files stays
                    Path(place).rmdir()
        elif found := self.filesystem.find(address):
            fence.prove()
            self.filesystem.rm(found)


def prove_leases() -> None:
    """Check every few seconds, for work outside the store, that no other run has taken over.

    A process that cannot read the store goes on: the step that publishes its result proves the lease.

    Raises:
        LeaseLostError: another run has taken over.
    """
    for root in roots_to_prove():
        try:
            Files(root).fence.prove()
        except LeaseLostError:
            raise
        except (GateauError, OSError):
            continue


def _files_below(path: Path) -> Iterator[Path]:
    """Yield a file itself, or all files and links of a folder."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for place, folders, files in os.walk(path):
        yield from (Path(place, name) for name in files)
        yield from (Path(place, name) for name in folders if Path(place, name).is_symlink())


def replace_text(path: Path, text: str) -> None:
    """Replace a local file in one step.

    Raises:
        GateauError: the disk is full, there is no right to write, ...
    """
    Files(str(path.parent)).write(path.name, text.encode())


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(_CHUNK_BYTES):
        yield piece


def local_copy(files: Files, name: str, folder: Path) -> Path:
    """Return a local path of a file or folder of the store: itself on a local store, else a download into `folder`.

    Raises:
        GateauError, TransientError: for the reasons of `Files.write`. FileNotFoundError: there is no such file.
    """
    if files.is_local:
        return Path(files.address(name))
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    # A download into an existing folder would go one level deeper, and the old content would stay.
    if target.is_dir():
        shutil.rmtree(target)
    with readable_failures(f"copy {files.address(name)} to {target}"):
        files.filesystem.get(files.address(name), str(target), recursive=True, **_WHOLE)
    return target
