"""An HTTP server before another one that spoils some of its answers, always the same ones for a seed."""

import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

Fault = Literal["500", "502", "503", "429", "reset", "lost", "cut", "slow", "hang"]
_UPLOAD = re.compile(r"uploadId=[^&]*")
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
STATUSES = {"500": "InternalError", "502": "BadGateway", "503": "SlowDown", "429": "TooManyRequests"}


class FaultyServer(ThreadingHTTPServer):
    """Forwards requests to `server`; `faults` befall `share` of them.

    reset: the connection breaks before the request is done, lost: afterwards; cut: half of the body comes; slow, hang:
    the answer comes after `slow` seconds, or not within `hang`. Whether a request is spoilt follows from what is asked
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
        """Where it listens."""
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
