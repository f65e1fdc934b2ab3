"""`gateau open`: the report, another page of the store, or the Dagster UI, in the browser."""

import webbrowser
from http.client import HTTPException
from pathlib import Path

from gateau_dagster.cli.dev import ui_answer
from gateau_dagster.cli.display import as_line, console
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.explore.publish import FOLDER
from gateau_dagster.pipeline.declarations import EXPLORER_FILE
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import nearest_name
from gateau_dagster.storage.documents import read_document
from gateau_dagster.storage.files import local_copy, replace_text

EXPLORE, UI = "explore", "ui"
_PAGE = ".html"


def open_in_browser(config: Config, what: str, port: int) -> None:
    """Open a page, and print its address, also if there is no browser.

    Raises:
        GateauError: no page has this name, the page does not exist yet, or no UI runs at that port.
    """
    address = _served(port) if what == UI else _page(State(config=config), what)
    shown = webbrowser.open(address)
    console().print(f"{'Opened' if shown else 'Cannot open a browser. Open this address:'} {as_line(address)}")


def pages(state: State) -> dict[str, str]:
    """Return the pages that the pipeline makes, by asset, and `explore`: their files in the store."""
    made = {asset.key: asset.file for asset in state.pipeline.assets if asset.file.endswith(_PAGE)}
    return {**made, EXPLORE: EXPLORER_FILE}


def _page(state: State, what: str) -> str:
    known = pages(state)
    if what not in known:
        raise GateauError("open.page", f"there is no page {what!r}; {nearest_name(what, [*known, UI])}")
    text, name = read_document(state.store, known[what]), known[what]
    if state.store.files.is_local:
        return Path(state.store.files.address(name)).as_uri()
    copy = state.config.work_folder / "pages" / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if what == EXPLORE:
        local_copy(state.store.files, FOLDER, copy.parent)
    replace_text(copy, text)
    return copy.as_uri()


def _served(port: int) -> str:
    """Return the UI's address if a UI answers there."""
    address = f"http://127.0.0.1:{port}"
    try:
        answer = ui_answer(address, "server_info")
    except (OSError, HTTPException) as error:  # no answer, or not HTTP
        raise GateauError(
            "open.no_ui",
            f"no Dagster UI answers at {address}. Start it with {gateau_command('dev')}, or give its --port.",
        ) from error
    if b"dagster_webserver_version" not in answer:
        raise GateauError("open.no_ui", f"the server at {address} is not Dagster. Give the UI's --port.")
    return address
