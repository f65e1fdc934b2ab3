"""Serve data sets as the Hugging Face hub does, with repositories, commits and LFS objects."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

import huggingface_hub.constants
import pytest

from tests.kit.local_server import QuietHandler, served

TOKEN, READER = "hf_writerwriterwriterwriter", "hf_readerreaderreaderreader"


Fault = int | str | tuple[int, bytes] | Callable[[], object]


@dataclass
class Repository:
    """A data set: its commits, the newest last, each a dict of path to content."""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b"*.parquet filter=lfs"}])

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1]

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((len(self.commits), sorted(self.files.items()))).encode()).hexdigest()


class Hub(ThreadingHTTPServer):
    """Answer the calls of `HfApi.create_repo` and `create_commit` as the hub does.

    Attributes:
        repositories: by name. renamed: new names by the old ones.
        objects: the content of uploaded LFS files by SHA-256.
        received: method and path of each request. puts: the objects that were sent whole, in order.
        waits: for a test to collect what its client would have slept.
        faults: what to do instead with the next requests whose method and path begin so: answer a status, or a status
            and a body; "cut"; or what cuts the answer after the work is done: "lost", or something to call before.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        self.received: list[str] = []
        self.puts: list[str] = []
        self.waits: list[float] = []
        self.faults: dict[str, list[Fault]] = {}
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: some tests kill the client."""


Answer = tuple[Any, int, dict[str, str]]


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return value, status, headers or {}


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: Hub  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        hub, path = self.server, unquote(urlparse(self.path).path)
        body = self._body()
        what = f"{self.command} {path}"
        with hub.lock:
            hub.received.append(what)
            fault = next((todo.pop(0) for start, todo in hub.faults.items() if todo and what.startswith(start)), None)
            if fault == "cut":
                self._cut()
                return
            if isinstance(fault, int):
                self._json(
                    {"error": f"as the test asked, not {TOKEN}"}, fault, {"Retry-After": "3600"} if fault == 429 else {}
                )
                return
            if isinstance(fault, tuple):
                status, given = fault
                kind = "text/html" if given.startswith(b"<!") else "application/xml"
                self._json(given, status, {"Content-Type": kind} if given.startswith(b"<") else {})
                return
            if callable(fault):
                fault()
            found = self._answer(path, body)
            if fault is None:
                self._json(*found)
            else:
                self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, path: str, body: bytes) -> Answer:
        hub, token = self.server, (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.command == "PUT":  # an address that the hub has signed
            name = path.rpartition("/")[2]
            if hashlib.sha256(body).hexdigest() != name:  # as from a client that was killed
                return answer({"error": "broken"}, 400)
            hub.puts.append(name)
            hub.objects[name] = body
            return answer({})
        if token not in {TOKEN, READER}:
            return answer({"error": "Invalid credentials"}, 401, {"X-Error-Message": "Invalid credentials"})
        if path == "/api/validate-yaml":
            return answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body), token)
        match = re.match(r"/(?:api/)?datasets/([^/]+/[^/]+?)(?:\.git)?(?:/(.*))?$", path)
        if match and match[1] in hub.renamed:
            place = self.path.replace(match[1], hub.renamed[match[1]])
            return answer({}, 307, {"Location": f"{hub.address}{place}"})
        found = hub.repositories.get(match[1]) if match else None
        if match is None or found is None:
            return answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        action = match[2] or ""
        if self.command == "GET" and action.startswith("resolve/"):
            return answer(found.files[action.split("/", 2)[2]])
        if self.command == "GET":
            siblings = [{"rfilename": name} for name in sorted(found.files)]
            return answer(
                {"id": match[1], "sha": found.sha, "private": found.private, "siblings": siblings, "tags": []}
            )
        if token != TOKEN:
            return answer({"error": "You have read access but not the required permissions"}, 403)
        if action.startswith("preupload/"):
            return answer({"files": [self._mode(each, found) for each in json.loads(body)["files"]]})
        if action == "info/lfs/objects/batch":
            return answer(
                {"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]}
            )
        assert action == "commit/main", path
        return self._commit(match[1], found, [json.loads(line) for line in body.splitlines()])

    def _create(self, asked: dict[str, Any], token: str) -> Answer:
        name, hub = f"{asked['organization']}/{asked['name']}", self.server
        if token != TOKEN:
            return answer({"error": "no rights"}, 403)
        made = {"url": f"{hub.address}/datasets/{name}"}
        if name in hub.repositories:
            return answer({"error": "You already created this dataset repo", **made}, 409)
        hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        return answer(made)

    def _mode(self, asked: dict[str, Any], found: Repository) -> dict[str, Any]:
        path, content = asked["path"], found.files.get(asked["path"])
        lfs, oid = path.endswith((".parquet", ".png")), None
        if content is not None:
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            oid = hashlib.sha256(content).hexdigest() if lfs else git
        return {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": oid}

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        here = (
            {} if asked["oid"] in self.server.objects else {"actions": {"upload": {"href": self._place(asked["oid"])}}}
        )
        return {"oid": asked["oid"], "size": asked["size"], **here}

    def _place(self, oid: str) -> str:
        """Return a signed address, which a client takes for another server's."""
        return f"{self.server.address.replace('127.0.0.1', 'localhost')}/lfs/{oid}"

    def _commit(self, name: str, found: Repository, lines: list[dict[str, Any]]) -> Answer:
        head, *changes = ((line["key"], line["value"]) for line in lines)
        if head[1].get("parentCommit", found.sha) != found.sha:
            return answer({"error": "A commit has happened since. Please refresh and try again."}, 412)
        files = dict(found.files)
        for key, value in changes:
            if key == "lfsFile" and value["oid"] not in self.server.objects:
                return answer(
                    {"error": f"Your push was rejected because the LFS object of {value['path']} is missing"}, 400
                )
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            else:
                assert key == "deletedFile", key
                del files[value["path"]]
        found.commits.append(files)
        return answer(
            {"commitUrl": f"{self.server.address}/datasets/{name}/commit/{found.sha}", "commitOid": found.sha}
        )

    def _json(self, value: Any, status: int, headers: dict[str, str]) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for key, text in {
            "Content-Type": "application/json",
            **(headers or {}),
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Yield a hub without data sets, which this process takes for the real one. Replace sleep by nothing."""
    server = Hub()
    with served(server):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # huggingface_hub reads these from the environment only when it is imported.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("time.sleep", server.waits.append)
        yield server
