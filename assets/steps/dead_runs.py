"""Find runs whose process is gone, by the process named on each of our runs, and end them."""

import os
from typing import TypeAlias

import dagster as dg
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, OpExecutionContext, RunsFilter

from gateau_dagster.storage.process_identity import ProcessIdentity, State

# Tag: the process that executes a run. Before the first step of a run that `refresh` launched, it is the process of
# `refresh`. Dagster's pages hide tags with this prefix.
PROCESS_TAG = ".dagster/gateau_process"
# Tag of runs that `refresh` makes while it holds the store exclusively: the store, from
# `gateau_dagster.resources.lease.store_id`.
LOCK_TAG = ".dagster/gateau_lock"
_EARLIER = {PROCESS_TAG: "gateau/process", LOCK_TAG: "gateau/lock"}  # of runs that an earlier version began
UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
    DagsterRunStatus.NOT_STARTED,
]


def process_tag(pid: int | None = None) -> str:
    """Return the identity of a process; default: this one."""
    return ProcessIdentity.of(pid).to_text()


Context: TypeAlias = dg.AssetExecutionContext | dg.AssetCheckExecutionContext | OpExecutionContext


def has_own_process(context: Context) -> bool:
    """Return whether the step's process differs from that of its run."""
    return context.get_step_execution_context().job_def.executor_def.name == "multiprocess"


def tag_with_process(context: Context) -> None:
    """Tag the run with the process that executes it.

    With the multi-process executor that is the parent: a step's own process ends with the step, the run does not.
    """
    tag = process_tag(os.getppid() if has_own_process(context) else None)
    if context.run.tags.get(PROCESS_TAG) != tag and not context.instance.is_ephemeral:
        context.instance.add_run_tags(context.run.run_id, {PROCESS_TAG: tag})


def process_state(tag: str) -> State:
    """Return whether the process of a tag runs; "unknown" if it cannot be seen from here."""
    try:
        return ProcessIdentity.from_text(tag).state()
    except ValueError:
        return "unknown"


def process_of(instance: DagsterInstance, run: DagsterRun) -> str | None:
    """Return the tag of the process that executes a run; None while there is none.

    A re-executed run starts with the tags of its parent, including the process.
    """
    tag = _tag(run, PROCESS_TAG)
    before = None if run.parent_run_id is None else instance.get_run_by_id(run.parent_run_id)
    return None if before is not None and _tag(before, PROCESS_TAG) == tag else tag


def _tag(run: DagsterRun, name: str) -> str | None:
    return run.tags.get(name, run.tags.get(_EARLIER[name]))


def end_dead_runs(instance: DagsterInstance, *, holding: str | None = None) -> list[DagsterRun]:
    """End the runs whose process is gone, and free their pool slots, which would block the next run.

    A run that was being ended is recorded as canceled, others as failed. A run whose process cannot be seen from here,
    on another machine or in another container, is left alone.

    `holding`: the store that the caller holds. An earlier holder is gone, even if its process cannot be seen.

    Dagster learns of a run's end from the run itself; a run killed with `kill -9` reports nothing.
    """
    ended = []
    for run in instance.get_runs(RunsFilter(statuses=UNFINISHED)):
        tag = process_of(instance, run)
        if tag is None:
            continue
        state = process_state(tag)
        left = holding is not None and _tag(run, LOCK_TAG) == holding
        if state == "alive" or (state == "unknown" and not left):
            continue
        found = instance.get_run_by_id(run.run_id)  # it may have ended by itself meanwhile
        if found is not None and not found.is_finished:
            _end(instance, found)
            ended.append(found)
    return ended


def _end(instance: DagsterInstance, run: DagsterRun) -> None:
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    if run.status is DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, "The process of this run was ended. All its computed results are kept.")
        return
    instance.report_run_failed(
        run, "The process of this run has died (killed, or the machine restarted). All its computed results are kept."
    )
