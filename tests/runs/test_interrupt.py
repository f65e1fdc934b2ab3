"""Ctrl-C or SIGTERM at any moment: the run ends itself with one line, is recorded as canceled, and keeps its rows."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gateau_dagster.execution.interruption import INTERRUPTED
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.process_list import descendants
from tests.kit.project import begun, change_config, copied, gateau
from tests.runs.stores import assert_same_scores

pytestmark = pytest.mark.slow
MOMENTS = 30
CLEAN_UP_SECONDS = 60


@pytest.fixture
def copy(whole_run: Path, tmp_path: Path) -> Path:
    """The same project before its first run."""
    return copied(whole_run, tmp_path / "project")


def assert_ended(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """In its own way, and with all that it started."""
    group = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    _, err = process.communicate(timeout=CLEAN_UP_SECONDS)
    assert (process.returncode, err) == (128 + number, f"{INTERRUPTED}\n")
    _, left = psutil.wait_procs([psutil.Process(pid) for pid in group if psutil.pid_exists(pid)], CLEAN_UP_SECONDS)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def statuses(file: Path) -> list[DagsterRunStatus]:
    """Return the states of all runs, oldest first; a run that ended holds nothing."""
    folder = file.parent / ".gateau" / "dagster"
    if not folder.is_dir():  # interrupted before the first run began
        return []
    with DagsterInstance.from_config(str(folder)) as instance:
        assert instance.event_log_storage.get_concurrency_info("gpu").active_slot_count == 0
        return [run.status for run in reversed(instance.get_runs())]


def rows_saved(file: Path) -> int:
    return sum(state_of(config=load_project(file)).store.stamp(f"_partial/{name}").rows or 0 for name in partial(file))  # type: ignore[union-attr]


def partial(file: Path) -> Iterator[str]:
    folder = file.parent / "store" / "_partial"
    return (str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.parquet"))


def test_ctrl_c_while_scoring(copy: Path) -> None:
    """To the whole group, as a terminal sends it, after ten rows, of which none was saved yet."""
    program = ("tests.runs.killed_run", "interrupt", "10")
    process = begun("run", "--config", str(copy), folder=copy.parent, program=program)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (130, f"{INTERRUPTED}\n")
    assert statuses(copy) == [DagsterRunStatus.CANCELED]
    assert rows_saved(copy) >= 10


@pytest.mark.long
def test_sigterm_while_training(whole_run: Path, tmp_path: Path) -> None:
    """No process of the training is left behind."""
    file = tmp_path / "project" / whole_run.name
    shutil.copytree(whole_run.parent, file.parent)
    change_config(file, training={"max_steps": 5000, "epochs": 1000.0})
    before = statuses(file)
    process = begun("run", "--config", str(file), folder=file.parent)
    deadline = time.monotonic() + 240
    while not (training := trainings(process)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert_ended(process, signal.SIGTERM)
    assert not any(map(psutil.pid_exists, training))
    assert statuses(file) == [*before, DagsterRunStatus.CANCELED]


def trainings(process: subprocess.Popen[str]) -> list[int]:
    """Processes of it that train."""
    return [child.pid for child in descendants(process.pid, "gateau_dagster.resources.training_process")]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("executor", ["in_process", "multiprocess", "workers"])
def test_at_random_moments(copy: Path, whole_run: Path, executor: str) -> None:
    """Imports, planning, loading of models, scoring, and all between; then the result of an undisturbed run."""
    change_config(
        copy, **({"scoring": {"workers": 2}} if executor == "workers" else {"execution": {"executor": executor}})
    )
    chance, until = random.Random(executor), ("--until", "combined_scores")
    for _ in range(MOMENTS):
        number = chance.choice([signal.SIGINT, signal.SIGTERM])
        process = begun("run", "--config", str(copy), *until, folder=copy.parent)
        time.sleep(chance.uniform(0.1, 14.0))
        chance.choice([os.kill, os.killpg])(process.pid, number)
        out, err = process.communicate(timeout=CLEAN_UP_SECONDS)
        said = [line for line in err.splitlines() if "STEP_WORKER_STARTED" not in line]  # the other executor's own
        if process.returncode == 128 + number:
            assert said == [INTERRUPTED]
            assert statuses(copy)[-1:] in ([], [DagsterRunStatus.CANCELED], [DagsterRunStatus.SUCCESS])
        else:
            assert "Done" in out or "Everything is up to date" in out, (process.returncode, out, err)
            assert said == []
            shutil.rmtree(copy.parent / "store")
    gateau("run", "--config", str(copy), *until, folder=copy.parent)
    assert_same_scores(state_of(config=load_project(copy)), state_of(config=load_project(whole_run)))
    assert DagsterRunStatus.FAILURE not in statuses(copy)
