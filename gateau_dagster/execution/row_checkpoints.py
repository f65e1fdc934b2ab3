"""Save rows of an unfinished shard in groups while they are computed, so that a killed run can be resumed."""

# Why groups: a file per row could take longer than a short sample's pass, and is a request each on S3. A table at the
# end of the shard would lose hours. A group is written after GROUP_SECONDS or GROUP_ROWS, whichever comes first. So a
# kill costs about that much work, and saving takes a small share of the time.
#
# Why not an append to one file: a kill can cut a row in half, several writers would mix their rows, and S3 cannot
# append. Each group is a whole table with its own name. Names hold a random part for each writer, so that no lock is
# needed.
#
# What is not kept: rows on the device at a kill with SIGKILL. After other signals, a thread calls `save_all_rows`
# before the process ends.

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import polars as pl

from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.store import DamagedTableError

FOLDER = "_partial"
_ENDING = ".parquet"
GROUP_SECONDS = 20.0
GROUP_ROWS = 256


# Global, since the thread that ends the process knows no shards. An empty set means that there is nothing to lose.
_unsaved: "set[RowCheckpoints]" = set()


def save_all_rows() -> None:
    """Save the waiting rows of all running shards; called from a thread when the process is to end.

    Raises:
        GateauError: the rows of a shard could not be written; those of the others are.
    """
    with ExitStack() as saving:
        # ExitStack calls all of them, even if one fails, and raises the error only then.
        for checkpoints in [*_unsaved]:
            saving.callback(checkpoints.save)


class RowCheckpoints:
    """Group files `<root>/_partial/<asset>/<partition>/<scorer>/<n>-<writer>.parquet`.

    The scorer's digest is part of the path: rows of another model or setting are never mistaken for these. Several
    writers may save rows of a shard at a time, on several machines.
    """

    def __init__(self, store: Store, asset: str, partition: str, scorer: str, schema: pl.Schema) -> None:
        self._store = store
        self._shard_folder = f"{FOLDER}/{asset}/{partition}"
        self._folder = f"{self._shard_folder}/{scorer}"
        self._scorer = scorer
        self._schema = schema
        self.damaged: list[str] = []  # messages about files that `load` could not use
        self._waiting: list[Mapping[str, Any]] = []
        self._saved_at = time.monotonic()
        self._next, self._writer = 0, uuid.uuid4().hex[:12]
        # An RLock, since `add` calls `save`. The lock keeps `save_all_rows` from writing a group that this thread is
        # writing.
        self._lock = threading.RLock()  # see save_all_rows

    def load(self) -> pl.DataFrame:
        """Return the rows that interrupted runs saved, and that other writers save now; a row may occur twice."""
        files = [name for name in self._store.files.names(self._folder) if name.endswith(_ENDING)]
        frames: list[pl.DataFrame] = []
        for file in sorted(files):
            name = f"{self._folder}/{file.removesuffix(_ENDING)}"
            try:
                # A group without a readable stamp is skipped. Its rows are recomputed, like those of a group that was
                # never written.
                if self._store.stamp(name) is not None:
                    frames.append(self._store.read(name))
            except DamagedTableError as error:  # its rows are recomputed
                self.damaged.append(str(error))
        # An earlier version saved rows without a column that is optional.
        return pl.concat(frames, how="diagonal") if frames else pl.DataFrame(schema=self._schema)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, and save the group when it is large or old enough."""
        with self._lock:
            self._waiting.append(row)
            _unsaved.add(self)
            if len(self._waiting) >= GROUP_ROWS or time.monotonic() - self._saved_at >= GROUP_SECONDS:
                self.save()

    def save(self) -> None:
        """Write the waiting rows as the next group."""
        with self._lock:
            if self._waiting:
                # The waiting rows are dropped only after the write: a full disk leaves them here, and `close` tries
                # once more.
                frame = rows_frame(self._waiting, self._schema)
                self._store.write(
                    frame, f"{self._folder}/{self._next}-{self._writer}", None, Stamp(fingerprint=self._scorer)
                )
                self._waiting, self._next = [], self._next + 1
            _unsaved.discard(self)
            self._saved_at = time.monotonic()

    def close(self) -> None:
        """Save the waiting rows once; rows that cannot be written are recomputed, maybe by others.

        An interrupt leaves them to `save_all_rows`.
        """
        try:
            self.save()
        except Exception:
            _unsaved.discard(self)
            raise

    def remove(self) -> None:
        """Remove the groups of the shard, of any scorer; called once its table is written."""
        with self._lock:
            self._waiting = []
            _unsaved.discard(self)
            # Of all scorers: rows of earlier settings would otherwise stay for ever, in case someone goes back to them.
            self._store.files.remove(self._shard_folder)


def rows_frame(rows: Sequence[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """Return rows as a table with exactly the schema's columns and types."""
    return pl.DataFrame(rows, schema=schema, orient="row") if rows else pl.DataFrame(schema=schema)
