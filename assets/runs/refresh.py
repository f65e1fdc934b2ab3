"""From a plan to one Dagster run of exactly the stale assets and shards."""

import logging
import os
from collections.abc import Callable, Iterator
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
from gateau_dagster.errors import GateauError, UnforeseenError
from gateau_dagster.estimate.judging import planned_judging
from gateau_dagster.estimate.servers import check_servers
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.pipeline import partition_sets
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from resources.configuration import ConfigurationResource
from resources.locks.lease import store_id, store_lease

# A run can make work for another only where content decides (see stamp.By), and each asset does so at most once. Each
# may be two: of shards, and of variants.
_MOST_ROUNDS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What `refresh` did."""

    run_ids: list[str]
    recorded: int
    ended_runs: int
    failed_checks: list[str]

    @property
    def notes(self) -> list[str]:
        """What happened beside the work: the same in the UI and on the terminal."""
        notes = []
        if self.ended_runs:
            notes.append(f"Ended {self.ended_runs} earlier run(s) whose process was gone.")
        if self.recorded:
            notes.append(f"Recorded {self.recorded} output(s) of the store that Dagster did not know of.")
        return notes

    @property
    def summary(self) -> str:
        """What a log says."""
        done = f"Done by run {', '.join(self.run_ids)}." if self.run_ids else "Everything is up to date."
        return " ".join([done, *self.notes, *(f"! {line}." for line in self.failed_checks)])


def run_refresh(config: Config, config_file: str, *, until: str | None, plan: Plan) -> Refreshed:
    """Runs what is out of date on the configuration's own Dagster instance; what `gateau run` calls, which has the
    store (`store_lease`).

    Raises:
        GateauError: a step failed.
    """
    configuration = ConfigurationResource(config_file=config_file, demo_folder=str(config.folder))
    with open_instance(config) as instance:
        return _refresh(instance, configuration, until=until, plan=plan)


def refresh(
    instance: DagsterInstance,
    configuration: ConfigurationResource,
    *,
    until: str | None = None,
    parent_run: str | None = None,
    say: Callable[[str], None] = _log.info,
) -> Refreshed:
    """Takes the store, and runs what is missing or changed, until nothing is.

    Args:
        until: the asset to stop at; None for all.
        parent_run: run that asks for this one.
        say: told what is waited for.

    Raises:
        GateauError: a run failed (the message is the first failure), another run has the store, or judging would take
            more than its budget.
    """
    with store_lease(configuration.config, configuration.config_file, exclusive=True, say=say):
        return _refresh(instance, configuration, until=until, parent_run=parent_run)


def _refresh(
    instance: DagsterInstance,
    configuration: ConfigurationResource,
    *,
    until: str | None,
    parent_run: str | None = None,
    plan: Plan | None = None,
) -> Refreshed:
    """`plan`: the first one, when the caller has just made it."""
    config = configuration.config
    holding = store_id(config)
    run_ids: list[str] = []
    failed_checks: list[str] = []
    ended = len(end_dead_runs(instance, holding=holding))
    if parent_run is not None:
        instance.add_run_tags(parent_run, {LOCK_TAG: holding})
    remove_old_boards(config, instance)
    # First, so that Dagster sees what the runs below read as older than what they make of it.
    recorded = record_what_the_store_holds(instance, State(config=config))
    for _ in range(_MOST_ROUNDS):
        state = State(config=config)
        current = plan if plan is not None else state.plan_until(until)
        plan = None
        if not current:
            return Refreshed(run_ids=run_ids, recorded=recorded, ended_runs=ended, failed_checks=failed_checks)
        check_servers(state, current, planned_judging(state, current))  # before days of training, not after
        run_id, failed = _run(instance, configuration, state, current, parent_run)
        run_ids.append(run_id)
        failed_checks += failed
    raise GateauError(
        f"After {_MOST_ROUNDS} runs there is still work. Something changes the input or the models all the time; "
        "`gateau plan` says what."
    )


def _run(
    instance: DagsterInstance, configuration: ConfigurationResource, state: State, whole: Plan, parent_run: str | None
) -> tuple[str, list[str]]:
    """One run of the stale assets over the range of stale partitions; those of the range that are current cost nothing.

    A run has partitions of one set: what reads no variant comes first, and is all that is run where there is any.

    Returns its id and the checks that failed in it.

    Raises:
        KeyboardInterrupt: it was interrupted from the terminal.
        GateauError: it failed; an UnforeseenError by a defect.
    """
    of_variants = state.pipeline.descendants(each.key for each in state.pipeline.assets if each.partitions == VARIANT)
    plan = whole.before(of_variants)
    tags = {PROCESS_TAG: process_tag(), LOCK_TAG: store_id(configuration.config)}
    tags[PLAN_TAG] = f"{len(plan.work)} assets"
    stale = {part for work in plan.work for part in work.partitions}
    found = [part for keys in partition_sets(state.config).values() for part in keys if part in stale]
    if found:
        tags |= {ASSET_PARTITION_RANGE_START_TAG: found[0], ASSET_PARTITION_RANGE_END_TAG: found[-1]}
    if parent_run is not None:
        tags["gateau/refresh"] = parent_run
    with (
        configured_environment(configuration),
        canceled_when_interrupted(instance, tags[PROCESS_TAG]),
        dg.execute_job(
            _job("variants" if plan.work[0].asset in of_variants else "everything"),
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
            raise failure_of(result)
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
        if not found.passed and found.partition is None:  # what is found of partitions stands in that of the whole
            facts = "; ".join(f"{name}: {value.value}" for name, value in found.metadata.items())
            lines.append(f"{found.asset_key.to_user_string()}: check {found.check_name} failed ({facts})")
    return lines


def _console(level: str) -> dict[str, object]:
    """What the run prints; started by `gateau run` it has a progress bar instead, and the UI has every line anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def _job(name: str) -> ReconstructableJob:
    """The job by name, so that the steps of a multi-process executor can load it."""
    repository = ReconstructableRepository.for_module("gateau_dagster.definitions", "defs")
    return repository.get_reconstructable_job(name)


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


def failure_of(result: dg.JobExecutionResult) -> GateauError:
    """The first step's failure, as its author put it; one that is not meant for users as the defect that it is."""
    failed = next((event for event in result.all_events if event.is_step_failure), None)
    if failed is None:
        return GateauError("the run failed before its first step; its log in the Dagster UI says why")
    data = failed.step_failure_data
    told = data.user_failure_data
    if told is not None and told.description:
        title = told.metadata.get(TITLE)
        return GateauError(f"{failed.step_key if title is None else title.value}: {told.description}")
    first = next(reversed(list(_causes(data.error))), None)
    if first is None:
        return UnforeseenError(f"{failed.step_key} failed without a word", kind="failure", trace="")
    if first.cls_name == "ChildProcessCrashException":  # of the multi-process executor: nothing was raised
        return GateauError(
            f"{failed.step_key}: its process was killed, often by the system for lack of memory. Run again: what was "
            "computed is kept."
        )
    assert data.error is not None
    message = first.message.strip().removeprefix(f"{first.cls_name}: ")
    return UnforeseenError(f"{failed.step_key}: {message}", kind=str(first.cls_name), trace=data.error.to_string())
