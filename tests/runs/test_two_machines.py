"""Two machines with a PostgreSQL and a store in common: one works at a time, and goes on where the other one died."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from assets.runs.instance import open_instance
from assets.steps.dead_runs import end_dead_runs
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.postgres_server import PostgresServer
from tests.project import change_config, command_environment, copied
from tests.runs.machine import EXPIRES_SECONDS, WITHOUT, can_be_another_machine, gateau_on
from tests.runs.stores import assert_same_stamps, assert_same_tables, assert_same_weights
from tests.runs.test_kill import samples_kept

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not can_be_another_machine(), reason=WITHOUT),
]
VARIABLE = "TEST_DAGSTER_POSTGRES"


class Machines:
    """Two checkouts of a project, on machines that do not see the other one; store and database are common."""

    def __init__(self, whole_run: Path, folder: Path, url: str) -> None:
        self.store, self.url, self.stays = folder / "store", url, folder / "stays"
        self.files = {name: copied(whole_run, folder / name) for name in ("anna", "berta")}
        for file in self.files.values():
            change_config(file, storage={"root": str(self.store)}, execution={"postgres": VARIABLE})

    def start(self, name: str, *, stays: bool = False) -> subprocess.Popen[str]:
        """`gateau run` on a machine; `stays`: it makes no way after a while, and lives."""
        file = self.files[name]
        (other,) = {*self.files} - {name}
        without = self.files[other].parent
        stay_file = self.stays if stays else None
        command = gateau_on(name, "run", "--config", str(file), without=without, stay_file=stay_file)
        pipe, environment = subprocess.PIPE, command_environment(**{VARIABLE: self.url})
        return subprocess.Popen(
            command, cwd=file.parent, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, name: str) -> tuple[int, str, str]:
        """Its exit status, and what it said."""
        process = self.start(name)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    @contextmanager
    def records(self) -> Iterator[DagsterInstance]:
        """As a third machine sees them."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DAGSTER_HOME", "")
            patch.setenv(VARIABLE, self.url)
            with open_instance(load_project(self.files["berta"])) as instance:
                yield instance


@pytest.fixture
def machines(whole_run: Path, tmp_path: Path, postgres: PostgresServer) -> Machines:
    return Machines(whole_run, tmp_path, postgres.new_database(f"machines_{uuid.uuid4().hex}"))


def statuses(instance: DagsterInstance) -> list[DagsterRunStatus]:
    return [run.status for run in reversed(instance.get_runs())]


@contextmanager
def kept_namespace(machine: subprocess.Popen[str]) -> Iterator[None]:
    """Nothing else gets the number of its processes' namespace, by which they would be seen to be gone."""
    inside = psutil.Process(machine.pid).children()[0]
    with Path(f"/proc/{inside.pid}/ns/pid").open():
        yield


def test_one_works_and_the_other_takes_over_when_it_is_gone(machines: Machines, whole_run: Path) -> None:
    """In the middle of scoring; the runs of both are in one database."""
    first, kept = machines.start("anna", stays=True), ExitStack()
    try:
        deadline = time.monotonic() + 120
        while not machines.stays.exists():
            assert first.poll() is None and time.monotonic() < deadline, first.communicate()
            time.sleep(0.1)
        time.sleep(2 * EXPIRES_SECONDS)  # it is alive all the same
        code, out, err = machines.run("berta")
        assert (code, out) == (1, "") and err.count("\n") == 1
        assert "in use by process" in err and "on anna, with" in err and str(machines.files["anna"]) in err
        with machines.records() as instance:
            assert end_dead_runs(instance) == [] and statuses(instance) == [DagsterRunStatus.STARTED]
        assert first.poll() is None
        kept.enter_context(kept_namespace(first))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with kept:
        time.sleep(EXPIRES_SECONDS)
        code, out, err = machines.run("berta")
    assert code == 0, err
    assert "anna" in out and "seems to have run out" in out
    assert "Ended 1 earlier run(s) whose process was gone." in out
    with machines.records() as instance:
        assert statuses(instance) == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]
        assert sum(samples_kept(instance, instance.get_runs()[0].run_id)) >= 5, "its rows were used"
        assert instance.event_log_storage.get_concurrency_info("gpu").active_slot_count == 0
    assert_as_undisturbed(machines, whole_run)


def test_of_two_that_begin_at_once_with_an_empty_database_one_works(machines: Machines, whole_run: Path) -> None:
    """Both would make Dagster's tables and the store."""
    both = [machines.start(name) for name in machines.files]
    told = [process.communicate(timeout=300) for process in both]
    ended = [process.returncode for process in both]
    assert sorted(ended) == [0, 1], told
    (done, _), (silent, refused) = sorted(told, key=lambda each: not each[0])
    assert "Done in" in done and silent == "" and "in use by process" in refused
    assert_as_undisturbed(machines, whole_run)


def assert_as_undisturbed(machines: Machines, whole_run: Path) -> None:
    one, other = (State(config=load_project(file)) for file in (machines.files["berta"], whole_run))
    assert not one.plan()
    assert_same_tables(one.store, other.store)
    found, wanted = one.recorded(), other.recorded()
    for stamps in (found, wanted):
        stamps.pop(("report", None))  # names the folder of the project
    assert_same_stamps(found, wanted)
    assert_same_weights(machines.store / "checkpoint", whole_run.parent / "store" / "checkpoint")
