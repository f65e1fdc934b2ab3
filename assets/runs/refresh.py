"""From a plan to one Dagster run of exactly the stale assets and shards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterEventType, DagsterInstance
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster_shared.error import SerializableErrorInfo

from assets.runs.canceled import canceled_when_interrupted, record_canceled
from assets.runs.instance import open_instance
from assets.steps.dead_runs import LOCK_TAG, PROCESS_TAG, end_dead_runs, process_tag
from assets.steps.event_log import PLAN_TAG, record_what_the_store_holds
from assets.steps.failures import TITLE
from assets.steps.partitions import asset_key
from assets.steps.progress import remove_old_boards
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from resources.configuration import ConfigurationResource
from resources.locks.file import file_lock
from resources.locks.lock import Lock

# A run can make work for another only where content decides (see stamp.By), and each asset does so at most once.
_MOST_ROUNDS = 4

# Two refreshes at a time would do the same work twice.
only_one: Lock = file_lock


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What `refresh` did."""

    run_ids: list[str]
    recorded: int
    ended_runs: int
    failed_checks: list[str]

    @property
    def summary(self) -> str:
        """One sentence."""
        runs = (
            f"ran {len(self.run_ids)} run(s): {', '.join(self.run_ids)}"
            if self.run_ids
            else "everything was up to date"
        )
        extra = f"; recorded {self.recorded} outputs that Dagster did not know of" if self.recorded else ""
        dead = f"; ended {self.ended_runs} run(s) whose process was gone" if self.ended_runs else ""
        return runs + extra + dead


def run_refresh(config: Config, config_file: str, *, until: str | None, plan: Plan) -> Refreshed:
    """Runs what is out of date on the configuration's own Dagster instance; what `gateau run` calls.

    Raises:
        GateauError: a step failed, or another run is at work.
    """
    configuration = ConfigurationResource(config_file=config_file, demo_folder=str(config.folder))
    with open_instance(config) as instance:
        return refresh(instance, configuration, until=until, plan=plan)


def refresh(
    instance: DagsterInstance,
    configuration: ConfigurationResource,
    *,
    until: str | None = None,
    parent_run: str | None = None,
    plan: Plan | None = None,
) -> Refreshed:
    """Runs what is missing or changed, until nothing is.

    Args:
        until: the asset to stop at; None for all.
        parent_run: run that asks for this one.
        plan: the first plan, when the caller has just made it.

    Raises:
        GateauError: a run failed (the message is the first failure), or another refresh is at work.
    """
    config = configuration.config
    run_ids: list[str] = []
    failed_checks: list[str] = []
    with only_one(config):
        ended = len(end_dead_runs(instance, holding=str(config.work_folder)))
        if parent_run is not None:
            instance.add_run_tags(parent_run, {LOCK_TAG: str(config.work_folder)})
        remove_old_boards(config, instance)
        # First, so that Dagster sees what the runs below read as older than what they make of it.
        recorded = record_what_the_store_holds(instance, State(config=config))
        for _ in range(_MOST_ROUNDS):
            state = State(config=config)
            current = plan if plan is not None else state.plan_until(until)
            plan = None
            if not current:
                return Refreshed(run_ids=run_ids, recorded=recorded, ended_runs=ended, failed_checks=failed_checks)
            run_id, failed = _run(instance, configuration, current, parent_run)
            run_ids.append(run_id)
            failed_checks += failed
    raise GateauError(
        f"After {_MOST_ROUNDS} runs there is still work. Something changes the input or the models all the time; "
        "`gateau plan` says what."
    )


def _run(
    instance: DagsterInstance, configuration: ConfigurationResource, plan: Plan, parent_run: str | None
) -> tuple[str, list[str]]:
    """One run of the stale assets over the range of stale shards; shards of the range that are current cost nothing.

    Returns its id and the checks that failed in it.

    Raises:
        KeyboardInterrupt: it was interrupted.
        GateauError: it failed.
    """
    tags = {PROCESS_TAG: process_tag(), LOCK_TAG: str(configuration.config.work_folder)}
    tags[PLAN_TAG] = f"{len(plan.work)} assets"
    shards = sorted({shard for work in plan.work for shard in work.partitions})
    if shards:
        tags |= {ASSET_PARTITION_RANGE_START_TAG: shards[0], ASSET_PARTITION_RANGE_END_TAG: shards[-1]}
    if parent_run is not None:
        tags["gateau/refresh"] = parent_run
    with (
        configured_environment(configuration),
        canceled_when_interrupted(instance, tags[PROCESS_TAG]),
        dg.execute_job(
            _everything(),
            instance=instance,
            tags=tags,
            asset_selection=[asset_key(work.asset) for work in plan.work],
            run_config=_console("CRITICAL" if parent_run is None else "INFO"),
        ) as result,
    ):
        if not result.success and _interrupted(result):
            record_canceled(instance, result.dagster_run)
            raise KeyboardInterrupt
        if not result.success:
            raise GateauError(failure_message(result))
        return result.run_id, failed_checks_of(result)


def _interrupted(result: dg.JobExecutionResult) -> bool:
    """Dagster turns an interrupt into the failure of the step that was at work."""
    failures = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    names = {link.cls_name for error in failures for link in _causes(error)}
    return "DagsterExecutionInterruptedError" in names


def _causes(error: SerializableErrorInfo | None) -> Iterator[SerializableErrorInfo]:
    while error is not None:
        yield error
        error = error.cause


def failed_checks_of(result: dg.JobExecutionResult) -> list[str]:
    """One line about each check that failed: a run succeeds all the same, and the command line has to say it."""
    lines = []
    for event in result.all_events:
        if event.event_type is not DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        found = event.asset_check_evaluation_data
        if not found.passed:
            facts = "; ".join(f"{name}: {value.value}" for name, value in found.metadata.items())
            lines.append(f"{found.asset_key.to_user_string()}: check {found.check_name} failed ({facts})")
    return lines


def _console(level: str) -> dict[str, object]:
    """What the run prints; started by `gateau run` it has a progress bar instead, and the UI has every line anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def _everything() -> ReconstructableJob:
    """The job by name, so that the steps of a multi-process executor can load it."""
    repository = ReconstructableRepository.for_module("gateau_dagster.definitions", "defs")
    return repository.get_reconstructable_job("everything")


@contextmanager
def configured_environment(configuration: ConfigurationResource) -> Iterator[None]:
    """The definitions are loaded by name and read their configuration file from the environment."""
    names = {"GATEAU_CONFIG": configuration.config_file, "GATEAU_DEMO_FOLDER": configuration.demo_folder}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def failure_message(result: dg.JobExecutionResult) -> str:
    """The first step's failure, as its author put it."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            failure = data.user_failure_data
            if failure is not None and failure.description:
                title = failure.metadata.get(TITLE)
                return f"{event.step_key if title is None else title.value}: {failure.description}"
            causes = list(_causes(data.error))
            return f"{event.step_key}: {causes[-1].message.strip() if causes else 'failed'}"
    return "the run failed before its first step; its log in the Dagster UI says why"
