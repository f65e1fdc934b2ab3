"""`gateau open`: the page that is there, the UI that answers, and what to do where there is none."""

import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path

import pytest

from gateau_dagster.cli.dev import UI, open_in_browser
from gateau_dagster.config import Config
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import write_document
from tests.kit.error_codes import refused
from tests.kit.local_server import QuietHandler, served
from tests.kit.project import make_project

PORT = 3000


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_project(make_project(tmp_path, samples=2, shards=1))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked for."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: found.append(address) or True)
    return found


@contextmanager
def answering(text: bytes, greeting: bytes = b"") -> Iterator[int]:
    """The port of a server that always says this; with a greeting, one that does not speak HTTP."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.wfile.write(greeting)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield port


def test_the_report_is_opened_where_it_is(config: Config, opened: list[str], tmp_path: Path) -> None:
    with refused("storage.not_computed", match="gateau run"):
        open_in_browser(config, "report", PORT)
    write_document(state_of(config=config).store, "report.html", "<p>page", Stamp(fingerprint="f"))
    open_in_browser(config, "report", PORT)
    write_document(state_of(config=config).store, "explore.html", "<p>viewer", Stamp(fingerprint="f"))
    open_in_browser(config, "explore", PORT)
    assert opened == [(tmp_path / "store" / page).as_uri() for page in ("report.html", "explore.html")]


def test_a_page_on_s3_is_opened_from_a_copy(config: Config, opened: list[str], bucket: str, tmp_path: Path) -> None:
    remote = config.model_copy(update={"storage": config.storage.model_copy(update={"root": f"s3://{bucket}/store"})})
    write_document(state_of(config=remote).store, "report.html", "<p>page", Stamp(fingerprint="f"))
    open_in_browser(remote, "report", PORT)
    (address,) = opened
    assert Path(address.removeprefix("file://")).read_text() == "<p>page"
    assert state_of(config=remote).store.files.sizes()["report.html"] == 7
    write_document(state_of(config=remote).store, "explore.html", "<p>viewer", Stamp(fingerprint="f"))
    state_of(config=remote).store.files.write("explore/index.js", b"content")
    open_in_browser(remote, "explore", PORT)
    viewer = Path(opened[1].removeprefix("file://"))
    assert viewer.read_text() == "<p>viewer"
    assert (viewer.parent / "explore" / "index.js").read_text() == "content", "the page loads it from beside it"


def test_the_ui_is_opened_where_it_answers(config: Config, opened: list[str]) -> None:
    with answering(b'{"dagster_webserver_version": "1"}') as port:
        open_in_browser(config, UI, port)
    assert opened == [f"http://127.0.0.1:{port}"]
    with refused("open.no_ui", match="gateau dev"):
        open_in_browser(config, UI, port)  # it has ended
    with answering(b"something else") as port, refused("open.no_ui", match="--port"):
        open_in_browser(config, UI, port)
    with answering(b"", greeting=b"SSH-2.0-OpenSSH_9.2\r\n") as port, refused("open.no_ui", match="--port"):
        open_in_browser(config, UI, port)


def test_what_there_is_to_open_is_named(config: Config) -> None:
    with refused("open.page", match="report, explore, ui"):
        open_in_browser(config, "nothing", PORT)
