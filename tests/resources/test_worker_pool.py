"""Worker processes: the same tables as one process makes, and none of them left, however the step ends."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gateau_dagster.config import Config
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_work import TableWork, has_missing_rows
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from resources.models import ModelsResource
from resources.scoring_worker import WorkerTask, _portable
from resources.worker_pool import ScoringWorkers
from tests.project import command_environment, make_project
from tests.runs.stores import assert_same_rows

ASSETS = ("perplexity/long", "cam")


@pytest.fixture
def state(tmp_path: Path) -> State:
    """24 samples in 6 shards, ingested."""
    state = State(config=load_project(make_project(tmp_path, samples=24, shards=6)))
    config = state.config
    numbers = [int(shard) for shard in state.shards]
    for number, table, rejected in read_shards(config.located_long_sft, config.folder, state.index, numbers):
        shard = state.shards[number]
        state.store.write(table, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state


def works(state: State) -> dict[str, list[TableWork]]:
    return {
        shard: [TableWork(asset=asset, stamp=state.wanted_stamp(asset, shard), memory="m") for asset in ASSETS]
        for shard in state.shards
    }


def two(config: Config) -> ScoringWorkers:
    return ScoringWorkers([WorkerTask(config=config, model="long", device="cpu", sharing=2)] * 2)


def ignore(report: ShardReport) -> None:
    del report


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_two_workers_of_which_one_is_killed(state: State) -> None:
    shards = works(state)
    names = list(shards)
    reports: list[ShardReport] = []
    killed = r"on cpu \(process \d+\) was killed \(SIGKILL\) while it scored"
    with pytest.raises(GateauError, match=killed) as caught, two(state.config) as workers:
        made = dict(workers.results({name: shards[name] for name in names[:2]}, reports.append))
        pids = [worker.process.pid or 0 for worker in workers.workers]
        assert len(set(pids)) == 2 and os.getpid() not in pids
        for number, (shard, results) in enumerate(workers.results({n: shards[n] for n in names[2:]}, ignore)):
            made[shard] = results
            if number == 0:
                os.kill(pids[1], signal.SIGKILL)
    assert str(pids[1]) in str(caught.value)
    assert all(map(gone, pids)), "the other one has ended too"
    assert set(names[:2]) == {report.shard for report in reports} <= set(made) < set(names)
    assert max(report.tokens for report in reports) > 0

    # What was finished stands and is what this process computes; what it kept needs no model.
    for shard, found in made.items():
        assert not has_missing_rows(state.store, shard, shards[shard])
        for asset in ASSETS:
            assert state.store.stamp(asset, shard) == found[asset].stamp
            state.store.files.remove(state.store.table_name(asset, shard))
    config, models = state.config, ModelsResource()
    alone = ShardScorer(config, "long", lambda: models.load(config, config.models["long"], version=""))
    for shard in names:
        here = alone.compute(state.store, shard, shards[shard], ignore)
        for asset in ASSETS if shard in made else ():
            assert_same_rows(here[asset].table, made[shard][asset].table)
            assert made[shard][asset].stamp.effort["tokens"] == here[asset].stamp.effort["tokens"] > 0


SCRIPT = """
import sys, time
from pathlib import Path
from gateau_dagster.pipeline.project import load_project
from resources.scoring_worker import WorkerTask
from resources.worker_pool import ScoringWorkers
if __name__ == "__main__":
    task = WorkerTask(config=load_project(Path(sys.argv[1])), model="long", device="cpu", sharing=1)
    with ScoringWorkers([task]) as idle:
        pass
    assert idle.workers[0].process.exitcode == 0, idle.workers[0].process.exitcode
    with ScoringWorkers([task]) as left:
        print(left.workers[0].process.pid, flush=True)
        time.sleep(600)
"""


def test_idle_workers_end_and_none_outlives_a_killed_step(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=1, shards=1)
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    environment = command_environment()
    with subprocess.Popen(
        [sys.executable, str(script), str(file)], env=environment, stdout=subprocess.PIPE, text=True
    ) as step:
        assert step.stdout is not None
        worker = int(step.stdout.readline())
        assert not gone(worker)
        step.kill()
    deadline = time.monotonic() + 60
    while not gone(worker):
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.05)


class TwoPartsError(Exception):
    """Cannot be unpickled: it wants more than its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class StubbornError(TransientError):
    """Cannot be pickled, and says so in its own way."""

    def __reduce__(self) -> str:
        raise KeyError("not me")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (GateauError("as it is"), GateauError, "as it is"),
        (TwoPartsError("a", "b"), RuntimeError, "TwoPartsError: ab"),
        (StubbornError("no answer"), TransientError, "no answer"),
    ],
)
def test_every_failure_survives_the_pipe(error: Exception, kind: type[Exception], text: str) -> None:
    found = pickle.loads(pickle.dumps(_portable(error)))
    assert type(found) is kind and str(found) == text
