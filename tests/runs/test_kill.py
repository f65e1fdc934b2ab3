"""`kill -9` of everything at any point, then the same command again: the same result as an undisturbed run."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus
from transformers import AutoModelForCausalLM

from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG
from gateau_dagster.execution.row_checkpoints import FOLDER as PARTIAL
from gateau_dagster.pipeline.leftovers import PARTS, leftovers
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.evidence import FAR
from gateau_dagster.training.checkpoints import complete_checkpoints
from tests.assets.harness import pipeline_on
from tests.kit.project import change_config, command_environment, copied, gateau, make_project, sample, write_samples
from tests.runs.stores import (
    assert_same_scores,
    assert_same_stamps,
    assert_same_tables,
    assert_same_weights,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(whole_run: Path, tmp_path: Path) -> Path:
    """The same project before its first run."""
    return copied(whole_run, tmp_path / "project")


def killed_run(file: Path, point: str, number: float, *options: str, may_be_done: bool = False) -> None:
    """A run that kills its own group at the point."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.killed_run", point, str(number), "run", "--config", str(file), *options],
        cwd=file.parent,
        env=command_environment(),
        start_new_session=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == -signal.SIGKILL or (may_be_done and done.returncode == 0), (
        done.returncode,
        done.stdout,
        done.stderr,
    )


@contextmanager
def instance_of(file: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(file.parent / ".gateau" / "dagster")) as instance:
        yield instance


def statuses(file: Path) -> list[DagsterRunStatus]:
    """Return the states of all runs, oldest first."""
    with instance_of(file) as instance:
        return [run.status for run in reversed(instance.get_runs())]


def assert_as_undisturbed(file: Path, whole_run: Path) -> None:
    one, other = state_of(config=load_project(file)), state_of(config=load_project(whole_run))
    assert not one.plan()
    assert_same_tables(one.store, other.store)
    found, wanted = one.recorded(), other.recorded()
    for stamps in (found, wanted):
        stamps.pop(("report", None))  # names the folder of the project
    assert_same_stamps(found, wanted)
    assert_same_weights(file.parent / "store" / "checkpoint", whole_run.parent / "store" / "checkpoint")
    assert_no_rows_wait(one)
    assert not list((file.parent / "store").rglob("*.tmp"))


def assert_no_rows_wait(state: State) -> None:
    """Rows that a run saved, and had no time to remove after their table, are what `gateau clean` removes."""
    names = [name for name in state.store.files.sizes() if name.startswith(f"{PARTIAL}/")]
    assert {name.rpartition("/")[0] for name in names} <= {each.name for each in leftovers(state) if each.kind == PARTS}


def assert_nothing_is_held(file: Path) -> None:
    """No dead run looks alive, no pool slot is taken, and every output is on record."""
    with instance_of(file) as instance:
        assert not [run for run in instance.get_runs() if not run.is_finished]
        pool = instance.event_log_storage.get_concurrency_info("gpu")
        assert pool.active_slot_count == 0
        assert pool.pending_step_count == 0
    again = gateau("run", "--config", str(file), folder=file.parent)
    assert "Everything is up to date" in again.stdout


def test_killed_while_scoring(copy: Path, whole_run: Path) -> None:
    """After eight samples, six of which were saved; what trains comes after it, and is killed in the long tests."""
    killed_run(copy, "row", 8, "--until", "combined_scores")
    assert statuses(copy) == [DagsterRunStatus.STARTED], "Dagster does not learn of a kill"
    with pipeline_on(copy) as pipeline:
        done = pipeline.refresh("combined_scores")
        [run] = done.run_ids
        assert done.ended_runs == 1 and sum(samples_kept(pipeline.instance, run)) >= 6
        assert pipeline.refresh("combined_scores").run_ids == []
        pool = pipeline.instance.event_log_storage.get_concurrency_info("gpu")
        assert (pool.active_slot_count, pool.pending_step_count) == (0, 0)
    assert statuses(copy) == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]
    assert_same_scores(state_of(config=load_project(copy)), state_of(config=load_project(whole_run)))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([("row", 8)], id="while scoring", marks=pytest.mark.long),
        # A table of the second shard, before its event: two groups of rows and two tables each.
        pytest.param([("row", 8), ("table", 8)], id="before an event too", marks=pytest.mark.long),
    ],
)
def test_killed_at_one_stage_after_the_other(copy: Path, whole_run: Path, points: list[tuple[str, int]]) -> None:
    """While scoring, then while training: each next run goes on where the last one was."""
    for number, (point, count) in enumerate(points):
        killed_run(copy, point, count)
        ended = [DagsterRunStatus.FAILURE] * number
        assert statuses(copy) == [*ended, DagsterRunStatus.STARTED], "Dagster does not learn of a kill"
    killed_while_training(copy)
    with instance_of(copy) as instance:
        kept = [number for run in instance.get_runs() for number in samples_kept(instance, run.run_id)]
    assert sum(kept) > 0, "rows of the killed runs were used"
    done = gateau("run", "--config", str(copy), folder=copy.parent)
    assert "Ended 1 earlier run whose process had died." in done.stdout
    assert statuses(copy) == [DagsterRunStatus.FAILURE] * (len(points) + 1) + [DagsterRunStatus.SUCCESS]
    assert first_training_step(copy) > 1, "the training went on, it did not begin again"
    assert_as_undisturbed(copy, whole_run)
    assert_nothing_is_held(copy)


@pytest.mark.long
def test_killed_while_scoring_for_a_mix(tmp_path: Path) -> None:
    """The same choice as of an undisturbed run; another use, temperature or rule makes that choice again, no more."""
    rule: dict[str, Any] = {"rule": "mix", "use": {"far": 0.4}, "tau": 0.5, "seed": 3}
    models = {"short": {"path": "short", "context": "window", "window": 64}}  # a third of each context is near
    killed = make_project(tmp_path / "project", samples=36, selection=rule, models=models)
    until = "selected_subset"
    texts = [sample(n + 100, sentences=4)["context"] for n in range(36)]  # long responses: a token is right by chance
    records = [sample(n, sentences=12) | {"response": text} for n, text in enumerate(texts)]
    write_samples(killed.parent / "long.jsonl", records)
    sharpen(killed.parent / "long")
    undisturbed = copied(killed, tmp_path / "undisturbed")
    killed_run(killed, "row", 8, "--until", until)
    for file in (killed, undisturbed):
        gateau("run", "--config", str(file), "--until", until, folder=file.parent)
    one, other = (state_of(config=load_project(file)) for file in (killed, undisturbed))
    kinds = one.read("evidence", ["sample_id", "dependency"])
    assert kinds.equals(other.read("evidence", ["sample_id", "dependency"])) and kinds["dependency"].n_unique() > 1
    chosen = one.store.read(until)
    assert chosen.height > 1 and chosen["sample_id"].equals(other.store.read(until)["sample_id"])
    assert chosen["dependency"].is_in(FAR).any() and not chosen["dependency"].is_in(FAR).all()
    first, second = (state.stamp(until, None) for state in (one, other))
    assert first is not None and second is not None and first.rule == second.rule == "mix"
    assert (first.content, first.fingerprint) == (second.content, second.fingerprint)
    for change in ({"use": {"far": 0.2}}, {"tau": 2.0}, {"rule": "clean", "use": None, "tau": 0}):
        change_config(killed, selection=change)
        assert {work.asset for work in state_of(config=load_project(killed)).plan_until(until).work} == {until}
        change_config(killed, selection=rule)


def sharpen(folder: Path) -> None:
    """Makes an untrained model sure of its guesses, so that other text changes them by more than 0.5."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    model.save_pretrained(folder)


def samples_kept(instance: DagsterInstance, run_id: str) -> list[int]:
    """Return the kept samples of every shard that a run recorded."""
    logs = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    found = [entry.get_dagster_event().step_materialization_data.materialization.metadata for entry in logs]
    return [int(str(metadata["samples_kept"].value)) for metadata in found if "samples_kept" in metadata]


def first_training_step(file: Path) -> int:
    """The first step that the training said in the last run."""
    with instance_of(file) as instance:
        messages = [entry.user_message for entry in instance.all_logs(instance.get_runs()[0].run_id)]
    said = [match for message in messages if (match := re.match(r"step (\d+)/12 ", message or ""))]
    return int(said[0].group(1))


def killed_while_training(file: Path) -> None:
    """Kills the group, training process included, when the training has its first complete checkpoint."""
    training = file.parent / ".gateau" / "training"
    process = subprocess.Popen(
        [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file)],
        cwd=file.parent,
        env=command_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while not any(complete_checkpoints(work) for work in training.glob("*/work")):
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert any(complete_checkpoints(work) for work in training.glob("*/work"))
    assert not (file.parent / "store" / "checkpoint").exists()


@pytest.mark.long
def test_killed_at_random_moments(copy: Path, whole_run: Path) -> None:
    """Scoring only, from an empty store: each moment is anywhere between the start of a run and beyond its end."""
    until = ("--until", "combined_scores")
    moments = [random.Random(seed).uniform(3.0, 12.0) for seed in (1, 2, 3)]
    for moment in moments:
        killed_run(copy, "seconds", moment, *until, may_be_done=True)
    gateau("run", "--config", str(copy), *until, folder=copy.parent)
    assert_same_scores(state_of(config=load_project(copy)), state_of(config=load_project(whole_run)))
    with instance_of(copy) as instance:
        assert all(run.is_finished for run in instance.get_runs() if PROCESS_TAG in run.tags)
