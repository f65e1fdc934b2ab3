"""Find who works on a store now, for readers: the UI, the schedule, the sensor."""

import time

from gateau_dagster.config import Config
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import EXPIRES_SECONDS, FOLDER, Holder
from gateau_dagster.storage.process_identity import ProcessIdentity


def holder_of(config: Config) -> str | None:
    """Describe who holds a lease of the store; return None if nobody visible from here does.

    Raises:
        GateauError, TransientError: the store cannot be read.
    """
    files = Files(config.located_root)
    for name in files.names(FOLDER):
        try:
            holder = Holder.from_bytes(files.read(f"{FOLDER}/{name}"))
        except FileNotFoundError:  # just removed
            continue
        if holder is not None and _lives(holder):
            return holder.described()
    return None


def _lives(holder: Holder) -> bool:
    state = ProcessIdentity.from_text(holder.process).state()
    if holder.released or state == "gone":
        return False
    return state == "alive" or abs(time.time() - holder.renewed_at) <= EXPIRES_SECONDS
