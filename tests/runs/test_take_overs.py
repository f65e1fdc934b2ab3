"""A run that is stopped while another one takes over its store, and then goes on: the tables of an undisturbed run.

Two checkouts of a project on what looks like two machines. One is stopped with all its processes, at a random moment or
in the middle of a commit, until the other has taken over, or has ended. `make test-kills` does forty; see `test_fence`
for the interleavings in one process.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import FOLDER
from tests.kit.project import change_config, command_environment, copied, gateau, make_project
from tests.runs.machine import COMMIT, WITHOUT, can_be_another_machine, gateau_on
from tests.runs.stores import assert_same_rows
from tests.runs.test_kill import assert_no_rows_wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_be_another_machine(), reason=WITHOUT),
]
LAST = "combined_scores"
LONGEST_RUN = 300  # seconds, on a busy machine
TAKE_OVERS = 20
# Tables of one pass, and what is made from them. A row of one may be saved and that of the other be lost: the lost one
# is computed in a pass of its own, which rounds otherwise.
ROUNDED = {"perplexity/long", "cam", LAST}
COMMITS = {1: 35, 2: 10}
"""Commits of each process of a run, at least, by `scoring.workers`."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample a pass, so that figures hardly depend on which samples are left to score."""
    file = make_project(tmp_path_factory.mktemp("undisturbed"), samples=24, shards=4, scoring={"batch_tokens": 1})
    gateau("run", "--config", str(file), "--until", LAST, folder=file.parent)
    return file


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Empty; its address."""
    return str(tmp_path / "store") if request.param == "disk" else f"s3://{request.getfixturevalue('bucket')}/store"


def start(file: Path, other: Path, name: str, **environment: str) -> subprocess.Popen[str]:
    command = gateau_on(name, "run", "--config", str(file), "--until", LAST, without=other.parent)
    pipe, known = subprocess.PIPE, command_environment(**environment)
    return subprocess.Popen(
        command, cwd=file.parent, env=known, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def signal_all(process: subprocess.Popen[str], number: int) -> None:
    """To the processes of a machine, but for the one that waits for them here."""
    for each in psutil.Process(process.pid).children(recursive=True):
        each.send_signal(number)


def take_over(store: str, whole: Path, folder: Path, seed: int) -> str:
    """Return what the stopped run was at: a commit, any moment, or "done" where it did not lose the store."""
    rng = random.Random(seed)
    workers = rng.choice([1, 2])
    first, second = (copied(whole, folder / name) for name in ("anna", "berta"))
    for file in (first, second):
        change_config(file, storage={"root": store}, scoring={"workers": workers})
    reached, commit = folder / "reached", seed % 4 != 0
    told = {COMMIT: f"{rng.randint(1, COMMITS[workers])} {reached}"} if commit else {}
    anna = start(first, second, "anna", **told)
    berta = None
    try:
        while not commit and not Files(store).names(FOLDER) and anna.poll() is None:
            time.sleep(0.1)
        deadline = time.monotonic() + (LONGEST_RUN if commit else rng.uniform(0.0, 6.0))
        while not reached.exists() and anna.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        done_before = anna.poll() is not None
        if not done_before:
            signal_all(anna, signal.SIGSTOP)
        berta = start(second, first, "berta")
        if seed % 2:
            berta.wait(LONGEST_RUN) if seed % 4 == 1 else time.sleep(rng.uniform(7.0, 14.0))
        else:
            berta.wait(LONGEST_RUN)
        if not done_before:
            signal_all(anna, signal.SIGCONT)
        out, err = berta.communicate(timeout=LONGEST_RUN)
        anna_out, anna_err = anna.communicate(timeout=LONGEST_RUN)
    finally:
        for process in filter(None, (anna, berta)):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert berta is not None
    lost = anna.returncode != 0
    if berta.returncode and not lost:  # it was awake again before its lease had run out
        assert "in use by process" in err
    else:
        assert berta.returncode == 0, (out, err)
    if lost:
        assert anna_err.count("\n") == 1 and "has taken over" in anna_err, (anna_out, anna_err)
        assert "has taken over" not in anna_out
    else:
        assert "Done in" in anna_out or "up to date" in anna_out, anna_out
    assert_as_undisturbed(second, whole)
    return "done" if not lost else "commit" if reached.exists() else "moment"


def assert_as_undisturbed(file: Path, whole: Path) -> None:
    """To the last bit but for ROUNDED, and without a trace of what was not committed."""
    one, other = state_of(config=load_project(file)), state_of(config=load_project(whole))
    assert not one.plan_until(LAST)
    compared = 0
    for asset in one.pipeline.ancestors([LAST]):
        for part in one.pipeline.partitions(asset):
            found, wanted = one.store.read(asset, part), other.store.read(asset, part)
            if asset in ROUNDED:
                assert_same_rows(found, wanted)
            else:
                assert_frame_equal(found, wanted, check_exact=True)
            compared += 1
    assert compared > 12
    names = [*one.store.files.sizes()]
    assert not [name for name in names if name.endswith(".tmp") or name.startswith("_commits")]
    assert_no_rows_wait(one)


@pytest.mark.long
@pytest.mark.parametrize("store", ["disk", "s3"], indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_a_run_that_wakes_up_changes_nothing(store: str, undisturbed: Path, tmp_path: Path, seed: int) -> None:
    take_over(store, undisturbed, tmp_path, seed)


@pytest.mark.kills
@pytest.mark.parametrize("seed", range(TAKE_OVERS))
def test_twenty_take_overs(store: str, undisturbed: Path, tmp_path: Path, seed: int) -> None:
    sys.stdout.write(f"stopped at: {take_over(store, undisturbed, tmp_path, seed)}\n")
