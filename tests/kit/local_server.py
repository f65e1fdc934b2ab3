"""A small HTTP or mail server on this machine, for as long as a test needs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Says nothing of what it is asked."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """To nobody."""


@contextmanager
def served(server: TCPServer) -> Iterator[int]:
    """Its port; within the block it answers."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
