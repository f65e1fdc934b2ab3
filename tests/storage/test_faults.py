"""A server that fails now and then is not noticed; one that fails for good is named, after a few tries."""

import os
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3
import polars as pl
import pytest
import s3fs

from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage import Stamp, Store, files, remote
from gateau_dagster.storage.files import local_copy

Fault = Literal["500", "502", "503", "429", "reset", "lost", "cut", "slow", "hang", "page", "gateway"]
_UPLOAD = re.compile(r"uploadId=[^&]*")
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
STATUSES = {"500": "InternalError", "502": "BadGateway", "503": "SlowDown", "429": "TooManyRequests"}


class FaultyServer(ThreadingHTTPServer):
    """Forwards requests to `server`; `faults` befall `share` of them.

    reset: the connection breaks before the request is done, lost: afterwards; cut: half of the body comes; slow, hang:
    the answer comes after `slow` seconds, or not within `hang`; page, gateway: HTML comes in place of the answer, with
    status 200 or 502. Whether a request is spoilt follows from what is asked
    and how often it was. `done` counts what befell the requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: str, faults: list[Fault], *, share: float, seed: int, methods: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server, self.faults, self.share, self.seed = urlsplit(server).netloc, faults, share, seed
        self.methods = methods
        self.slow, self.hang = 0.1, 20.0
        self.asked: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.ending = threading.Event()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Return the address at which it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, method: str, wanted: str) -> Fault | None:
        """What befalls a request."""
        with self._lock:
            request = f"{method} {_UPLOAD.sub('', wanted)}"
            self.asked[request] += 1
            lot = random.Random(f"{self.seed} {request} {self.asked[request]}")
            spoilt = method in self.methods and lot.random() < self.share
            found = lot.choice(self.faults) if spoilt else None
            self.done[found or "well"] += 1
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer  # type: ignore[assignment]

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.fault(self.command, f"{self.path} {self.headers.get('Range', '')}")
        if fault == "hang":
            self.server.ending.wait(self.server.hang)
        if fault in {"hang", "reset"}:
            self._break()
            return
        if fault == "slow":
            time.sleep(self.server.slow)
        if fault in STATUSES:
            code = STATUSES[fault]
            text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self._answer(int(fault), {"Content-Type": "application/xml"}, text)
            return
        if fault in {"page", "gateway"}:
            page = b"\n<!DOCTYPE html><html><title>Sign in</title><body><p>to the gateway<br></body></html>"
            self._answer(502 if fault == "gateway" else 200, {"Content-Type": "text/html"}, page)
            return
        connection = HTTPConnection(self.server.server, timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fault == "lost":
            self._break()
        else:
            self._answer(answer.status, _headers(answer), content, cut=fault == "cut")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def _break(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()  # it keeps the connection open
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def _headers(answer: HTTPResponse) -> dict[str, str]:
    left_out = {"connection", "transfer-encoding", "date", "server"}
    return {name: value for name, value in answer.getheaders() if name.lower() not in left_out}


@contextmanager
def faulty(
    server: str, faults: list[Fault], *, share: float = 0.2, seed: int = 0, methods: Iterable[str] = _METHODS
) -> Iterator[FaultyServer]:
    """A server that is up while this is used."""
    running = FaultyServer(server, faults, share=share, seed=seed, methods={*methods})
    thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.ending.set()
        running.shutdown()
        running.server_close()
        thread.join()


SHARDS = ("00", "01", "02", "03")
Server = Callable[..., Any]


@pytest.fixture
def server(s3_environment: str, short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Server:
    """`with server(faults, ...)`: the process's S3 settings lead to a server that has them."""

    monkeypatch.setitem(remote.S3_CLIENT, "read_timeout", 0.5)
    monkeypatch.setattr(files, "_CHUNK_BYTES", 2**20)

    @contextmanager
    def running(*faults: Fault, **options: Any) -> Iterator[FaultyServer]:
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket="faulty")
        with faulty(s3_environment, [*faults], **options) as made:
            monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
            s3fs.S3FileSystem.clear_instance_cache()
            yield made
        assert "Uploads" not in client.list_multipart_uploads(Bucket="faulty"), "none is left behind"
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="faulty"):
            for found in page.get("Contents", []):
                client.delete_object(Bucket="faulty", Key=found["Key"])

    return running


def frame(number: int) -> pl.DataFrame:
    """A table whose file has a body worth cutting."""
    return pl.DataFrame({"sample_id": [f"{number}-{row}" for row in range(2000)], "text": ["a word " * number] * 2000})


def written_and_read(store: Store, folder: Path) -> dict[str, Any]:
    """What is left of every kind of access."""
    found: dict[str, Any] = {}
    rejected = pl.DataFrame({"sample_id": ["x"], "reason": ["none"]})
    for number, shard in enumerate(SHARDS):
        store.write(frame(number), "t", shard, Stamp(fingerprint=shard), rejected)
    found["stamps"] = store.stamps([("t", shard) for shard in (*SHARDS, "not there")])
    found["tables"] = store.read_all("t", SHARDS).rows()
    found["rejected"] = store.read_rejected("t", SHARDS).rows()
    found["rows"] = store.read_rows("t", "01", pl.DataFrame({"sample_id": ["1-7", "1-1999"]})).rows()
    weights = os.urandom(1000) * 2500
    (folder / "weights").write_bytes(weights)
    store.files.write("model/config.json", b"{}")
    if not store.files.is_local:
        store.files.upload("model/weights", folder / "weights")
        copy = local_copy(store.files, "model", folder / "copy")
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == {"config.json": b"{}", "weights": weights}
        assert store.files.read("model/weights") == weights
    found["made"] = [store.files.create(f"lease{n}", b"mine") for n in (1, 2, 3, 1, 2, 3)]
    store.files.remove("t/00.parquet")
    store.files.remove("model")
    found["names"] = [store.files.names(folder) for folder in ("", "t", "t/rejected", "model")]
    found["there"] = [store.files.exists(name) for name in ("t", "t/00.parquet", "lease1")]
    return found


@pytest.mark.parametrize(
    "faults", [["500", "502", "503", "429", "gateway"], ["reset", "lost", "cut"], ["slow", "hang"]], ids=" ".join
)
def test_a_server_that_fails_every_fifth_time_is_not_noticed(
    server: Server, faults: list[Fault], tmp_path: Path
) -> None:
    wanted = written_and_read(Store(str(tmp_path / "local")), tmp_path)
    with server(*faults) as made:
        assert written_and_read(Store("s3://faulty/prefix"), tmp_path) == wanted
    assert all(made.done[fault] for fault in faults), "each has happened"


def accesses(store: Store, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "write", lambda: store.write(frame(1), "t", None, Stamp(fingerprint="f"))
    yield "write", lambda: store.files.upload("t.parquet", folder / "weights")
    yield "write", lambda: store.files.create("t.parquet", b"")
    yield "read", lambda: store.read("t")
    yield "read", lambda: store.stamp("t")
    yield "read", lambda: store.files.read("t.parquet")
    yield "read", lambda: store.files.exists("t.parquet")
    yield "list", lambda: store.files.names("")
    yield "remove", lambda: store.files.remove("t.parquet")
    yield "copy", lambda: local_copy(store.files, "t.parquet", folder)


def tries(count: int, fault: Fault) -> range:
    """How often a request may come: what a connection that was kept open did not answer, aiohttp asks once more."""
    return range(count, 2 * count + 1 if fault == "reset" else count + 1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("500", "is overloaded or fails"),
        ("429", "is overloaded or fails"),
        ("gateway", "is overloaded or fails"),
        ("reset", "does not answer"),
        ("hang", "does not answer"),
    ],
)
def test_a_server_that_fails_for_good_is_named_after_a_few_tries(
    server: Server, fault: Fault, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(2**20 + 1))
    monkeypatch.setattr(remote, "S3_TRIES", 2)
    monkeypatch.setitem(remote.S3_CLIENT, "read_timeout", 0.2)
    with server(fault, share=1.0) as made:
        for verb, access in accesses(Store("s3://faulty/prefix"), tmp_path):
            made.asked.clear()
            with pytest.raises(TransientError, match=rf"^Cannot {verb} s3://faulty/prefix.*{words}.*[Rr]un again"):
                access()
            assert max(made.asked.values()) in tries(2, fault)


@pytest.mark.long
@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("fault", ["page", "gateway"])
def test_a_gateway_s_page_is_no_answer_of_s3(
    fault: Fault, method: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it answers so: what was stored stays, and what says that it is done has been done."""
    monkeypatch.setattr(remote, "S3_TRIES", 2)
    (tmp_path / "weights").write_bytes(bytes(2**20 + 1))
    store = Store("s3://faulty/prefix")
    with server(fault, share=0.0, methods=[method]) as made:
        for verb, access in accesses(store, tmp_path):
            store.write(frame(1), "t", None, Stamp(fingerprint="f"))
            before = store.files.read("t.parquet")
            right, written = None, False
            if verb in {"read", "list"}:
                right = access()
            made.share, made.done[fault] = 1.0, 0
            try:
                found = access()
            except GateauError as error:
                assert error.code == ("storage.server_failed" if fault == "gateway" else "storage.not_s3"), error
                assert isinstance(error, TransientError) == (fault == "gateway") and "\n" not in str(error)
            else:
                written = verb in {"write", "remove"}
                assert not made.done[fault], "a page counts for nothing"
                assert right is None or str(found) == str(right)
            made.share = 0.0
            if not written:
                assert store.files.read("t.parquet") == before
        written_and_read(store, tmp_path)
        store.files.remove("")


@pytest.mark.parametrize("fault", ["cut", "hang", "500", "reset"])
def test_bodies_that_never_come_are_asked_for_a_few_times(
    server: Server, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a few times a few: the reading of a body is tried again, and so is the request that it begins with."""
    # A stall of this machine would add a time-out to what is counted; only a server that hangs needs a short one.
    monkeypatch.setitem(remote.S3_CLIENT, "read_timeout", 0.2 if fault == "hang" else 30)
    monkeypatch.setattr(remote, "S3_TRIES", 3)
    store = Store("s3://faulty/prefix")
    with server(fault, share=1.0, methods=["GET"]) as made:
        store.write(frame(3), "t", None, Stamp(fingerprint="f"))
        for access in (lambda: store.read("t"), lambda: store.stamp("t"), lambda: store.files.read("t.parquet")):
            made.asked.clear()
            with pytest.raises(TransientError, match=r"run again|Run again"):
                access()
            assert max(made.asked.values()) in tries(3, fault)


def test_what_a_server_keeps_is_removed_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 may answer that a removal went well, and name in the answer's body objects that it kept."""
    store = Store(f"s3://{bucket}")
    store.files.write("model/a", b"1")
    server: Any = store.files.filesystem
    remove, asked = server.rm, []

    def keeps_it_twice(*arguments: Any, **options: Any) -> None:
        asked.append(arguments)
        if len(asked) > 2:
            remove(*arguments, **options)

    monkeypatch.setattr(server, "rm", keeps_it_twice)
    store.files.remove("model")
    assert not store.files.exists("model")
    store.files.write("model/a", b"1")
    monkeypatch.setattr(server, "rm", lambda *arguments, **options: None)
    with pytest.raises(TransientError, match=r"Cannot remove .*the storage server kept it\. Run again later"):
        store.files.remove("model")
