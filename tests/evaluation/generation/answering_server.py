"""A small server with OpenAI's interface, which answers as a test tells it to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""Status and body: an object is sent as JSON, text as it is."""


def completion(text: str, reason: str = "stop", *, chat: bool = True) -> Reply:
    """What a server that works says."""
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, "finish_reason": reason, "logprobs": None, **said}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    kind = "chat.completion" if chat else "text_completion"
    return 200, {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}


def refusal(status: int, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": "error", "param": None, "code": None}}


@dataclass
class Answering:
    """`requests`: path, body and headers of each, in order; `most`: that were on their way at the same time."""

    address: str = ""
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    most: int = 0
    running: int = 0


@contextmanager
def answering(reply: Callable[[int, str, dict[str, Any]], Reply]) -> Iterator[Answering]:
    """A server on this machine; `reply` gets the request's number, path and body."""
    found, lock = Answering(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(found.requests)
                found.requests.append((self.path, body, {name.lower(): each for name, each in self.headers.items()}))
                found.running += 1
                found.most = max(found.most, found.running)
            status, said = reply(number, self.path, body)
            with lock:
                found.running -= 1
            data = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Retry-After-Ms", "1")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
