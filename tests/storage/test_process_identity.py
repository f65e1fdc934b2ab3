"""A process is told from every other one, on this machine and elsewhere, whatever becomes of the clock."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gateau_dagster.storage import process_identity
from gateau_dagster.storage.process_identity import ProcessIdentity

HERE = ProcessIdentity.of()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_start_is_counted_from_the_boot(child: subprocess.Popen[bytes]) -> None:
    """So a step of the wall clock, which moves every time that psutil gives, changes nothing."""
    ticks = os.sysconf("SC_CLK_TCK")
    assert HERE.start_ticks / ticks <= ProcessIdentity.of(child.pid).start_ticks / ticks
    assert ProcessIdentity.of(child.pid).start_ticks / ticks <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_step_of_the_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
    monkeypatch.setattr(psutil, "boot_time", lambda: 1.0)
    assert HERE.state() == "alive" and HERE.pid == os.getpid()
    assert ProcessIdentity.of() == ProcessIdentity.of(os.getpid()) == HERE


def test_a_process_that_ended_is_gone(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert identity.state() == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.state() == "gone", "a zombie"
    child.wait()
    assert identity.state() == "gone"
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(child.pid)


def test_another_process_with_the_same_id_is_another() -> None:
    assert replace(HERE, start_ticks=HERE.start_ticks - 1).state() == "gone"


def test_the_name_of_a_command_may_hold_anything(tmp_path: Path) -> None:
    command = tmp_path / "a ) R 1"
    command.symlink_to("/bin/sleep")
    with subprocess.Popen([command, "60"]) as process:
        while b"a )" not in Path(f"/proc/{process.pid}/stat").read_bytes():
            time.sleep(0.01)  # it is still this test's copy
        identity = ProcessIdentity.of(process.pid)
        assert identity.start_ticks >= HERE.start_ticks
        assert identity.state() == "alive"
        process.kill()


@pytest.mark.parametrize(
    ("elsewhere", "state"),
    [
        ({"pid_namespace": "pid:[1]"}, "unknown"),  # another container of this machine
        ({"pid_namespace": "pid:[1]", "host": "other"}, "unknown"),
        ({"boot_id": "another", "host": "other"}, "unknown"),
        ({"boot_id": "another", "machine": "other"}, "unknown"),  # two machines of one name
        ({"boot_id": "another", "machine": ""}, "unknown"),  # two containers of one name, on two machines
        ({"boot_id": "another", "machine": "this"}, "gone"),  # before the machine was restarted
        ({"boot_id": "another", "machine": "this", "host": "other"}, "unknown"),
        ({"host": "renamed", "machine": "this"}, "alive"),  # the same kernel and the same ids, whatever the name
    ],
)
def test_what_cannot_be_seen_from_here_is_unknown(
    elsewhere: dict[str, str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "_machine", lambda: "this")
    assert replace(HERE, **elsewhere).state() == state  # type: ignore[arg-type]


def test_two_containers_of_one_name_on_two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "_machine", lambda: "")
    assert replace(HERE, machine="", boot_id="another").state() == "unknown"


def test_a_container_says_nothing_of_the_machine_in_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "_pid_namespace", lambda: "pid:[4026532222]")
    assert ProcessIdentity.of().machine == ""


def test_a_process_that_the_system_hides_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc mounted with `hidepid=2` shows no process of other users."""
    for name in ("self/stat", "sys/kernel/random/boot_id"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(HERE.boot_id)
    (tmp_path / "self/ns").mkdir()
    (tmp_path / "self/ns/pid").symlink_to(HERE.pid_namespace)
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    assert HERE.state() == "unknown"


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]) -> None:
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    monkeypatch.setattr(process_identity, "_boot_id", lambda: "")
    monkeypatch.setattr(process_identity, "_machine", lambda: "")
    identity = ProcessIdentity.of(child.pid)
    assert (identity.boot_id, identity.pid_namespace) == ("", "")
    assert identity.state() == "alive"
    assert replace(identity, start_ticks=identity.start_ticks - 200).state() == "gone"
    assert replace(identity, host="other").state() == "unknown"
    child.kill()
    child.wait()
    assert identity.state() == "gone"


def test_text() -> None:
    assert ProcessIdentity.from_text(HERE.to_text()) == HERE
    strange = replace(HERE, host="a|b", boot_id="", pid_namespace="", machine="")
    assert ProcessIdentity.from_text(strange.to_text()) == strange
    assert "\n" not in HERE.to_text()


@pytest.mark.parametrize("text", ["", "host|1|2.5", "a|b|c|d|e|f"])
def test_anything_else_is_no_process(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ProcessIdentity.from_text(text)
