"""Runs whose process is gone: found by the process id that each run of ours carries, and ended."""

import os
import socket

import dagster as dg
import psutil
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, OpExecutionContext, RunsFilter

PROCESS_TAG = "gateau/process"
# On runs that `refresh` makes while it holds the lock of a configuration: the configuration's work folder.
LOCK_TAG = "gateau/lock"
_ALIVE = [
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
    DagsterRunStatus.NOT_STARTED,
]


def process_tag(pid: int | None = None) -> str:
    """Host, process id (default: this one) and its start time: ids are used again, pairs of id and time are not."""
    process = psutil.Process(pid)
    return f"{socket.gethostname()}|{process.pid}|{process.create_time():.2f}"


def tag_with_process(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | OpExecutionContext,
) -> None:
    """Notes on the run which process works on it.

    With the multi-process executor that is the parent: a step's own process ends with the step, the run does not.
    """
    executor = context.get_step_execution_context().job_def.executor_def.name
    tag = process_tag(os.getppid() if executor == "multiprocess" else None)
    if context.run.tags.get(PROCESS_TAG) != tag and not context.instance.is_ephemeral:
        context.instance.add_run_tags(context.run.run_id, {PROCESS_TAG: tag})


def is_gone(tag: str) -> bool:
    """Whether the process ended. One on another host is taken to be alive: from here it cannot be seen."""
    host, pid, started = tag.split("|")
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) > 1.0 or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_dead_runs(instance: DagsterInstance, *, holding: str | None = None) -> list[DagsterRun]:
    """Marks runs as failed whose process is gone, and frees their pool slots, which the next run would wait for.

    `holding`: the lock that the caller holds. Whoever had it before is gone, on whatever host it was: a container has a
    new host name at every start.

    Dagster learns of a run's end from the run itself; one that was killed with `kill -9` says nothing.
    """
    ended = []
    for run in instance.get_runs(RunsFilter(statuses=_ALIVE)):
        tag = run.tags.get(PROCESS_TAG)
        left = holding is not None and run.tags.get(LOCK_TAG) == holding
        if not left and (tag is None or not is_gone(tag)):
            continue
        if instance.event_log_storage.supports_global_concurrency_limits:
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        instance.report_run_failed(
            run, "The process of this run is gone (killed, or the machine restarted). What it had computed is kept."
        )
        ended.append(run)
    return ended
