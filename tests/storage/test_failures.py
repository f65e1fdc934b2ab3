"""Failures of servers: each names the cause and the cure, in seconds."""

import errno
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import s3fs
import sqlalchemy
from aiohttp import ClientPayloadError, ServerDisconnectedError
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ReadTimeoutError
from huggingface_hub.errors import OfflineModeIsEnabled
from moto.server import ThreadedMotoServer
from sqlalchemy.exc import OperationalError

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage import Stamp, Store, remote
from gateau_dagster.storage.failures import explained, explained_by_system, readable_failures, readable_input
from gateau_dagster.storage.files import Files
from tests.kit.error_codes import refused
from tests.kit.local_server import QuietHandler, served
from tests.kit.project import command_environment


def answered(status: int, code: str) -> ClientError:
    """What botocore makes of an answer."""
    response: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "HeadObject")


FRAME = pl.DataFrame({"n": [1]})


def test_a_missing_bucket_is_named(s3_environment: str) -> None:
    store = Store("s3://no-such-bucket/prefix")
    for access in (
        lambda: store.stamp("t"),
        lambda: store.write(FRAME, "t", None, Stamp(fingerprint="f")),
        lambda: store.files.create("a", b"1"),
    ):
        with refused("storage.no_bucket", "s3://no-such-bucket/"):
            access()


def accesses(store: Store) -> Iterator[tuple[str, object]]:
    yield "write", lambda: store.write(FRAME, "t", None, Stamp(fingerprint="f"))
    yield "read", lambda: store.read("t")
    yield "read", lambda: store.stamp("t")
    yield "read", lambda: store.files.exists("t")
    yield "list", lambda: store.files.names("t")
    yield "remove", lambda: store.files.remove("t")


def test_a_server_that_is_not_there_is_named(
    s3_environment: str, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    for verb, access in accesses(Store("s3://bucket/prefix")):
        with pytest.raises(TransientError, match=rf"Cannot {verb} s3://bucket.*does not answer.*AWS_ENDPOINT_URL"):
            access()  # type: ignore[operator]


def test_a_server_lost_on_the_way_loses_nothing(
    s3_environment: str, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    s3fs.S3FileSystem.clear_instance_cache()
    boto3.client("s3").create_bucket(Bucket="bucket")
    store = Store("s3://bucket")
    store.write(FRAME, "t", None, Stamp(fingerprint="f"))
    server.stop()
    with pytest.raises(TransientError, match=r"does not answer|connection broke"):
        store.write(FRAME.head(0), "t", None, Stamp(fingerprint="g"))
    with pytest.raises(TransientError):
        store.stamp("t")
    again = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    again.start()
    try:
        stamp = store.stamp("t")
        assert stamp is not None and stamp.fingerprint == "f"
        store.write(FRAME.head(0), "t", None, Stamp(fingerprint="g"))
    finally:
        again.stop()


def test_a_server_that_never_answers_is_given_up_within_a_minute(
    s3_environment: str, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Add up the time-outs and pauses that are set; here each is a small part of it."""
    settings = remote.S3_CLIENT
    assert settings["retries"]["total_max_attempts"] == 1, "only s3fs asks again"
    pauses = sum(0.1 * 1.7**attempt for attempt in range(remote.S3_TRIES))
    assert remote.S3_TRIES * settings["read_timeout"] + pauses < 60
    monkeypatch.setitem(settings, "read_timeout", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(TransientError, match="does not answer"):
            Store("s3://bucket").stamp("t")
        silent.setblocking(False)
        asked = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert asked == remote.S3_TRIES


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def named(name: str, text: str) -> Exception:
    """An error that its class's name tells apart."""
    return type(name, (Exception,), {})(text)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "x"), GateauError, "disk is full"),
        (OSError(errno.EDQUOT, "x"), GateauError, "quota"),
        (OSError(errno.EFBIG, "x"), GateauError, "exceeds the size limit"),
        (OSError(errno.EACCES, "x"), GateauError, "permission denied"),
        (OSError(errno.EROFS, "x"), GateauError, "read-only"),
        (OSError(errno.ENOTDIR, "x"), GateauError, "is a file, not a folder"),
        (caused(RuntimeError("while flushing"), OSError(errno.ENOSPC, "x")), GateauError, "disk is full"),
        (RuntimeError("An error occurred (SlowDown)"), TransientError, "overloaded"),
        (RuntimeError("An error occurred (AccessDenied)"), GateauError, "access denied"),
        (RuntimeError("An error occurred (InvalidAccessKeyId)"), GateauError, "credentials"),
        (RuntimeError("The specified bucket does not exist"), GateauError, "the bucket does not exist"),
        (named("NoCredentialsError", "Unable to locate credentials"), GateauError, "AWS_ACCESS_KEY_ID"),
        (ConnectionResetError("reset"), TransientError, ""),
        (TimeoutError("late"), TransientError, ""),
        (BotoCoreError(), TransientError, ""),
    ],
)
def test_each_failure_is_told_apart_with_cause_and_cure(error: Exception, kind: type[GateauError], words: str) -> None:
    made = explained(error, "write s3://b/t")
    assert type(made) is kind and words in str(made) and str(made).startswith("Cannot write s3://b/t: ")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EREMOTEIO, "Internal Server Error"), "the connection broke"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "the connection broke"),
        (ClientPayloadError("Response payload is not completed"), "incomplete or damaged"),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), "incomplete or damaged"),
        (ServerDisconnectedError(), "does not answer"),
        (ReadTimeoutError(endpoint_url="http://host"), "does not answer"),
        (answered(500, "500"), "is overloaded or fails"),
        (answered(429, "TooManyRequests"), "is overloaded or fails"),
        (answered(503, "SlowDown"), "is overloaded or fails"),
    ],
)
@pytest.mark.parametrize("explain", [explained, explained_by_system])
def test_what_a_server_does_in_passing_is_never_a_defect(
    error: Exception, words: str, explain: Callable[[Exception, str], Exception]
) -> None:
    made = explain(error, "go on")
    assert isinstance(made, TransientError) and words in str(made) and "un again" in str(made)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "x")])
def test_too_little_memory_is_no_defect(error: Exception) -> None:
    found = explained_by_system(error, "go on")
    assert isinstance(found, GateauError) and "too little memory" in str(found) and "ulimit -v" in str(found)


def test_more_open_files_than_allowed_are_told_with_the_cure(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "from gateau_dagster.storage.failures import readable_failures\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "with readable_failures('read it'):\n"
        "    held = [open(__file__) for _ in range(100)]\n"
    )
    file = tmp_path / "many.py"
    file.write_text(code)
    done = subprocess.run(
        [sys.executable, file], env=command_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Cannot read it: too many open files. Raise the limit (ulimit -n 1024)" in done.stderr


@pytest.mark.parametrize(
    ("said", "kind", "number", "words"),
    [
        ("unable to open database file", resource.RLIMIT_NOFILE, 20, "too many open files. Raise the limit"),
        ("disk I/O error", resource.RLIMIT_FSIZE, 8192, "exceeds the size limit. Raise it"),
    ],
)
def test_what_sqlite_says_of_a_limit_is_told_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: int, number: int, words: str
) -> None:
    error = sqlite3.OperationalError(said)
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (resource.RLIM_INFINITY,) * 2)
    assert explained_by_system(error, "go on") is error
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (number if asked == kind else 10**9,) * 2)
    assert words in str(explained_by_system(error, "go on"))


class PageHandler(QuietHandler):
    """Answers each request with a page, which is no XML."""

    protocol_version = "HTTP/1.1"  # clients wait for "100 Continue"
    more: Mapping[str, str] = {}

    def do_GET(self) -> None:
        page = b"\n<!DOCTYPE html><html><body>Sign in<br></body></html>"
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        for name, value in self.more.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_PUT = do_POST = do_GET


def test_a_server_of_web_pages_is_no_empty_store(monkeypatch: pytest.MonkeyPatch, s3_environment: str) -> None:
    """A console, a login page or a proxy: each command begins with a listing, a file's size, or a read."""
    with served(ThreadingHTTPServer(("127.0.0.1", 0), PageHandler)) as port:
        address = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        files = Files("s3://bucket/store")
        for look in (files.sizes, partial(files.names, "_lease"), partial(files.read, "a"), partial(files.exists, "a")):
            with refused("storage.not_s3", f"^{address} .*HTML") as caught:
                look()
            assert "Set AWS_ENDPOINT_URL" in str(caught.value) and not isinstance(caught.value, TransientError)
        with refused("storage.not_s3"):
            files.write("a", b"1")


def test_a_page_that_is_a_file_of_a_web_server_is_no_list(monkeypatch: pytest.MonkeyPatch, s3_environment: str) -> None:
    handler = type("Handler", (PageHandler,), {"more": {"ETag": '"a1"'}})
    with served(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        files = Files("s3://bucket/store")
        for look in (files.sizes, partial(files.names, "_lease"), partial(files.write, "a", b"1")):
            with refused("storage.not_s3"):
                look()


def test_words_alone_make_no_failure_of_a_server_outside_storage() -> None:
    error = ValueError("InternalError: ServiceUnavailable, AccessDenied")
    assert explained_by_system(error, "go on") is error
    missing = answered(404, "NoSuchKey")
    assert explained_by_system(missing, "go on") is missing


def test_what_is_not_known_stays_what_it_is() -> None:
    error = KeyError("a defect")
    assert explained(error, "write x") is error
    with pytest.raises(KeyError), readable_failures("write x"):
        raise error
    with pytest.raises(FileNotFoundError), readable_failures("read x"):
        raise FileNotFoundError(2, "no")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("/d/x", PermissionError(errno.EACCES, "no"), "permission denied. Grant read"),
        ("/d/x", FileNotFoundError(errno.ENOENT, "no"), "it does not exist"),
        ("/d/x", OSError(errno.EIO, "Input/output error"), "Input/output error. Check the disk"),
        (
            "/d/AccessDenied",
            IsADirectoryError(errno.EISDIR, "a folder", "/d/AccessDenied"),
            "it is a folder, not a file",
        ),
        ("s3://b/x", PermissionError("Token has expired"), "access denied"),
        ("s3://b/x", FileNotFoundError("The specified bucket does not exist"), "the bucket does not exist"),
        ("hf://datasets/a/b/x", OfflineModeIsEnabled(), "HF_HUB_OFFLINE is set"),
        ("hf://datasets/a", NotImplementedError("no repository"), "Write hf://datasets/owner/name/file"),
        (
            "hf://datasets/a/b/x",
            caused(FileNotFoundError("hf://datasets/a/b/x"), named("GatedRepoError", "403")),
            "accept its terms",
        ),
    ],
)
def test_input_that_cannot_be_read_names_a_cure(address: str, error: Exception, words: str) -> None:
    with pytest.raises(GateauError) as caught, readable_input(address):
        raise error
    assert type(caught.value) is GateauError
    assert str(caught.value).startswith(f"Cannot read {address}: ") and words in str(caught.value)


def test_a_server_s_failure_of_no_known_kind_may_pass() -> None:
    for error in (OSError(errno.EINVAL, "Bad Request"), BotoCoreError()):
        with pytest.raises(TransientError), readable_input("s3://b/x"):
            raise error


@pytest.mark.parametrize("address", ["/d/x", "s3://b/x", "hf://datasets/a/b/x"])
def test_a_defect_passes_through_an_access_to_input(address: str) -> None:
    with pytest.raises(ZeroDivisionError), readable_input(address):
        raise ZeroDivisionError
    with refused("data.missing", match=r"^as it is$"), readable_input(address):
        raise GateauError("data.missing", "as it is")


def test_a_lost_database_may_come_back_and_one_of_files_is_no_such() -> None:
    """Whatever Dagster or SQLAlchemy made of it."""

    def failed(url: str) -> Exception:
        try:
            sqlalchemy.create_engine(url).connect()
        except OperationalError as error:
            try:
                raise RuntimeError("too many retries for DB connection") from error
            except RuntimeError as wrapped:
                return wrapped
        raise AssertionError("it was there")

    lost = explained_by_system(failed("postgresql+psycopg2://u:p@127.0.0.1:1/d"), "go on")
    assert isinstance(lost, TransientError) and "PostgreSQL does not answer" in str(lost)
    other = failed("sqlite:////proc/none/runs.db")
    assert explained_by_system(other, "go on") is other
