"""Atomic objects on S3: each appears as a whole, when its upload is committed."""

import time
import uuid
from collections.abc import Iterable
from typing import Any

from fsspec import AbstractFileSystem

_REFUSED = {409, 412}  # another is writing it; it is there
_MARK = "gateau-writer"
_TRIES, _PAUSE_SECONDS = 5, 0.2


def replace_object(filesystem: AbstractFileSystem, address: str, pieces: Iterable[bytes]) -> None:
    """Replaces an object; a failed multi-part upload is discarded, not left behind."""
    file: Any = filesystem.open(address, "wb", autocommit=False)
    try:
        for piece in pieces:
            file.write(piece)
        file.close()
        file.commit()
    except BaseException:
        file.discard()
        file.closed = True  # else the garbage collector would try to write the rest
        raise


def create_object(filesystem: Any, address: str, data: bytes) -> bool:
    """Makes an object with this content unless there is one; whether this call made it.

    A write whose answer was lost is tried again, and then refused on account of itself: the mark in the object's
    metadata says whose it is.
    """
    mark = uuid.uuid4().hex
    for attempt in range(_TRIES):
        try:
            filesystem.pipe_file(address, data, mode="create", Metadata={_MARK: mark})
            return True
        except OSError as error:
            if _status(error) not in _REFUSED or attempt == _TRIES - 1:
                raise
        try:
            return filesystem.metadata(address).get(_MARK) == mark
        except FileNotFoundError:
            time.sleep(_PAUSE_SECONDS)  # the other's was removed since, or did not succeed
    raise AssertionError("unreachable")


def _status(error: OSError) -> int | None:
    """The HTTP status of the answer that s3fs made an error of."""
    response: Any = getattr(error.__cause__, "response", None) or {}
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
