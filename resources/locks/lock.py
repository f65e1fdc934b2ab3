"""What a lock is: held by one process at a time, and free again when that process is gone."""

from contextlib import AbstractContextManager
from typing import Protocol

from gateau_dagster.config import Config


class Lock(Protocol):
    """Keeps two runs on one configuration apart, which would do the same work twice."""

    def __call__(self, config: Config) -> AbstractContextManager[None]:
        """Holds the lock within the block. It must not outlive its process, however that ends.

        Raises:
            GateauError: another process has it; the message names that process.
        """
        ...
