"""Convert failures of disks and servers to messages that name the cause and the remedy."""

import errno
import os
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.remote import HUB, S3

_NO_MEMORY = (
    "there is too little memory for this process or its threads. Raise its limits (ulimit -v, ulimit -u, the "
    "container's), or end other programs. Then run again."
)
_ABOUT_STATUSES = re.compile(r"\s*For more information check: \S+")
_FREE = "Free some space, then run again: all computed results are kept."
_OS_CURES = {
    errno.ENOMEM: ("machine.memory", _NO_MEMORY),
    errno.ENOSPC: (
        "storage.disk_full",
        f"the disk is full. {_FREE}",
    ),
    errno.EDQUOT: (
        "storage.disk_full",
        f"the disk quota is used up. {_FREE}",
    ),
    errno.EFBIG: (
        "machine.file_size",
        "the file exceeds the size limit. Raise it (ulimit -f), or use more shards.",
    ),
    errno.EACCES: (
        "storage.permission",
        "permission denied. Grant read and write access, or choose another folder.",
    ),
    errno.EROFS: ("storage.permission", "the file system is read-only. Choose another folder."),
    errno.ENAMETOOLONG: (
        "storage.path",
        "a name is longer than 255 bytes or the path than 4,095. Choose a shorter one.",
    ),
    errno.ELOOP: ("storage.path", "its symbolic links form a circle. Remove one of them."),
    errno.EEXIST: ("storage.path", "a file of this name already exists. Move it, or choose another folder."),
    errno.EISDIR: ("storage.path", "it is a folder, not a file. Remove it, or correct the path."),
    errno.EMFILE: (
        "machine.open_files",
        "too many open files. Raise the limit (ulimit -n 1024), then run again.",
    ),
    errno.ENOTDIR: ("storage.path", "a part of the path is a file, not a folder. Correct the path."),
}
# Errors of a file system on another machine, by their number on this one.
_OF_A_NETWORK = {
    getattr(errno, name)
    for name in ("EREMOTEIO", "EHOSTUNREACH", "EHOSTDOWN", "ENETUNREACH", "ENETDOWN", "ETIMEDOUT")
    if hasattr(errno, name)
}
_OF_MEMORY = ("can't start new thread", "failed to map segment from shared object")
_FEW_FILES = 256
_ADDRESS_SPACE = 4 * 10**9  # bytes; torch, Polars and their threads
_FULL_DISK = ("No space left on device", "database or disk is full")


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """A failure of a server, identified by the names of its classes, by the answer's status or by words of its message.

    Class names avoid the import of a server's client for work on a local disk.
    """

    classes: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    statuses: frozenset[int] = frozenset()
    answered: range | None = None  # statuses of the hub's answer, one of which is needed besides the class
    kind: type[GateauError] = GateauError
    code: str
    cure: str

    def of(self, error: BaseException) -> bool:
        """Return whether the error has this cause."""
        text = "" if getattr(error, "filename", None) else str(error)  # a file may have any name
        return self.by_kind(error) or any(word in text for word in self.words)

    def by_kind(self, error: BaseException) -> bool:
        """Return whether the error has this cause by its class or status: a message alone proves no server."""
        kinds = type(error).__mro__
        names = {name for each in kinds for name in (each.__name__, f"{each.__module__}.{each.__name__}")}
        response: Any = getattr(error, "response", None)
        if self.answered is not None and getattr(response, "status_code", None) not in self.answered:
            return False
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        return not names.isdisjoint(self.classes) or status in self.statuses


_NO_BUCKET = _Cause(
    words=("NoSuchBucket", "bucket does not exist"),
    code="storage.no_bucket",
    cure="the bucket does not exist. Create it, or correct the address and AWS_ENDPOINT_URL.",
)
_GATED = _Cause(
    classes=frozenset({"GatedRepoError"}),
    code="hub.gated",
    cure="the data set is gated. Sign in at {page}, accept its terms, and set HF_TOKEN to a token of that account.",
)
NOT_OF_THE_HUB = (
    "this is not an answer of the Hugging Face hub ({text}). A login page, a proxy or another server gave it. Check "
    "the name, the network and HF_ENDPOINT, then run again."
)
_OF_THE_HUB = frozenset({"HTTPError"})  # the base of huggingface_hub's errors and of its HTTP client's
_UNREACHABLE = _Cause(
    classes=frozenset(
        {
            *("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "HTTPClientError"),
            *("ClientConnectorError", "ServerDisconnectedError", "ClientOSError"),
        }
    ),
    kind=TransientError,
    code="storage.connection",
    cure="the storage server does not answer ({text}). Check that it is running, the network, and AWS_ENDPOINT_URL. "
    "Then run again: all computed results are kept.",
)
_CUT_SHORT = _Cause(
    classes=frozenset({"ClientPayloadError", "IncompleteReadError", "IncompleteRead", "FlexibleChecksumError"}),
    kind=TransientError,
    code="storage.connection",
    cure="the storage server's answers are incomplete or damaged ({text}). Check the network and the server, then "
    "run again: all computed results are kept.",
)
_OVERLOADED = _Cause(
    words=("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "TooManyRequests"),
    statuses=frozenset({408, 429, 500, 502, 503, 504}),
    kind=TransientError,
    code="storage.server_failed",
    cure="the storage server is overloaded or fails ({text}). Run again later: all computed results are kept.",
)
_LOST_DATABASE = _Cause(
    classes=frozenset({"psycopg2.OperationalError", "psycopg2.InterfaceError"}),
    kind=TransientError,
    code="dagster.no_postgres",
    cure="Dagster's PostgreSQL does not answer. Check that it is running, and the network. Then run again: all "
    "computed results are kept.",
)
_SERVER_CAUSES = (
    _UNREACHABLE,
    _CUT_SHORT,
    _Cause(
        classes=frozenset({"NoCredentialsError", "PartialCredentialsError"}),
        code="storage.credentials",
        cure="no S3 credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    ),
    _GATED,
    _Cause(
        classes=frozenset({"OfflineModeIsEnabled"}),
        code="hub.offline",
        cure="HF_HUB_OFFLINE is set. Unset it, or download the file and give its path.",
    ),
    _Cause(classes=_OF_THE_HUB, answered=range(400), code="hub.answer", cure=NOT_OF_THE_HUB),
    _Cause(
        classes=_OF_THE_HUB,
        answered=range(401, 404),
        code="hub.refused",
        cure="the Hugging Face hub refuses it to this account ({text}). Set HF_TOKEN to a valid token with the right "
        "to read it, or unset it for a public data set.",
    ),
    _Cause(classes=_OF_THE_HUB, answered=range(404, 405), code="hub.answer", cure=NOT_OF_THE_HUB),
    _Cause(
        classes=_OF_THE_HUB,
        kind=TransientError,
        code="hub.unavailable",
        cure="the Hugging Face hub cannot be used ({text}). Check the network, HF_ENDPOINT and HF_TOKEN, then run "
        "again.",
    ),
    _NO_BUCKET,
    _Cause(
        classes=frozenset({"PermissionError"}),  # without a number: the system's own was handled before
        words=("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "Forbidden"),
        code="storage.access_denied",
        cure="access denied ({text}). Check the credentials and the bucket policy.",
    ),
    _OVERLOADED,
)
_ANY_OF_A_SERVER = _Cause(
    classes=frozenset({"BotoCoreError", "ClientError"}),
    kind=TransientError,
    code="storage.server_failed",
    cure="the storage server cannot be used ({text}). Check the address, AWS_ENDPOINT_URL and the credentials, then "
    "run again.",
)
# Messages for missing inputs, by the prefix of the address.
_MISSING = {
    S3: "there is no such file. Check the address and AWS_ENDPOINT_URL.",
    HUB: "the Hugging Face hub has no such data set, revision or file. Check the name, and set HF_TOKEN if it is "
    "private.",
    "": "it does not exist. Check the path.",
}

_ADDRESSES = {S3: "s3://bucket/folder/file", HUB: "hf://datasets/owner/name/file"}


@contextmanager
def readable_failures(action: str) -> Iterator[None]:
    """Run an access to storage; `action` names it in messages, such as "write s3://bucket/cam/03.parquet".

    Raises:
        TransientError: the server could not be reached or is overloaded; trying again may help.
        GateauError: another try would fail, too: disk full, no rights, no bucket, wrong credentials.
        FileNotFoundError: unchanged, since a missing file may be an answer.
    """
    try:
        yield
    except GateauError:
        raise
    except FileNotFoundError as error:
        causes = (_NO_BUCKET, _GATED)
        made = _first(causes, error, action) or _first(causes, error.__cause__, action)
        if made is None:
            raise
        raise made from error
    except Exception as error:
        made = explained(error, action)
        if made is error:
            raise
        raise made from error


@contextmanager
def readable_input(address: str) -> Iterator[None]:
    """Read required input, with the failures of `readable_failures`.

    Raises:
        TransientError: trying again may help.
        GateauError: another try would fail, too. No OSError passes: damaged content differs from a lost server.
    """
    place = next(beginning for beginning in _MISSING if address.startswith(beginning))
    try:
        with readable_failures(f"read {address}"):
            yield
    except GateauError:
        raise
    except FileNotFoundError as error:
        raise GateauError("data.missing", f"Cannot read {address}: {_MISSING[place]}") from error
    except OSError as error:
        if place:
            raise TransientError(
                "storage.server_failed", f"Cannot read {address}: the server failed ({error}). Run again later."
            ) from error
        raise GateauError("storage.disk", f"Cannot read {address}: {error}. Check the disk, then run again.") from error
    except (NotImplementedError, ValueError) as error:
        if not place:
            raise
        raise GateauError("data.address", f"Cannot read {address}: {error}. Write {_ADDRESSES[place]}.") from error


def explained(error: Exception, action: str) -> Exception:
    """Return the failure as a GateauError or TransientError if its cause is known, else unchanged."""
    links = [*chain(error)]
    made = (
        *(_of_disk(link, action) or _first(_SERVER_CAUSES, link, action) for link in links),
        *(_of_connection(link, action) for link in links),  # s3fs converts an answer to a system error
        *(_first((_ANY_OF_A_SERVER,), link, action) for link in (error, error.__cause__)),
    )
    return next((found for found in made if found is not None), error)


def explained_by_system(error: Exception, action: str) -> Exception:
    """Explain a failure of work that is no access to storage.

    Only errors of the operating system count, and those that only a storage client raises; see `explained`.
    """
    made = (of(link, action) for link in chain(error) for of in (_of_disk, _of_memory, _of_connection, _of_client))
    return next((found for found in made if found is not None), error)


def _first(causes: Sequence[_Cause], error: BaseException | None, action: str) -> GateauError | None:
    found = None if error is None else next((cause for cause in causes if cause.of(error)), None)
    if found is None:
        return None
    # Some cures name the page of the data set in an action such as "read hf://datasets/owner/name/file".
    page = f"{hub_endpoint()}/{'/'.join(action.partition(HUB)[2].split('@')[0].split('/')[:3])}"
    return found.kind(found.code, f"Cannot {action}: {found.cure.format(text=said(error), page=page)}")


def said(error: BaseException | None) -> str:
    """Return the message of an error on one line, without the page about HTTP statuses that its client adds."""
    return " ".join(_ABOUT_STATUSES.sub("", str(error)).split())


def hub_endpoint() -> str:
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def is_gated(error: BaseException) -> bool:
    """Return whether the hub refused a repository because its terms were not accepted."""
    return any(_GATED.by_kind(link) for link in chain(error))


def hub_model_failure(  # noqa: PLR0911  one answer after the other
    error: BaseException, *, place: str, name: str, revision: str | None
) -> GateauError | None:
    """Return an explanation of the hub's answer about a model, and what to do.

    Args:
        error: that the client raised.
        place: of the model's section in the configuration.
        name: of the model on the hub.
        revision: as configured.

    Returns:
        A TransientError if the hub may answer otherwise later; None if it did not answer at all.
    """
    for link in chain(error):
        kinds = {each.__name__ for each in type(link).__mro__}
        status = getattr(getattr(link, "response", None), "status_code", None)
        # The error of a gated repository is a subclass of that of a missing one.
        if "GatedRepoError" in kinds:
            return GateauError(
                "hub.gated",
                f"{place}.path: {name} is gated on the Hugging Face hub, and this account may not read it. Sign in at "
                f"{hub_endpoint()}/{name}, accept its terms there, and set HF_TOKEN to a token of that account. Some "
                "owners have to confirm the request first.",
            )
        if "DisabledRepoError" in kinds:
            return GateauError(
                "hub.not_found", f"{place}.path: the Hugging Face hub has disabled {name}. Name another model."
            )
        if "RevisionNotFoundError" in kinds:
            return GateauError(
                "hub.revision",
                f"{place}.revision: {name} on the hub has no branch, tag or commit {revision or 'main'}. Correct it.",
            )
        if "RepositoryNotFoundError" in kinds:
            return GateauError(
                "hub.not_found",
                f"{place}.path: {name} is neither a folder on this machine nor a model on the hub. Correct the name. "
                "If it is private, set HF_TOKEN.",
            )
        if "RemoteEntryNotFoundError" in kinds:
            return GateauError(
                "hub.format",
                f"{place}.path: {name} on the hub has no config.json, so transformers cannot load it. Name a model in "
                "the format of transformers.",
            )
        if isinstance(status, int) and (status < 400 or status == 404):
            return GateauError("hub.answer", f"{place}.path: {NOT_OF_THE_HUB.format(text=said(link))}")
        if status in {401, 402, 403}:
            return GateauError(
                "hub.refused",
                f"{place}.path: the hub refuses {name} to this account (HTTP status {status}). Set HF_TOKEN to a valid "
                "token with the right to read it, or unset it for a public model.",
            )
        if status == 429:
            return TransientError(
                "hub.unavailable",
                f"{place}.path: the hub limits requests from this address (HTTP status 429). Run again later; "
                "HF_TOKEN raises the limit.",
            )
        if isinstance(status, int) and status >= 500:
            return TransientError(
                "hub.unavailable",
                f"{place}.path: the Hugging Face hub fails (HTTP status {status}), and {name} is not on this machine. "
                "Run again later.",
            )
    return None


def _of_disk(link: BaseException, action: str) -> GateauError | None:
    if isinstance(link, OSError) and link.errno in _OS_CURES:
        return _of_system(link.errno, action)
    # Polars and SQLite (Dagster's records) have their own errors for it.
    if any(words in str(link) for words in _FULL_DISK):
        return _of_system(errno.ENOSPC, action)
    return _of_sqlite(link, action)


def _of_system(number: int, action: str) -> GateauError:
    code, cure = _OS_CURES[number]
    return GateauError(code, f"Cannot {action}: {cure}")


def _of_sqlite(link: BaseException, action: str) -> GateauError | None:
    """Explain an SQLite error by a limit on this process, since SQLite names no cause."""
    if not any(f"{kind.__module__}.{kind.__name__}" == "sqlite3.OperationalError" for kind in type(link).__mro__):
        return None
    if "unable to open database file" in str(link) and _limit(resource.RLIMIT_NOFILE) < _FEW_FILES:
        return _of_system(errno.EMFILE, action)
    if "disk I/O error" in str(link) and _limit(resource.RLIMIT_FSIZE) < float("inf"):
        return _of_system(errno.EFBIG, action)
    return None


def _limit(kind: int) -> float:
    found = resource.getrlimit(kind)[0]
    return float("inf") if found == resource.RLIM_INFINITY else found


def check_address_space() -> None:
    """Check, before libraries are loaded, that they may map enough memory: some would abort the process.

    Raises:
        GateauError: a limit leaves too little.
    """
    allowed = _limit(resource.RLIMIT_AS)
    if allowed < _ADDRESS_SPACE:
        raise GateauError(
            "machine.memory",
            f"this process may use {allowed / 1e9:.1f} GB of address space, but its libraries alone need "
            f"{_ADDRESS_SPACE / 1e9:.0f} GB. Raise the limit (ulimit -v unlimited), then run again.",
        )


def _of_memory(link: BaseException, action: str) -> GateauError | None:
    if isinstance(link, MemoryError) or any(words in str(link) for words in _OF_MEMORY):
        return GateauError("machine.memory", f"Cannot {action}: {_NO_MEMORY}")
    return None


def _of_connection(link: BaseException, action: str) -> GateauError | None:
    if isinstance(link, ConnectionError | TimeoutError) or getattr(link, "errno", None) in _OF_A_NETWORK:
        return TransientError(
            "storage.connection", f"Cannot {action}: the connection broke ({link}). Check the server, then run again."
        )
    return None


def _of_client(link: BaseException, action: str) -> GateauError | None:
    causes = [cause for cause in (_UNREACHABLE, _CUT_SHORT, _OVERLOADED, _LOST_DATABASE) if cause.by_kind(link)]
    return _first(causes, link, action)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
