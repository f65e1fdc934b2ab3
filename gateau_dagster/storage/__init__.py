"""Store tables on a local path or on S3, written atomically and stamped with their inputs."""

from gateau_dagster.storage.stamp import Stamp
from gateau_dagster.storage.store import Store

__all__ = ["Stamp", "Store"]
