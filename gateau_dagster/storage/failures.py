"""Turns failures of disks and servers into messages that name the cause and the cure."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from gateau_dagster.errors import GateauError, TransientError

_OS_CURES = {
    errno.ENOSPC: "the disk is full. Free some space and run again; what was already computed is kept.",
    errno.EDQUOT: "the disk quota is used up. Free some space and run again; what was already computed is kept.",
    errno.EFBIG: "the file is larger than this system allows. Use more shards, or raise the limit (ulimit -f).",
    errno.EACCES: "permission denied. Give this user the right to read and write there, or choose another folder.",
    errno.EROFS: "the file system is read-only. Choose another folder.",
    errno.ENOTDIR: "a part of the path is a file, not a folder.",
}

_FULL_DISK = ("No space left on device", "database or disk is full")

# Class names, words of the message, kind of error, cause and cure.
_SERVER_CAUSES: tuple[tuple[set[str], tuple[str, ...], type[GateauError], str], ...] = (
    (
        {
            *("EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError"),
            *("ClientConnectorError", "ServerDisconnectedError", "ClientOSError", "HTTPClientError"),
        },
        (),
        TransientError,
        "the storage server does not answer ({text}). Check that it is running, the network, and AWS_ENDPOINT_URL; "
        "then run again: what was already computed is kept.",
    ),
    (
        {"NoCredentialsError", "PartialCredentialsError"},
        (),
        GateauError,
        "no S3 credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    ),
    (
        set(),
        ("NoSuchBucket", "bucket does not exist"),
        GateauError,
        "the bucket does not exist. Create it, or correct storage.root.",
    ),
    (
        set(),
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "Forbidden"),
        GateauError,
        "access denied ({text}). Check the credentials and the bucket policy.",
    ),
    (
        set(),
        ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"),
        TransientError,
        "the storage server is overloaded ({text}). Run again later.",
    ),
)


@contextmanager
def readable_failures(action: str) -> Iterator[None]:
    """Runs an access to storage; `action` says what was tried, as in "write s3://bucket/cam/03.parquet".

    Raises:
        TransientError: the server could not be reached or is overloaded; trying again may help.
        GateauError: it will fail again: disk full, no rights, no bucket, wrong credentials.
    """
    try:
        yield
    except GateauError:
        raise
    except FileNotFoundError as error:
        if "bucket does not exist" in str(error):
            raise explained(error, action) from error
        raise
    except Exception as error:
        raise explained(error, action) from error


def explained(error: Exception, action: str) -> Exception:
    """The failure as a GateauError or TransientError where its cause is known, else unchanged."""
    for link in _chain(error):
        made = _of_server(link, action) or _of_system(link, action)
        if made is not None:
            return made
    return error


def _of_server(link: BaseException, action: str) -> GateauError | None:
    """What S3 clients raise; told by name, so that importing them is not needed on a local store."""
    name, text = type(link).__name__, str(link)
    for names, words, kind, cure in _SERVER_CAUSES:
        if name in names or any(word in text for word in words):
            return kind(f"Cannot {action}: {cure.format(text=text)}")
    return None


def explained_by_system(error: Exception, action: str) -> Exception:
    """As `explained`, for work that is not an access to storage: only what the operating system said counts."""
    made = (_of_system(link, action) for link in _chain(error))
    return next((found for found in made if found is not None), error)


def _of_system(link: BaseException, action: str) -> GateauError | None:
    if isinstance(link, OSError) and link.errno in _OS_CURES:
        return GateauError(f"Cannot {action}: {_OS_CURES[link.errno]}")
    # Polars and SQLite (Dagster's records) have errors of their own for it.
    if any(words in str(link) for words in _FULL_DISK):
        return GateauError(f"Cannot {action}: {_OS_CURES[errno.ENOSPC]}")
    if isinstance(link, ConnectionError | TimeoutError):
        return TransientError(f"Cannot {action}: the connection broke ({link}). Check the server, then run again.")
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
