"""`gateau dev`: its one line, its log, its failures and its end; and the name of the code location."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from gateau_dagster.assets.runs.launching import ATTRIBUTE, LOCATION, MODULE, location_origin
from tests.cli.command import Command
from tests.kit.project import ROOT, command_environment

SERVES = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        answer = {"workspaceOrError": {"locationEntries": [{"locationOrLoadError": %s}]}}
        self.wfile.write(json.dumps({"data": answer}).encode())
        open("asked", "w").close()

print("dagster is at work")
child = subprocess.Popen(["sleep", "60"])
print(child.pid, file=open("child", "w"))
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is run in place of `dagster`."""
    program = tmp_path / "bin" / "dagster"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    return program


@pytest.fixture
def port() -> Iterator[int]:
    """A free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = free.getsockname()[1]
    yield found


def runs(program: Path, code: str) -> None:
    program.write_text(f"#!{Path(sys.prefix, 'bin', 'python')}\n{code}")


def interrupts_when(file: Path) -> None:
    """Sends this process a Ctrl-C some time after a file is there."""

    def wait() -> None:
        while not file.exists():
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def test_one_line_with_the_address_and_a_clean_end(
    command: Command, project: Path, stand_in: Path, port: int, tmp_path: Path
) -> None:
    runs(stand_in, SERVES % '{"__typename": "RepositoryLocation"}')
    interrupts_when(tmp_path / "asked")
    status, out, err = command("dev", "--port", str(port))
    line = f"gateau: http://127.0.0.1:{port} · {project.name} · logs in .gateau/dev.log · Ctrl-C ends\n"
    assert status == 0 and out.endswith(line) and "Error" not in err
    assert "dagster is at work" in (tmp_path / ".gateau" / "dev.log").read_text()
    assert (tmp_path / ".gateau" / "dev.log").stat().st_mode & 0o777 == 0o600
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_what_does_not_start_says_why(
    command: Command, project: Path, stand_in: Path, port: int, tmp_path: Path
) -> None:
    runs(stand_in, "import sys; print('the cause'); sys.exit(3)")
    status, out, err = command("dev", "--config", str(project), "--port", str(port))
    assert status == 1 and "http:" not in out
    assert "does not start" in err and "the cause" in err and "[dev.ended]" in err
    runs(stand_in, SERVES % '{"__typename": "PythonError", "message": "a broken plug-in"}')
    status, out, err = command("dev", "--config", str(project), "--port", str(port))
    assert status == 1 and "http:" not in out
    assert "cannot load the assets: a broken plug-in" in err and "dagster is at work" in err
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_a_ui_that_ends_by_itself_is_a_failure(command: Command, project: Path, stand_in: Path, port: int) -> None:
    dies = "import threading, os\nthreading.Timer(1.0, os._exit, [0]).start()"
    runs(stand_in, dies + SERVES % '{"__typename": "RepositoryLocation"}')
    status, out, err = command("dev", "--config", str(project), "--port", str(port))
    assert status == 1 and f"http://127.0.0.1:{port}" in out
    assert "has ended by itself" in err


def test_a_taken_port_is_named(command: Command, project: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, out, err = command("dev", "--config", str(project), "--port", str(port))
    assert status == 1 and "http:" not in out
    assert f"port {port} of 127.0.0.1 cannot be used" in err and f"--port {port + 1}" in err and "[dev.port]" in err
    assert not (tmp_path / ".gateau" / "dev.log").exists()


@pytest.mark.long
def test_dagster_itself_is_greeted_for_and_ended(project: Path, port: int) -> None:
    command = [sys.executable, "-m", "gateau_dagster.cli", "dev", "--config", str(project), "--port", str(port)]
    with subprocess.Popen(
        command, cwd=project.parent, env=command_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"gateau: http://127.0.0.1:{port} ".encode())
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3  # dagster dev, its webserver, its daemon
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.wait() == 0
    assert not [each for each in family if each.is_running()]
    log = (project.parent / ".gateau" / "dev.log").read_text()
    assert "SupersessionWarning" in log and "Shutting down Dagster services" in log


def served(workspace: str) -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / workspace).read_text())["load_from"]


def test_one_name_of_the_code_location() -> None:
    target = {"module_name": MODULE, "attribute": ATTRIBUTE, "location_name": LOCATION}
    assert served("workspace.yaml") == served("gateau_dagster/workspace.yaml") == [{"python_module": target}]
    dagster = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dagster"]
    assert (dagster["module_name"], dagster["code_location_name"]) == (MODULE, LOCATION)
    assert location_origin().code_location_origin.location_name == LOCATION
