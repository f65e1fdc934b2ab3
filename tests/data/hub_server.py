"""A small server on this machine with the part of the Hugging Face hub's interface that reading data sets uses."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

Datasets = dict[str, dict[str, bytes]]
Given = tuple[int, bytes, dict[str, str]]
"""An answer: status, body and headers."""


def _entries(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The hub's listing: files and folders below `folder`, only direct children unless recursive."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, body in files.items():
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        for depth in range(1, len(parts)):
            name = prefix + "/".join(parts[:depth])
            if recursive or depth == 1:
                entries[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
        if recursive or len(parts) == 1:
            entries[path] = {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
    return list(entries.values())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    datasets: Datasets
    given: Mapping[str, Given]

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._serve(body)

    def do_GET(self) -> None:
        self._serve(b"")

    def do_HEAD(self) -> None:
        self._serve(b"")

    def _serve(self, body: bytes) -> None:
        url = urlparse(self.path)
        path = unquote(url.path)
        wrong = next((each for what, each in self.given.items() if re.search(what, f"{self.command} {path}")), None)
        if wrong is not None:
            self._send(*wrong)
            return
        match = re.match(
            r"^(?:/api)?/datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info|resolve)/([^/]+)(?:/(.*))?)?$", path
        )
        name, action, revision, rest = match.groups() if match else ("", None, None, None)
        if name not in self.datasets:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._dataset(self.datasets[name], action, rest or "", parse_qs(url.query), body, name)

    def _dataset(
        self, files: dict[str, bytes], action: str | None, rest: str, query: Any, body: bytes, name: str
    ) -> None:
        if action == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            entries = _entries(files, rest, recursive)
            self._json(entries) if entries else self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        elif action == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            self._json([entry for entry in _entries(files, "", True) if entry["path"] in asked])
        elif action == "resolve":
            self._content(files, rest)
        else:
            self._json({"id": name, "sha": "1" * 40, "siblings": [], "tags": []})

    def _content(self, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content, found = files[path], re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if found is None:
            self._send(200, content, {})
            return
        start, end = int(found.group(1)), min(int(found.group(2)) + 1, len(content))
        self._send(206, content[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def hub_server(datasets: Datasets, given: Mapping[str, Given]) -> Iterator[str]:
    """Serve `datasets` ({'owner/name': {path: content}}).

    given: answers by a pattern of method and path; the caller may change them.
    """
    handler = type("Handler", (_Handler,), {"datasets": datasets, "given": given})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
