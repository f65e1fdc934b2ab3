"""Store tables as `<root>/<asset key as path>/<partition>.parquet`, with the stamp in the same atomic file."""

# Why a table is one Parquet file, what it costs, and when another way is better:
#
# - A table is replaced whole, by one writer, in one rename or one copy on the server. The stamp is in the footer, so no
#   kill can leave a table with the stamp of another. A file beside it could be a step behind.
# - Any reader of Parquet reads the tables, by their glob, without this package and without a service.
# - The price: a plan reads the end of each table's file. A process keeps what it read by the file's version. On S3 one
#   listing gives all versions, so that its later plans cost no request per table.
# - A table format with a log (Delta, Iceberg), or a database, is better for many small updates, several writers or old
#   versions. Here a row is small work against the pass that made it, and a fingerprint says what is current.
# - A damaged file is set aside rather than repaired: everything in it can be computed again from what it was made of.

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, TypeAlias, TypeVar

import polars as pl
import pyarrow as pa

from gateau_dagster import tables
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.storage.content import frame_digest
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.files import Files, local_copy
from gateau_dagster.storage.local import check_regular
from gateau_dagster.storage.objects import fetch_small, object_version
from gateau_dagster.storage.parquet import (
    DamagedFileError,
    metadata,
    read_columns,
    read_footer,
    verified_schema,
    wanted_rows,
    write_parquet,
)
from gateau_dagster.storage.stamp import Stamp

# File systems count time in steps of up to two seconds: a file that changed just now may change again unnoticed.
_SETTLED_NS = 3 * 10**9

# By address: the version that was read, and its stamp; None if it was no table of ours.
_known: dict[str, tuple[str, Stamp | None]] = {}


def local_version(status: os.stat_result) -> str:
    """Return a version of a local file that changes with its content; empty if it changed a moment ago.

    It contains the time of the last change to the inode, which users cannot set back, unlike that of the content.
    """
    if abs(time.time_ns() - status.st_ctime_ns) < _SETTLED_NS:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _cached_stamp(address: str, version: str, read: Callable[[], Stamp | None]) -> Stamp | None:
    """Return the stamp of this version of a file; `read` gets it if it is not known, or if the version is empty.

    version: of the file before it is read, so that one replaced meanwhile is read again.
    """
    if version and _known.get(address, ("", None))[0] == version:
        return _known[address][1]
    stamp = read()
    if version:
        _known[address] = version, stamp
    return stamp


_STAMP_KEY = b"gateau.stamp"
Read = TypeVar("Read")
Key: TypeAlias = tuple[str, str | None]  # an asset and its partition
REJECTED = "rejected"
_STAMP_READERS, _STAMPS_TOGETHER = 16, 32
_WAITING = 2.0  # times the processor time: the file system is on a network
_MOST_READS = 4

# Exceptions of readers for a file whose content differs from what was written.
_DAMAGE = (DamagedFileError, pa.ArrowException, pl.exceptions.PanicException, UnicodeDecodeError, OSError)
ASIDE = ".damaged"


class DamagedTableError(GateauError):
    """A table's file differs from what was written; it was set aside if possible."""


class Store:
    """Tables by asset name (`perplexity/short`) and partition (None for a global one)."""

    def __init__(self, root: str) -> None:
        self.files = Files(root)

    @property
    def root(self) -> str:
        """Return the store's folder or address."""
        return self.files.root

    def table_name(self, asset: str, partition: str | None = None) -> str:
        """Return the table's file, relative to the root."""
        return f"{asset}.parquet" if partition is None else f"{asset}/{partition}.parquet"

    def rejected_name(self, asset: str, partition: str | None = None) -> str:
        """Return the file of an asset's rejected samples; a global asset has one, beside its table."""
        return f"{asset}/{REJECTED}.parquet" if partition is None else f"{asset}/{REJECTED}/{partition}.parquet"

    def address(self, asset: str, partition: str | None = None) -> str:
        """Return the full path or address of a table."""
        return self.files.address(self.table_name(asset, partition))

    def write(
        self, frame: pl.DataFrame, asset: str, partition: str | None, stamp: Stamp, rejected: pl.DataFrame | None = None
    ) -> Stamp:
        """Replace a table and, before it, its rejected samples; the table marks the work as done.

        Without rejected samples there is no file of them, so that the table's folder is one data set for other readers.

        Returns:
            The stamp, completed with row count and content digest.

        Raises:
            GateauError, TransientError: for the reasons of `Files.write`.
        """
        complete = replace(stamp, rows=frame.height, content=stamp.content or frame_digest(frame))
        if rejected is not None and rejected.is_empty():
            self.files.remove(self.rejected_name(asset, partition))
        elif rejected is not None:
            self.files.write_by(self.rejected_name(asset, partition), partial(write_parquet, rejected, {}))
        stamped = {_STAMP_KEY: complete.to_json().encode()}
        self.files.write_by(self.table_name(asset, partition), partial(write_parquet, frame, stamped))
        return complete

    def read(self, asset: str, partition: str | None = None, columns: list[str] | None = None) -> pl.DataFrame:
        """Return a table.

        Raises:
            GateauError: the table does not exist.
            DamagedTableError: its file is damaged.
        """
        return self._read(self.table_name(asset, partition), columns)

    def columns(self, asset: str, partition: str | None = None) -> list[str]:
        """Return the names of a table's columns, from the end of its file. Raises as `read` does."""
        name = self.table_name(asset, partition)
        names = partial(_reading, self.files, name, lambda file: read_footer(file).metadata.schema.to_arrow_schema())
        return self._whole(name, lambda: names().names)

    def read_all(self, asset: str, partitions: Iterable[str], columns: list[str] | None = None) -> pl.DataFrame:
        """Return all partitions of a table, one below the other; an optional column is null where one lacks it."""
        return pl.concat([self.read(asset, partition, columns) for partition in partitions], how="diagonal")

    def read_rows(self, asset: str, partition: str | None, sample_ids: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of some samples (column `sample_id`), in the table's order.

        The texts of other rows are dropped at once, so that a shard need not fit into memory.

        Raises:
            GateauError: for the reasons of `read`.
        """
        return self._found(self.table_name(asset, partition), partial(wanted_rows, sample_ids))

    def verify(self, asset: str, partition: str | None = None) -> None:
        """Verify each byte of a table's file, before other code than this class reads it.

        Raises:
            GateauError: for the reasons of `read`.
        """
        self._found(self.table_name(asset, partition), verified_schema)

    def fetched(self, asset: str, scratch: Path) -> Path:
        """Return a global table's verified file on this machine: itself on a local store, else a new copy in `scratch`.

        Raises:
            GateauError: for the reasons of `read`.
        """
        name = self.table_name(asset)

        def fetch() -> Path:
            path = local_copy(self.files, name, scratch)
            with pa.OSFile(str(path)) as file:
                verified_schema(file)
            return path

        return self._whole(name, fetch)

    def read_rejected(self, asset: str, partitions: Iterable[str | None]) -> pl.DataFrame:
        """Return the rejected samples of the partitions; empty if nothing was rejected.

        Raises:
            DamagedTableError: a file is damaged; its table is set aside with it, so that both are recomputed.
        """
        found = {each: self.rejected_name(asset, each) for each in partitions}
        frames = []
        for partition, name in found.items():
            if self.files.exists(name):
                try:
                    frames.append(self._read(name, ["sample_id", "reason"]))
                except DamagedTableError:
                    self._set_aside(self.table_name(asset, partition))
                    raise
        return pl.concat(frames) if frames else pl.DataFrame(schema=tables.schema(tables.REJECTED))

    def stamp(self, asset: str, partition: str | None = None) -> Stamp | None:
        """Return the stamp of a table; None if the table is missing, damaged, or not one of ours.

        Raises:
            GateauError, TransientError: the store cannot be read, which says nothing about the table.
        """
        name = self.table_name(asset, partition)
        address = self.files.address(name)
        try:
            with readable_failures(f"read {address}"):
                if self.files.is_local:
                    return self._local_stamp(name)
                return _reading(self.files, name, partial(_stamp_in, address))
        except (FileNotFoundError, ValueError) as error:
            if isinstance(error, GateauError):
                raise
            return None

    def _local_stamp(self, name: str) -> Stamp | None:
        address = self.files.address(name)
        status = check_regular(Path(address))
        if status is None:
            return None
        return _cached_stamp(
            address, local_version(status), lambda: _reading(self.files, name, partial(_stamp_in, address))
        )

    def stamps(self, wanted: Iterable[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps of many tables; on S3 one listing shows which exist, and which this process has read.

        Raises:
            GateauError, TransientError: for the reasons of `stamp`.
        """
        keys = list(wanted)
        if self.files.is_local:
            return self._local_stamps(keys)
        if len(keys) < 2:
            return {key: self.stamp(*key) for key in keys}
        versions = self.files.versions()

        def one(key: Key) -> Stamp | None:
            version = versions.get(self.table_name(*key))
            if version is None:
                return None
            known, stamp = _known.get(self.address(*key), ("", None))
            return stamp if version and known == version else self.stamp(*key)

        with ThreadPoolExecutor(_STAMP_READERS) as pool:
            return dict(zip(keys, pool.map(one, keys), strict=True))

    def _local_stamps(self, keys: list[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps one by one, or in threads if the first ones wait; threads take twice the processor time."""
        begun, worked = perf_counter(), thread_time()
        found = {key: self.stamp(*key) for key in keys[:_STAMPS_TOGETHER]}
        waiting = perf_counter() - begun > _WAITING * (thread_time() - worked)
        others = keys[_STAMPS_TOGETHER:]
        if not waiting or not others:
            return found | {key: self.stamp(*key) for key in others}
        parts = [others[start : start + _STAMPS_TOGETHER] for start in range(0, len(others), _STAMPS_TOGETHER)]
        with ThreadPoolExecutor(_STAMP_READERS) as pool:
            read = pool.map(lambda part: [self.stamp(*key) for key in part], parts)
            return found | dict(zip(others, chain.from_iterable(read), strict=True))

    def _read(self, name: str, columns: list[str] | None) -> pl.DataFrame:
        # From S3, too, only these columns are fetched: ids without the texts.
        return self._found(name, partial(read_columns, columns))

    def _found(self, name: str, read: Callable[[Any], pa.Table]) -> pl.DataFrame:
        """Return the table that `read` gets from a file."""

        def valid(file: Any) -> pa.Table:
            fetch_small(file)
            found = read(file)
            found.validate(full=True)  # Polars assumes that text is valid UTF-8
            return found

        return self._whole(name, lambda: pl.DataFrame(pl.from_arrow(_reading(self.files, name, valid))))

    def _whole(self, name: str, get: Callable[[], Read]) -> Read:
        """Return the result of `get` on a table's file; repeat a damaged read once, since the file may be whole."""
        address, last = self.files.address(name), None
        for _ in range(2):
            try:
                with readable_failures(f"read {address}"):
                    return get()
            except FileNotFoundError as error:
                raise GateauError(
                    "storage.not_computed",
                    f"{address} does not exist yet. Run `{gateau_command('run')}` to compute it.",
                ) from error
            except GateauError:
                raise
            except _DAMAGE as error:  # a full disk or a lost server is a GateauError already
                last = error
        raise DamagedTableError(
            "storage.damaged", f"{address} is damaged ({' '.join(str(last).split())}). {self._set_aside(name)}"
        ) from last

    def _set_aside(self, name: str) -> str:
        """Rename a damaged file, so that it counts as missing; return what the user should do."""
        aside = f"{name}{ASIDE}"
        try:
            self.files.rename(name, aside)
        except (GateauError, FileNotFoundError):
            return "Remove it and run again: only this table is recomputed."
        return f"It was renamed to {self.files.address(aside)}. Run again: only this table is recomputed."


def _stamp_in(address: str, file: Any) -> Stamp | None:
    """Return the stamp in a table's file; of an object that this process has read, without reading it again.

    Raises:
        ValueError: the file is damaged.
    """

    def read() -> Stamp | None:
        fetch_small(file)
        text = metadata(file).get(_STAMP_KEY)
        return Stamp.from_json(text) if text else None

    return _cached_stamp(address, object_version(file), read)


def _reading(files: Files, name: str, read: Callable[[Any], Read]) -> Read:
    """Return the result of `read` on a file; restart if the object is replaced meanwhile (EBUSY on S3).

    After several replacements the object is fetched by one request, which is atomic.
    """
    for _ in range(_MOST_READS):
        try:
            with _opened(files, files.address(name)) as file:
                return read(file)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    return read(pa.BufferReader(files.read(name)))


def _opened(files: Files, address: str) -> Any:
    # A local file is Arrow's own. Arrow's threads may still hold it at the end of the process, where releasing a Python
    # object would abort it. `parquet.verified` first copies the wanted parts of a remote file: nothing is read ahead.
    if files.is_local:
        check_regular(Path(address))  # Arrow's own error has no number
    return pa.OSFile(address) if files.is_local else files.filesystem.open(address, "rb", cache_type="none")
