"""The multi-process executor: a process a step, and one step of the pool `gpu` at a time."""

import itertools
import os
from pathlib import Path

import pytest
from dagster import DagsterEventType, DagsterInstance

from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import gateau, make_project

GPU = {"perplexity__short", "perplexity__long_and_cam"}


@pytest.mark.slow
@pytest.mark.long
def test_a_process_a_step(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=8, shards=2, execution={"executor": "multiprocess", "max_concurrent": 3})
    done = gateau("run", "--config", str(file), "--until", "combined_scores", folder=tmp_path)
    assert "✓ combined_scores" in done.stdout
    plan = state_of(config=load_project(file)).plan()
    assert [work.asset for work in plan.work] == ["selected_subset", "report"]

    with DagsterInstance.from_config(str(tmp_path / ".gateau" / "dagster")) as instance:
        run = instance.get_runs()[0]
        logs = instance.all_logs(run.run_id)
        pids = {entry.step_key: pid_of(entry) for entry in logs if is_step(entry, DagsterEventType.STEP_WORKER_STARTED)}
        pids = {step: pid for step, pid in pids.items() if pid}
        spans = gpu_spans(logs)
        assert instance.event_log_storage.get_concurrency_info("gpu").active_slot_count == 0
    assert len(set(pids.values())) == len(pids) >= 5, "each step has a process of its own"
    tagged = int(run.tags[PROCESS_TAG].split("|")[1])
    assert tagged not in pids.values(), "a step's process ends before the run does"
    assert tagged != os.getpid()
    assert {name for _, _, name in spans} == GPU
    ordered = sorted(spans)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(ordered)), ordered


def is_step(entry: object, kind: DagsterEventType) -> bool:
    return bool(entry.is_dagster_event and entry.step_key and entry.get_dagster_event().event_type is kind)  # type: ignore[attr-defined]


def pid_of(entry: object) -> int | None:
    found = entry.get_dagster_event().event_specific_data.metadata.get("pid")  # type: ignore[attr-defined]
    return None if found is None else int(found.value)


def gpu_spans(logs: object) -> list[tuple[float, float, str]]:
    """Start, end and name of the steps that use the pool."""
    begun = {e.step_key: e.timestamp for e in logs if is_step(e, DagsterEventType.STEP_START)}  # type: ignore[attr-defined]
    ended = {e.step_key: e.timestamp for e in logs if is_step(e, DagsterEventType.STEP_SUCCESS)}  # type: ignore[attr-defined]
    return [(begun[name], ended[name], name) for name in GPU]
