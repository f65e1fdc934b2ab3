"""Tables on a local path or on S3, written atomically and stamped with what they were made from."""

from gateau_dagster.storage.stamp import Stamp
from gateau_dagster.storage.store import Store

__all__ = ["Stamp", "Store"]
