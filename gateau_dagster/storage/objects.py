"""Atomic objects on S3: each appears as a whole, when its upload is committed."""

import json
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any

from fsspec.asyn import sync
from fsspec.caching import AllBytes

from gateau_dagster.storage.fence import COMMITS, Fence, LeaseLostError, numbers_in

_SMALL_BYTES = 2**20  # a request takes longer than so many bytes
_REFUSED = {409, 412}  # another is writing it; it is there
_MARK = "gateau-writer"
_TRIES, _PAUSE_SECONDS = 5, 0.2


def replace_object(
    filesystem: Any, address: str, pieces: Iterable[bytes], fence: Fence | None = None, root: str = ""
) -> None:
    """Replaces an object: what is one piece by one request, else part by part.

    Args:
        fence: what is proved before the object appears; see `fence`. root: of the store, where there is one.

    Raises:
        LeaseLostError: another run has taken over the store; nothing is left of the temporary object.
    """
    left = iter(pieces)
    first, second = next(left, b""), next(left, None)
    fenced = fence if fence is not None and fence.tokens else None
    note = "" if fenced is None else f"{root}/{COMMITS}/{fenced.mark}/{uuid.uuid4().hex}"
    if second is not None:
        _upload(filesystem, address, chain([first, second], left), fenced, note)
    elif fenced is None:
        filesystem.pipe_file(address, first)
    else:
        filesystem.pipe_file(note, first)
        try:
            with fenced.committing():
                sync(filesystem.loop, filesystem._copy_basic, note, address)
        except LeaseLostError:
            _forget(filesystem, note)
            raise
        _forget(filesystem, note)


def _upload(filesystem: Any, address: str, pieces: Iterable[bytes], fence: Fence | None, note: str) -> None:
    """A failed upload in parts is discarded, not left behind."""
    mark = uuid.uuid4().hex
    file: Any = filesystem.open(address, "wb", autocommit=False, Metadata={_MARK: mark})
    try:
        for piece in pieces:
            file.write(piece)
        file.close()
        if fence is not None:
            told = {"bucket": file.bucket, "key": file.key, "upload": file.mpu["UploadId"]}
            filesystem.pipe_file(note, json.dumps(told).encode())
        with nullcontext() if fence is None else fence.committing():
            _commit(file, filesystem, address, mark)
    except BaseException:
        with suppress(FileNotFoundError):  # who took over the store has discarded it
            file.discard()
        if fence is not None:
            _forget(filesystem, note)
        file.closed = True  # else the garbage collector would try to write the rest
        raise
    if fence is not None:
        _forget(filesystem, note)


def _forget(filesystem: Any, note: str) -> None:
    """Removes a temporary object. One that stays, on a server that fails, goes when the next run takes the store."""
    with suppress(OSError):
        filesystem.rm_file(note)


def sweep_objects(filesystem: Any, root: str, is_dead: Callable[[int], bool]) -> None:
    """Removes every temporary object and upload that names a lease which is dead; see `fence`."""
    try:
        found = filesystem.find(f"{root}/{COMMITS}")
    except FileNotFoundError:
        return
    for address in found:
        if any(map(is_dead, numbers_in(address.rsplit("/", 2)[-2]))):
            with suppress(FileNotFoundError):
                _abort(filesystem, filesystem.cat_file(address))
                filesystem.rm_file(address)


def _abort(filesystem: Any, note: bytes) -> None:
    """Aborts the upload that a note names; the content of a small object is not one."""
    try:
        told = json.loads(note)
        upload = {"Bucket": told["bucket"], "Key": told["key"], "UploadId": told["upload"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    with suppress(FileNotFoundError):  # it is completed, or aborted
        sync(filesystem.loop, filesystem._call_s3, "abort_multipart_upload", **upload)


def _commit(file: Any, filesystem: Any, address: str, mark: str) -> None:
    """Where the answer was lost, the second request finds no such upload: the object is there, with this mark."""
    try:
        file.commit()
    except FileNotFoundError:
        if not _is_marked(filesystem, address, mark):
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
        marked = _is_marked(filesystem, address, mark)
        if marked is not None:
            return marked
        time.sleep(_PAUSE_SECONDS)  # the other's was removed since, or did not succeed
    raise AssertionError("unreachable")


def _is_marked(filesystem: Any, address: str, mark: str) -> bool | None:
    """Whether the object was written with this mark; None when there is none."""
    try:
        return filesystem.metadata(address).get(_MARK) == mark
    except FileNotFoundError:
        return None


def object_version(file: Any) -> str:
    """The ETag of an object that is open for reading, another one with each other content; empty for a local file."""
    return getattr(file, "details", {}).get("ETag", "")


def fetch_small(file: Any) -> None:
    """Of an object that is open for reading: fetches a small one by one request, for who reads a piece here and there.

    Nothing for a large one, and for a local file.
    """
    if object_version(file) and 0 < file.size <= _SMALL_BYTES:
        file.cache = AllBytes(size=file.size, fetcher=file._fetch_range)


def _status(error: OSError) -> int | None:
    """The HTTP status of the answer that s3fs made an error of."""
    response: Any = getattr(error.__cause__, "response", None) or {}
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
