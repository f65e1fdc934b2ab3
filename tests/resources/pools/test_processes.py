"""Worker processes: one that is killed is replaced and its shard scored by another, and none outlives the step."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.row_checkpoints import GROUP_ROWS
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_tables import Piece
from gateau_dagster.pipeline.loadable import placed_model
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.pools.pool import ScoringTask, ScoringWorkers
from gateau_dagster.resources.pools.processes import POOL
from tests.kit.project import command_environment
from tests.resources.pools.deadly_samples import Deadly
from tests.resources.pools.killed_once import KilledOnce
from tests.resources.pools.shards_to_score import ASSETS, alone, ignore, ingested, pieces
from tests.runs.stores import assert_same_rows


def workers(
    state: State, number: int, warned: list[str], section: Any = None
) -> AbstractContextManager[ScoringWorkers]:
    config = state.config
    section = config.located_model("long") if section is None else section
    task = ScoringTask(
        config=config,
        model="long",
        placed=placed_model(state, "long"),
        section=section,
        devices=["cpu"] * number,
        costs=lambda shard: {shard: 1.0},  # as a step's, it cannot be pickled
    )
    return POOL.workers(task, warned.append)


def children() -> list[int]:
    return [child.pid or 0 for child in multiprocessing.active_children()]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_of_two_workers_is_killed_and_the_tables_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=24, shards=6)
    (notes := tmp_path / "notes").mkdir()
    shards, warned, reports, victim = pieces(state, effort=KilledOnce(notes)), [], [], KilledOnce(notes)
    seen: set[int] = set()

    def kill_one(report: ShardReport) -> None:
        reports.append(report)
        seen.update(children())
        if report.scored:
            victim.hear()

    with workers(state, 2, warned) as two:
        found = dict(two.results(shards, kill_one))
    assert {*found} == {shard.shard for shard in shards} == {report.shard for report in reports}
    assert len(warned) == 1 and f"on cpu (process {victim.killed}) was killed (SIGKILL) while it scored" in warned[0]
    assert len(seen) >= 2 and all(map(gone, seen)) and not children()
    for shard in shards:
        made = found[shard.shard]
        assert not Piece.whole(state.store, shard.shard, shard.works).lacking
        for asset in ASSETS:
            assert state.store.stamp(asset, shard.shard) == made[asset].stamp
        here = alone(state, shard)
        for asset in ASSETS:
            assert made[asset].table["sample_id"].to_list() == here[asset].table["sample_id"].to_list()
            assert_same_rows(made[asset].table, here[asset].table)


def test_rows_that_the_killed_worker_saved_are_not_scored_again(tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=GROUP_ROWS + 9, shards=1)
    log, warned, reports = tmp_path / "batches", [], []
    section = Deadly(kills=["s00260"], times=1, log=str(log))
    shards = pieces(state, assets=ASSETS[:1], columns=(tables.SAMPLE_ID, tables.DIGEST))
    with workers(state, 1, warned, section) as one:
        [(_, made)] = one.results(shards, reports.append)
    assert len(warned) == 1 and "while it scored 9 samples of shard 0" in warned[0]
    result = made["perplexity/long"]
    assert (result.reused, result.computed) == (GROUP_ROWS, 9) and result.rejected.is_empty()
    assert log.read_text().split().count("s00255") == 1
    last = max(number for number, report in enumerate(reports) if report.scored == GROUP_ROWS + 9)
    assert last == len(reports) - 1 and [report.share for report in reports].count(1) >= 1


class KillsAll:
    """Kills every worker that it is sent to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (signal.SIGKILL,)


@pytest.mark.long
def test_a_shard_that_kills_three_workers_ends_the_step(tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=4, shards=2)
    warned: list[str] = []
    wanted = r"was killed \(SIGKILL\) while it scored .*shard 0. 3 workers .* memory.*fewer scoring.workers"
    section = Deadly(kills=[], log="")
    with pytest.raises(GateauError, match=wanted), workers(state, 1, warned, section) as one:
        list(one.results(pieces(state, effort=KillsAll()), ignore))
    assert len(warned) == 2 and all("shard 0;" in line for line in warned)
    assert not children()


@pytest.mark.long
def test_a_sample_that_kills_three_workers_is_rejected_and_the_others_are_scored(tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=8, shards=1)
    log, warned = tmp_path / "batches", []
    section = Deadly(kills=["s00002"], log=str(log))
    shards = pieces(state, assets=ASSETS[:1], columns=(tables.SAMPLE_ID, tables.DIGEST))
    with workers(state, 1, warned, section) as one:
        [(shard, made)] = one.results(shards, ignore)
    result = made["perplexity/long"]
    ids = [f"s{number:05d}" for number in range(8)]
    assert result.table["sample_id"].to_list() == [one for one in ids if one != "s00002"]
    [(rejected, reason)] = result.rejected.rows()
    assert rejected == "s00002" and "3 scoring workers died over this sample" in reason
    assert result.stamp.lacking == "m" and result.stamp == state.store.stamp("perplexity/long", shard)
    batches = log.read_text().splitlines()
    assert batches.index(" ".join(ids[:4])) == 0
    assert batches.count("s00002") == 2, "from the second time on it is alone"
    assert len(warned) == 3 and "over s00002, which is rejected" in warned[2]


def test_without_workers_the_step_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is lost and none can take its place: the other one goes on, and the step ends with it."""
    state = ingested(tmp_path, samples=4, shards=2)
    started: list[SpawnProcess] = []
    start = SpawnProcess.start

    def two_and_no_more(process: SpawnProcess) -> None:
        if len(started) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(process)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", two_and_no_more)
    one_lost = tmp_path / "one_lost"

    class Warned(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            one_lost.touch()

    warned, all_ = Warned(), ["s00000", "s00001", "s00002", "s00003"]
    deadly = Deadly(kills=all_, first=str(one_lost), log=os.devnull)
    with (
        pytest.raises(GateauError, match=r"worker cannot be started: .*unavailable"),
        workers(state, 2, warned, deadly) as two,
    ):
        list(two.results(pieces(state), ignore))
    assert [line for line in warned if "the others go on without it" in line]
    assert not children()


@pytest.mark.long
def test_what_a_worker_reports_to_have_failed_ends_the_step(tmp_path: Path) -> None:
    state = ingested(tmp_path, samples=4, shards=2)
    (tmp_path / "long" / "model.safetensors").unlink()
    warned: list[str] = []
    with pytest.raises(GateauError, match="long"), workers(state, 1, warned) as one:
        list(one.results(pieces(state), ignore))
    assert warned == [] and not children()


SCRIPT = """
import signal, sys, time

def sleep(report):
    print(*children(), flush=True)
    time.sleep(600)

def end(number, frame):
    raise SystemExit(number)

if __name__ == "__main__":  # the workers import this file, too
    from pathlib import Path
    from gateau_dagster.pipeline.project import load_project
    from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
    from tests.resources.pools.test_processes import children, pieces, workers

    signal.signal(signal.SIGTERM, end)
    state = state_of(config=load_project(Path(sys.argv[1])))
    with workers(state, 2, []) as two:
        list(two.results(pieces(state), sleep))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_none_outlives_a_step_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    state = ingested(tmp_path / "project", samples=4, shards=2)
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(state.config.folder / "gateau.yaml")],
        env=command_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as step:
        assert step.stdout is not None
        pids = [int(pid) for pid in step.stdout.readline().split()]
        assert len(pids) == 2 and not any(map(gone, pids))
        step.send_signal(number)
    deadline = time.monotonic() + (0 if number == signal.SIGTERM else 60)
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, "a worker lives on"
        time.sleep(0.05)
