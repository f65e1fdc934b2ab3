"""Two `gateau run` on one store, on one machine and on two, on a disk and on S3: one works at a time, the other says
who does, and goes on where that one died.

The machine is one: a project whose runs share Dagster's home. The machines are two: checkouts of it that do not see one
another, with a PostgreSQL in common.
"""

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.steps.dead_runs import end_dead_runs
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import change_config, command_environment, copied
from tests.runs.machine import EXPIRES_SECONDS, WITHOUT, can_be_another_machine, gateau_here, gateau_on
from tests.runs.stores import assert_same_rows, assert_same_stamps
from tests.runs.test_kill import samples_kept

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
VARIABLE = "TEST_DAGSTER_POSTGRES"
LAST = "combined_scores"
NAMES: tuple[str, str] = ("anna", "berta")
LONGEST_RUN = 800  # seconds, on a busy machine
SEPARATED = pytest.mark.skipif(not can_be_another_machine(), reason=WITHOUT)


class Contest:
    """Two who run a project on one store. url: of the common database of two machines; None: there is one machine."""

    def __init__(self, whole_run: Path, folder: Path, *, store: str, url: str | None) -> None:
        self.url, self.stays = url, folder / "stays"
        if url is None:
            self.files = dict.fromkeys(NAMES, copied(whole_run, folder / "project"))
        else:
            self.files = {name: copied(whole_run, folder / name) for name in NAMES}
        for file in {*self.files.values()}:
            records = {"postgres": VARIABLE} if url else {}
            change_config(file, storage={"root": store}, execution=records)

    def start(self, name: str, *, stays: bool = False) -> subprocess.Popen[str]:
        """`gateau run` as far as the ranking; `stays`: it makes no way after a while, and lives."""
        (other,) = {*NAMES} - {name}
        file, stay_file = self.files[name], self.stays if stays else None
        arguments = ("run", "--config", str(file), "--until", LAST)
        if self.url is None:
            command = gateau_here(*arguments, stay_file=stay_file)
        else:
            command = gateau_on(name, *arguments, without=self.files[other].parent, stay_file=stay_file)
        pipe, environment = subprocess.PIPE, command_environment(**self.environment)
        return subprocess.Popen(
            command, cwd=file.parent, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.url is None else {VARIABLE: self.url}

    def run(self, name: str) -> tuple[int, str, str]:
        """Its exit status, and what it said."""
        process = self.start(name)
        out, err = process.communicate(timeout=LONGEST_RUN)
        return process.returncode, out, err

    def described(self, name: str, process: subprocess.Popen[str]) -> str:
        """How the other one is told of it. A process of another machine has a number that is seen there only."""
        who = f"on {name}" if self.url else f"in use by process {process.pid} on {socket.gethostname()}"
        return f"{who}, with {self.files[name]}, since 20"

    @contextmanager
    def records(self) -> Iterator[DagsterInstance]:
        """As another process on this machine sees them, or a third machine."""
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in ({"DAGSTER_HOME": ""} | self.environment).items():
                patch.setenv(variable, value)
            with open_instance(load_project(self.files["berta"])) as instance:
                yield instance


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Empty; its address."""
    return str(tmp_path / "store") if request.param == "disk" else f"s3://{request.getfixturevalue('bucket')}/store"


@pytest.fixture(params=["one machine", pytest.param("two machines", marks=SEPARATED)])
def contest(request: pytest.FixtureRequest, whole_run: Path, tmp_path: Path, store: str) -> Contest:
    apart = request.param == "two machines"
    database = f"machines_{uuid.uuid4().hex}"
    url = request.getfixturevalue("postgres").new_database(database) if apart else None
    return Contest(whole_run, tmp_path, store=store, url=url)


def statuses(instance: DagsterInstance) -> list[DagsterRunStatus]:
    return [run.status for run in reversed(instance.get_runs())]


@contextmanager
def kept_namespace(machine: subprocess.Popen[str]) -> Iterator[None]:
    """Nothing else gets the number of its processes' namespace, by which they would be seen to be gone."""
    inside = psutil.Process(machine.pid).children()[0]
    with Path(f"/proc/{inside.pid}/ns/pid").open():
        yield


def test_one_works_and_the_other_takes_over_when_it_is_gone(contest: Contest, whole_run: Path) -> None:
    """In the middle of scoring; the runs of both are in the same records."""
    first, kept = contest.start("anna", stays=True), ExitStack()
    try:
        deadline = time.monotonic() + LONGEST_RUN / 2
        while not contest.stays.exists():
            assert first.poll() is None and time.monotonic() < deadline, first.communicate()
            time.sleep(0.1)
        time.sleep(2 * EXPIRES_SECONDS)  # it is alive all the same
        code, out, err = contest.run("berta")
        assert (code, out) == (1, "") and err.count("\n") == 1
        assert "in use by process" in err and contest.described("anna", first) in err
        with contest.records() as instance:
            assert end_dead_runs(instance) == [] and statuses(instance) == [DagsterRunStatus.STARTED]
        assert first.poll() is None
        if contest.url is not None:
            kept.enter_context(kept_namespace(first))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with kept:
        if contest.url is not None:
            time.sleep(EXPIRES_SECONDS)
        code, out, err = contest.run("berta")
    assert code == 0, err
    if contest.url is not None:
        assert "anna" in out and "seems to have expired" in out
    else:
        assert "expired" not in out, "its process is seen to be gone: nothing is waited for"
    assert "Ended 1 earlier run whose process had died." in out
    with contest.records() as instance:
        assert statuses(instance) == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]
        assert sum(samples_kept(instance, instance.get_runs()[0].run_id)) >= 5, "its rows were used"
        assert instance.event_log_storage.get_concurrency_info("gpu").active_slot_count == 0
    assert_as_undisturbed(contest, whole_run)


def test_of_two_that_begin_at_once_with_nothing_there_one_works(contest: Contest, whole_run: Path) -> None:
    """Both would make Dagster's tables and the store."""
    both = {name: contest.start(name) for name in NAMES}
    try:
        told = {name: process.communicate(timeout=LONGEST_RUN) for name, process in both.items()}
    finally:
        for process in both.values():
            process.kill()
    ended = {name: process.returncode for name, process in both.items()}
    assert sorted(ended.values()) == [0, 1], told
    worked, waited = sorted(NAMES, key=lambda name: ended[name])
    (done, _), (silent, refused) = told[worked], told[waited]
    assert "Done in" in done and silent == "" and refused.count("\n") == 1
    assert "in use by process" in refused and contest.described(worked, both[worked]) in refused
    with contest.records() as instance:
        assert statuses(instance) == [DagsterRunStatus.SUCCESS]
    assert_as_undisturbed(contest, whole_run)


def assert_as_undisturbed(contest: Contest, whole_run: Path) -> None:
    """All that was asked for, as in a run that nobody disturbed."""
    one, other = (state_of(config=load_project(file)) for file in (contest.files["berta"], whole_run))
    assert not one.plan_until(LAST)
    found, wanted = one.recorded(), other.recorded()
    made = [key for key, stamp in found.items() if stamp is not None]
    assert {asset for asset, _ in made} == {*one.pipeline.ancestors([LAST])} & {asset for asset, _ in wanted}
    for asset, part in made:
        assert_same_rows(one.store.read(asset, part), other.store.read(asset, part))
    assert_same_stamps({key: found[key] for key in made}, {key: wanted[key] for key in made})
