"""A process that is told to end does so by itself, keeps what it has, and says one line, whatever it is doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gateau_dagster.execution.interruption import AT_ONCE, INTERRUPTED
from tests.kit.process_list import command_of
from tests.kit.project import command_environment

HEAD = """
import os, signal, subprocess, sys, threading, time
from gateau_dagster.execution import interruption
from gateau_dagster.execution.interruption import *

# Where the tests run under nohup it is ignored, and a started process inherits that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The test's patience, not the user's.
unwinding = ("_LONGEST_UNWINDING", "_LONGEST_UNWINDING_OF_WORKER")
for name in (*unwinding, "_TELL_CHILDREN", "_LONGEST_SAVING", "_LONGEST_END"):
    setattr(interruption, name, getattr(interruption, name) / 4)

def note(word):
    os.write(1, (word + " ").encode())

def save():
    note("saved")
"""
WAIT = "    note('up'); time.sleep(60)\n"
# As a library does in an import hook, a destructor, a bare `except`.
LOSES_INTERRUPTS = """
    words = ['up']
    while True:
        try:
            for word in words: note(word)
            time.sleep(60)
        except BaseException:
            words = []
"""
WORKING = (
    "with ends_in_order(save), at_end(lambda: note('display')), at_end(lambda: note('recorded')), "
    "at_request(lambda: note('told')):\n"
)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a script in a process group of its own, and waits until it says `up`."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + script],
            env=command_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        assert process.stdout is not None
        said = ""
        while not said.endswith("up "):
            said += (letter := process.stdout.read(1))
            assert letter, process.communicate()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Status, what it noted, its standard error."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out.split(), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_with_nothing_to_save_it_ends_at_once(start: Start, number: signal.Signals) -> None:
    process = start("with ends_at_once():\n" + WAIT)
    process.send_signal(number)
    assert ended(process) == (128 + number, [], f"{INTERRUPTED}\n")


def test_a_hang_up_that_nohup_ignores_stays_ignored(start: Start) -> None:
    process = start("signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith ends_at_once():\n" + WAIT)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, [], f"{INTERRUPTED}\n")


def test_a_background_job_of_a_script_heeds_an_interrupt(start: Start) -> None:
    """A shell without job control starts it with SIGINT ignored; who sends one all the same means it."""
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = start(ignored + "with ends_at_once(), ends_in_order(save):\n" + WAIT)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, ["saved"], f"{INTERRUPTED}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_work_is_given_time_to_end_in_its_own_way(start: Start, number: signal.Signals) -> None:
    process = start(WORKING + "    try:\n    " + WAIT + "    finally:\n        note('unwound')\n")
    process.send_signal(number)
    status, noted, err = ended(process)
    assert (status, err) == (128 + number, f"{INTERRUPTED}\n")
    assert sorted(noted[:2]) == ["told", "unwound"], "both at the same time"
    assert noted[2:] == ["saved", "recorded", "display"]


def test_an_interrupt_that_is_lost_ends_it_all_the_same(start: Start) -> None:
    process = start(WORKING + LOSES_INTERRUPTS)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, ["told", "saved", "recorded", "display"], f"{INTERRUPTED}\n")


def test_a_handler_of_somebody_else_changes_nothing(start: Start) -> None:
    """Dagster puts handlers of its own in the place of all others; outside of a step they only take note."""
    others = "    for number in (2, 15): signal.signal(number, lambda *_: None)\n"
    process = start(WORKING + others + WAIT)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[::2] == (143, f"{INTERRUPTED}\n")


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    process = start(WORKING + LOSES_INTERRUPTS)
    process.send_signal(signal.SIGINT)
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, ["told"], f"{AT_ONCE}\n")


def test_a_signal_to_the_process_and_its_group_is_one(start: Start) -> None:
    """As `timeout` sends it."""
    process = start(WORKING + LOSES_INTERRUPTS)
    process.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    assert ended(process) == (143, ["told", "saved", "recorded", "display"], f"{INTERRUPTED}\n")


CHILD = "    child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"


SPAWNS = "    import multiprocessing\n    multiprocessing.get_context('spawn').Process(target=print).start()\n"


def shown_child(process: subprocess.Popen[str]) -> psutil.Process:
    """The one of CHILD; on a busy machine it takes a moment until it shows its own command."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [each for each in psutil.Process(process.pid).children() if "-S" in command_of(each)]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("there is no child")


@pytest.mark.parametrize("before", ["", SPAWNS])
def test_children_do_not_get_the_interrupt_of_a_terminal_and_do_not_stay_behind(start: Start, before: str) -> None:
    """Dagster's `watch_orphans.py` would answer with a traceback."""
    process = start(WORKING + before + CHILD + LOSES_INTERRUPTS)
    child = shown_child(process)
    time.sleep(0.5)  # one that has just begun would end without a word
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process)[::2] == (130, f"{INTERRUPTED}\n")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_step_that_waits_for_a_child_is_not_waited_for(start: Start) -> None:
    process = start(WORKING + CHILD + "    note('up'); child.wait()\n")
    process.send_signal(signal.SIGINT)
    assert ended(process)[::2] == (130, f"{INTERRUPTED}\n")


DESTRUCTOR = """
    class Loses:
        def __del__(self):
            note('up')
            time.sleep(60)
    Loses()
    time.sleep(60)
"""
# As SQLAlchemy does when it closes a connection.
LOGS = """
    import logging
    try:
        note('up')
        time.sleep(60)
    except BaseException:
        logging.getLogger('library').error('an error', exc_info=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("loses", [DESTRUCTOR, LOGS])
def test_a_library_that_swallows_the_interrupt_says_nothing_of_it(start: Start, loses: str) -> None:
    process = start(WORKING + loses)
    process.send_signal(signal.SIGINT)
    assert ended(process)[::2] == (130, f"{INTERRUPTED}\n")


def test_a_server_that_does_not_answer_is_not_waited_for(start: Start) -> None:
    process = start(WORKING.replace("(save)", "(lambda: time.sleep(60))") + WAIT)
    process.send_signal(signal.SIGINT)
    status, noted, err = ended(process)
    assert status == 130 and "recorded" in noted
    assert "not kept (it took too long)" in err and err.count("\n") == 1


def test_what_could_not_be_saved_is_said(start: Start, tmp_path: Path) -> None:
    script = "def fails():\n    raise OSError('no space left')\n" + WORKING.replace("(save)", "(fails)") + WAIT
    process = start(script)
    process.send_signal(signal.SIGINT)
    status, noted, err = ended(process)
    assert status == 130 and "recorded" in noted
    assert "no space left" in err and err.count("\n") == 1


def test_without_a_reader_it_ends_as_well(start: Start) -> None:
    process = start(WORKING + WAIT)
    assert process.stderr is not None
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_a_worker_saves_and_says_nothing(start: Start) -> None:
    process = start("with worker_ends_in_order(save):\n" + LOSES_INTERRUPTS)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, ["saved"], "")


def test_work_that_nobody_interrupts(start: Start) -> None:
    script = """
before = [signal.getsignal(number) for number in (1, 2, 15)]
with ends_at_once():
    with ends_in_order(save), at_end(save), at_request(save):
        pass
    with ends_in_order(save):
        note('up')
assert before == [signal.getsignal(number) for number in (1, 2, 15)]
assert signal.set_wakeup_fd(-1) == -1 and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert threading.active_count() == 1
"""
    assert ended(start(script)) == (0, [], "")
