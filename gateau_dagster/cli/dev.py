"""`gateau dev`: the Dagster UI on a configuration, as child processes whose log is a file. `gateau open`: its pages."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from contextlib import suppress
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.cli.display import as_line, configuration_in_words, console
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.execution.interruption import end_tree, noted_signals
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import nearest_name
from gateau_dagster.storage.documents import read_document
from gateau_dagster.storage.files import local_copy, replace_text

PORT = 3000
UI = "ui"

# Time for one evaluation of the schedule or the sensor: the first one reads the whole input, or a model's weights.
_EVALUATION_SECONDS = "300"
_PATIENCE = 20.0  # seconds that Dagster's processes get to end after a signal
_BETWEEN_LOOKS = 0.3  # seconds
_REPLY_SECONDS = 3.0
_TAIL = 15  # lines of the log in a message
_LOADED = (
    "{workspaceOrError {... on Workspace {locationEntries "
    "{locationOrLoadError {__typename ... on PythonError {message}}}}}}"
)


def start_ui(config: Config, host: str, port: int | None, options: list[str]) -> None:
    """Serve the Dagster UI, on the Dagster home that `gateau run` uses, until a signal ends it.

    GATEAU_CONFIG names the configuration. A workspace file gives the code location a fixed name, which would otherwise
    depend on the module.

    Args:
        config: the configuration.
        host: address to listen at.
        port: its port; None: the usual one, or a free one if that is taken.
        options: other options of `dagster dev`.

    Raises:
        GateauError: the port is taken, the UI does not start or ends by itself, or the assets cannot be loaded.
    """
    with open_instance(config):  # it reports errors of its home, with the place
        pass
    port = _usable_port(host, port)
    log = config.work_folder / "dev.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # a server that still runs keeps its own
    new = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    workspace = str(files("gateau_dagster").joinpath("workspace.yaml"))
    address = ["--host", host, "--port", str(port)]
    command = [str(Path(sys.executable).with_name("dagster")), "dev", "--workspace", workspace, *address, *options]
    for kind in ("SENSOR", "SCHEDULE"):
        os.environ.setdefault(f"DAGSTER_{kind}_GRPC_TIMEOUT_SECONDS", _EVALUATION_SECONDS)
    with noted_signals() as signals, os.fdopen(new, "wb") as output:
        # In a separate session: a terminal's Ctrl-C reaches this process only, which ends the others once.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _serve(process, host, port, log, signals)
        finally:
            _end(process)


def ui_answer(address: str, question: str) -> bytes:
    """Return a server's answer to a GET request.

    Raises:
        OSError, HTTPException: there is no answer, or not in HTTP.
    """
    with urllib.request.urlopen(f"{address}/{question}", timeout=_REPLY_SECONDS) as reply:
        return reply.read()


def _usable_port(host: str, port: int | None) -> int:
    """Return the port after a look whether it is free.

    Raises:
        GateauError: the port cannot be used.
    """
    try:
        return _bound(host, PORT if port is None else port)
    except OSError as error:
        if port is None:
            return _bound(host, 0)
        raise GateauError(
            "dev.port",
            f"port {port} of {host} cannot be used: {error.strerror}. End the server that uses it, or choose another "
            f"port with --port: {gateau_command('dev --port ' + str(port + 1))}",
        ) from error


def _bound(host: str, port: int) -> int:
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        found.bind(place)
        return found.getsockname()[1]


def _serve(process: subprocess.Popen[bytes], host: str, port: int, log: Path, signals: list[int]) -> None:
    """Print one line as soon as the UI shows the assets, and return after a signal.

    Raises:
        GateauError: the process ends by itself, or the code location cannot be loaded.
    """
    out = console()
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    place = f"{configuration_in_words()} · logs in {os.path.relpath(log)}"
    greeted = False
    with out.status("Starting the Dagster UI …") as status:
        while not signals:
            if process.poll() is not None:
                raise _failed(f"the Dagster UI {'has ended by itself' if greeted else 'does not start'}", log)
            if not greeted and _loads(address, log):
                greeted = True
                status.stop()
                out.print(f"gateau: [bold]{address}[/bold] · {as_line(place)} · Ctrl-C ends")
                out.file.flush()
            time.sleep(_BETWEEN_LOOKS)


def _loads(address: str, log: Path) -> bool:
    """Return whether the UI answers, and shows the assets.

    Raises:
        GateauError: the UI answers, but cannot load the code location.
    """
    try:
        data = json.loads(ui_answer(address, f"graphql?query={quote(_LOADED)}"))["data"]
    except (OSError, HTTPException):
        return False
    for entry in data["workspaceOrError"]["locationEntries"]:
        if entry["locationOrLoadError"]:
            if message := entry["locationOrLoadError"].get("message"):
                raise _failed(f"Dagster cannot load the assets: {message.strip()}", log)
            return True
    return False


def _failed(what: str, log: Path) -> GateauError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
    tail = "\n".join(lines) or "(empty)"
    return GateauError("dev.ended", f"{what}. Correct what its log says, and start it again. The end of {log}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Dagster's processes; kill them after some time, or at a second Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt), console().status("Ending the Dagster UI …"):
        end_tree(process, patience=_PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def open_in_browser(config: Config, what: str, port: int) -> None:
    """Open a page, and print its address, also if there is no browser.

    Raises:
        GateauError: no page has this name, the page does not exist yet, or no UI runs at that port.
    """
    address = _served(port) if what == UI else _page(state_of(config=config), what)
    shown = webbrowser.open(address)
    console().print(f"{'Opened' if shown else 'Cannot open a browser. Open this address:'} {as_line(address)}")


def _page(state: State, what: str) -> str:
    made = {asset.key: asset for asset in state.pipeline.assets if asset.file.endswith(".html")}
    beside = {name.removesuffix(".html"): name for asset in made.values() for name in asset.further_files}
    known = {**{key: asset.file for key, asset in made.items()}, **beside}
    if what not in known:
        raise GateauError("open.page", f"there is no page {what!r}; {nearest_name(what, [*known, UI])}")
    text, name = read_document(state.store, known[what]), known[what]
    if state.store.files.is_local:
        return Path(state.store.files.address(name)).as_uri()
    copy = state.config.work_folder / "pages" / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    if what in beside:  # what it loads is in a folder of its name
        local_copy(state.store.files, what, copy.parent)
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
