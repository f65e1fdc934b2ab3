"""Write atomic objects on S3: each appears as a whole, when its upload is committed."""

# S3 has no rename. Two of its operations appear at once, though: a copy on the server, and the completion of an upload
# in parts. Both are commits here. What happens before them can be thrown away: a small object below `_commits/`, or
# parts that no listing shows.
#
# What it costs: a small object takes four requests under a lease and one without. Parts of an upload that nobody
# completes are paid for until they are aborted. The sweep aborts those of dead leases, and `gateau clean` the others.

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

_SMALL_BYTES = 2**20  # a request takes longer than this many bytes
_REFUSED = {409, 412}  # another writer is at work; it exists
_MARK = "gateau-writer"
_TRIES, _PAUSE_SECONDS = 5, 0.2


def replace_object(
    filesystem: Any, address: str, pieces: Iterable[bytes], fence: Fence | None = None, root: str = ""
) -> None:
    """Replace an object: a single piece by one request, several pieces by an upload in parts.

    Args:
        filesystem: s3fs.
        address: of the object.
        pieces: of the content.
        fence: proved before the object appears; see `fence`.
        root: of the store, if there is one.

    Raises:
        LeaseLostError: another run has taken over the store; the temporary object is removed.
    """
    left = iter(pieces)
    # Two pieces are read ahead, to know whether one request is enough. The content need not fit into memory.
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
    """Upload an object in parts, and discard a failed upload."""
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
            try:
                file.commit()
            except FileNotFoundError:
                # If the answer was lost, a repeated request finds no upload, but an object with this mark.
                if not _is_marked(filesystem, address, mark):
                    raise
    except BaseException:
        with suppress(FileNotFoundError):  # the new owner of the store has discarded it
            file.discard()
        if fence is not None:
            _forget(filesystem, note)
        file.closed = True  # otherwise the garbage collector would try to write the rest
        raise
    if fence is not None:
        _forget(filesystem, note)


def _forget(filesystem: Any, note: str) -> None:
    with suppress(OSError):  # the next owner of the store removes it
        filesystem.rm_file(note)


def sweep_objects(filesystem: Any, root: str, is_dead: Callable[[int], bool]) -> None:
    """Remove every temporary object and upload that names a dead lease; see `fence`."""
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
    """Abort the upload that a note names; ignore the content of a small object."""
    try:
        told = json.loads(note)
        address, upload = f"{told['bucket']}/{told['key']}", told["upload"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    abort_upload(filesystem, address, upload)


def unfinished_uploads(filesystem: Any, root: str) -> list[tuple[str, str, int]]:
    """Return name below the root, id and bytes of each upload in parts that was begun and not completed."""
    bucket, prefix, _ = filesystem.split_path(f"{root}/")
    place, more, found = {"Bucket": bucket, "Prefix": prefix}, dict[str, Any](), list[tuple[str, str, int]]()
    while True:
        page: Any = sync(filesystem.loop, filesystem._call_s3, "list_multipart_uploads", **place, **more)
        for each in page.get("Uploads", []):
            upload = {"Bucket": bucket, "Key": each["Key"], "UploadId": each["UploadId"]}
            with suppress(FileNotFoundError):  # it is completed or aborted now
                parts: Any = sync(filesystem.loop, filesystem._call_s3, "list_parts", **upload)
                size = sum(part["Size"] for part in parts.get("Parts", []))
                found.append((each["Key"].removeprefix(prefix), each["UploadId"], size))
        if not page.get("IsTruncated"):
            return found
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def abort_upload(filesystem: Any, address: str, upload: str) -> None:
    """Abort an upload in parts; ignore one that is completed or aborted already."""
    bucket, key, _ = filesystem.split_path(address)
    with suppress(FileNotFoundError):
        sync(filesystem.loop, filesystem._call_s3, "abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)


def create_object(filesystem: Any, address: str, data: bytes) -> bool:
    """Create an object with this content unless it exists; return whether this call made it.

    A write whose answer was lost is repeated, and then refused because of itself: the mark in the object's metadata
    identifies the writer.
    """
    mark = uuid.uuid4().hex
    for attempt in range(_TRIES):
        try:
            filesystem.pipe_file(address, data, mode="create", Metadata={_MARK: mark})
            return True
        except OSError as error:
            answer: Any = getattr(error.__cause__, "response", None) or {}
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status not in _REFUSED or attempt == _TRIES - 1:
                raise
        marked = _is_marked(filesystem, address, mark)
        if marked is not None:
            return marked
        time.sleep(_PAUSE_SECONDS)  # the other object was removed since, or its write failed
    raise AssertionError("unreachable")


def _is_marked(filesystem: Any, address: str, mark: str) -> bool | None:
    try:
        return filesystem.metadata(address).get(_MARK) == mark
    except FileNotFoundError:
        return None  # it was removed, or its write failed


def object_version(file: Any) -> str:
    """Return the ETag of an object open for reading, which changes with its content; empty for a local file."""
    return getattr(file, "details", {}).get("ETag", "")


def fetch_small(file: Any) -> None:
    """Fetch a small object, open for reading, by one request, for readers of scattered pieces.

    Large objects and local files are left as they are.
    """
    if object_version(file) and 0 < file.size <= _SMALL_BYTES:
        file.cache = AllBytes(size=file.size, fetcher=file._fetch_range)
