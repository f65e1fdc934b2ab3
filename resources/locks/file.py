"""A lock on a file of the work folder: the system frees it when its process ends, also by a kill."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError


@contextmanager
def file_lock(config: Config) -> Iterator[None]:
    """See `Lock`. For the processes of one machine; the file holds the id of the one that has it."""
    config.work_folder.mkdir(parents=True, exist_ok=True)
    with (config.work_folder / "refresh.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise GateauError(
                f"Another run on this configuration is at work (process {file.read().strip() or 'unknown'}). "
                "Wait for it to end, or end it."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
