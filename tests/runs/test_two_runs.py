"""Two runs on one store: exactly one works, and the other says who does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.lease import store_lease
from gateau_dagster.storage import lease
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.cli.command import Command
from tests.cli.conftest import command
from tests.kit.project import command_environment, make_project
from tests.runs.machine import NAMESPACES, WITHOUT, can_be_another_machine

__all__ = ["command"]  # a fixture

# Holds the store of a configuration until it is killed, on what looks like another machine.
HOLDER = """
import socket, sys, time
from pathlib import Path
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.resources.lease import store_lease
socket.sethostname("another-machine")
with store_lease(load_project(Path(sys.argv[1])), sys.argv[1], exclusive=True, say=print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("two"), samples=8, shards=2)


@pytest.mark.long
def test_of_three_that_begin_at_once_in_a_new_folder_one_runs(file: Path) -> None:
    """Each would make Dagster's records, the work folder's id and the store."""
    command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--until", "raw_long_sft", "--config", str(file)]
    pipe = subprocess.PIPE
    three = [
        subprocess.Popen(command, cwd=file.parent, env=command_environment(), stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    told = [process.communicate(timeout=120) for process in three]
    ended = [process.returncode for process in three]
    assert sorted(ended) in ([0, 1, 1], [0, 0, 1], [0, 0, 0]), told  # one that comes late finds all done
    for code, (out, err) in zip(ended, told, strict=True):
        assert (
            ("Done in" in out or "Everything is up to date" in out) if code == 0 else out == "" and "in use by" in err
        )
        assert err.count("\n") == code, err
    assert sum("Done in" in out for out, _ in told) == 1


@contextmanager
def held(file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*NAMESPACES, sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, env=command_environment(), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.send_signal(signal.SIGKILL)


@pytest.mark.skipif(not can_be_another_machine(), reason=WITHOUT)
def test_of_two_machines_one_works_and_the_other_takes_over_when_its_lease_has_run_out(
    file: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine's processes cannot be seen, so that only its signs of life count."""
    with held(file):
        status, out, err = command("run", "--config", str(file))
        assert (status, out, err.count("\n")) == (1, "", 1), "nothing else is said first"
        assert f"in use by process 1 on another-machine, with {file}, since 20" in err.replace("process 2", "process 1")
        assert "last renewed its lease" in err and "its lease expires 60 s after that" in err
        assert "perplexity/long" in command("plan", "--config", str(file))[1], "reading needs none"
    monkeypatch.setattr(lease, "EXPIRES_SECONDS", 0.5)
    monkeypatch.setattr(lease, "WATCH_SECONDS", 1.0)
    time.sleep(1)
    config, said = load_project(file), list[str]()
    with store_lease(config, str(file), exclusive=True, say=said.append):
        assert len(said) == 1 and "another-machine" in said[0] and "seems to have expired" in said[0]


def test_a_killed_run_of_this_machine_is_succeeded_at_once(file: Path) -> None:
    """Its process is seen to be gone."""
    script = HOLDER.replace('socket.sethostname("another-machine")', "")
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(command, env=command_environment(), stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        config = load_project(file)
        with (
            pytest.raises(GateauError, match=f"process {other.pid} on {ProcessIdentity.of().host}"),
            store_lease(config, str(file), exclusive=True, say=print),
        ):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        with store_lease(config, str(file), exclusive=True, say=pytest.fail):
            pass
