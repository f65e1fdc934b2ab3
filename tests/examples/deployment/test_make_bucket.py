"""The look at the S3 server: one that knows conditional writes, and one that ignores their header."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from tests.examples.deployment.compose_file import COMPOSE
from tests.local_server import QuietHandler, served
from tests.project import command_environment


def look(**environment: str) -> subprocess.CompletedProcess[str]:
    """The command of the service `store`."""
    command = [sys.executable, str(COMPOSE / "make_bucket.py"), "gateau"]
    return subprocess.run(
        command, env=command_environment(**environment), capture_output=True, text=True, check=False, timeout=100
    )


@pytest.fixture
def ignoring_server() -> Iterator[str]:
    """It takes everything."""

    class Takes(QuietHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_PUT

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Takes)) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_server_that_knows_conditional_writes(s3_environment: str) -> None:
    """Also where the bucket is there. moto looks and then writes: once in 150 times two writers win."""
    done = [look() for _ in range(3)]
    good = [each.stdout for each in done if each.returncode == 0]
    assert len(good) >= 2, [each.stderr for each in done]
    assert "knows conditional writes" in good[0]


def test_a_server_that_ignores_them_is_refused(s3_environment: str, ignoring_server: str) -> None:
    done = look(AWS_ENDPOINT_URL=ignoring_server)
    assert done.returncode == 1
    assert "9 of 9 writers" in done.stderr and "Take another server" in done.stderr


def test_a_server_that_is_just_starting_is_waited_for(s3_environment: str) -> None:
    """Its port answers a little later."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done: list[subprocess.CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: done.append(look(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")))
    thread.start()
    thread.join(timeout=4)
    assert thread.is_alive(), done
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    running.start()
    try:
        thread.join(timeout=100)
        assert done[0].returncode == 0 or "writers" in done[0].stderr, done[0].stderr
    finally:
        running.stop()
