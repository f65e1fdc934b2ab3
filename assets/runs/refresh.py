"""Start runs of exactly the stale assets and shards, one after another, until nothing is stale."""

# Why plan, run and plan again: a run has partitions of one set only, so shards and variants need two. And whether a
# table downstream is stale may depend on the content of what a run made.
#
# Why one lease around all of it: between two of its runs, another run could otherwise begin on the same store.

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dagster import DagsterInstance, DagsterRun, RunsFilter

from gateau_dagster.assets.runs.history import remember_records
from gateau_dagster.assets.runs.instance import open_instance, open_log
from gateau_dagster.assets.runs.launching import (
    WORK_JOBS,
    require_queue,
    run_by_daemon,
    run_here,
    work_run,
)
from gateau_dagster.assets.steps.dead_runs import (
    LOCK_TAG,
    UNFINISHED,
    end_dead_runs,
    process_of,
    process_state,
)
from gateau_dagster.assets.steps.observations import record_what_the_store_holds
from gateau_dagster.assets.steps.progress import remove_old_boards
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.execution.row_checkpoints import FOLDER
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.observed import asks_hub, state_of
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.lease import store_id, store_lease

# A run can make work for another only if content decides (see stamp.By), and each asset does so at most once. Each
# round may take two runs: of shards, and of variants.
_MOST_ROUNDS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of `refresh`."""

    run_ids: list[str]
    recorded: int
    ended_runs: int
    failed_checks: list[str]

    @property
    def notes(self) -> list[str]:
        """Return notes on events beside the work, for the UI and the terminal."""
        notes = []
        if self.ended_runs:
            notes.append(f"Ended {plural(self.ended_runs, 'earlier run')} whose process had died.")
        if self.recorded:
            notes.append(f"Updated Dagster's records of {plural(self.recorded, 'unchanged output')}.")
        return notes

    @property
    def summary(self) -> str:
        """Return the summary for a log."""
        done = f"Done by run {', '.join(self.run_ids)}." if self.run_ids else "Everything is up to date."
        return " ".join([done, *self.notes, *(f"! {line}." for line in self.failed_checks)])


def run_refresh(config: Config, config_file: str, *, until: str | None, plan: Plan) -> Refreshed:
    """Run what is out of date on the configuration's own Dagster instance.

    `gateau run` calls this and holds the store's lease (`store_lease`).

    Raises:
        GateauError: a step failed.
    """
    configuration = ConfigurationResource(config_file=config_file)
    with open_instance(config) as instance, open_log(instance):
        result = _Refresh(instance, configuration, until).done(plan)
    remember_records(config)
    return result


def refresh(
    instance: DagsterInstance,
    configuration: ConfigurationResource,
    *,
    until: str | None = None,
    asking: DagsterRun | None = None,
    say: Callable[[str], None] = _log.info,
) -> Refreshed:
    """Take the store's lease, and run what is missing or changed, until nothing is.

    Args:
        until: the asset to stop at; None for all.
        asking: the run that asks for it. The daemon launches the work in its code location. Without such a run or
            location (`dagster job execute`), the work runs in this process.
        say: receives messages about waiting.

    Raises:
        GateauError: a run failed (the message is the first failure), another run has the store, or judging would exceed
            its budget.
    """
    if asking is not None and asking.remote_job_origin is not None:
        require_queue(instance)
    with store_lease(configuration.config, configuration.config_file, exclusive=True, say=say):
        return _Refresh(instance, configuration, until, asking, say).done()


def _remove_saved_rows(state: State) -> None:
    """Remove the saved rows of tables that are made: a kill may have come between the table and their removal."""
    for asset in state.pipeline.assets:
        for shard in state.store.files.names(f"{FOLDER}/{asset.key}") if asset.table is not None else ():
            stamp = state.stamp(asset.key, shard) if shard in state.shards else None
            if stamp is not None and asset.is_current(stamp, state.wanted_stamp(asset.key, shard).fingerprint):
                state.store.files.remove(f"{FOLDER}/{asset.key}/{shard}")


class _Refresh:
    """A refresh; the caller holds the store's lease."""

    def __init__(
        self,
        instance: DagsterInstance,
        configuration: ConfigurationResource,
        until: str | None,
        asking: DagsterRun | None = None,
        say: Callable[[str], None] = _log.info,
    ) -> None:
        self._instance, self._configuration, self._until = instance, configuration, until
        self._asking, self._say = asking, say
        self._lock = store_id(configuration.config)

    def done(self, plan: Plan | None = None) -> Refreshed:
        """Run the refresh to its end. `plan`: the first plan, if the caller has one already."""
        config = self._configuration.config
        run_ids: list[str] = []
        failed_checks: list[str] = []
        ended = self._after_earlier_runs()
        remove_old_boards(config, self._instance)
        if ended:
            _remove_saved_rows(state_of(config=config))
        # This comes first, so that Dagster sees inputs as older than what the runs below make of them.
        recorded = record_what_the_store_holds(self._instance, state_of(config=config))
        for _ in range(_MOST_ROUNDS):
            state = state_of(config=config, asks_hub=not run_ids and asks_hub(config, self._until))
            current = plan if plan is not None else checked_plan(state, self._until)
            plan = None
            if not current:
                if run_ids:  # what a changed setting has made no different is not out of date
                    record_what_the_store_holds(self._instance, state)
                return Refreshed(run_ids=run_ids, recorded=recorded, ended_runs=ended, failed_checks=failed_checks)
            # This comes before days of training, not after. The cost of requests is known better after each run.
            for name in ("check_plan",) if run_ids else ("check_start", "check_plan"):
                for check in hooks("forecast", name):
                    check(state, current)
            work = work_run(state, current)
            if self._asking is not None and self._asking.remote_job_origin is not None:
                outcome = run_by_daemon(self._instance, self._asking, work, self._lock, self._say)
            else:
                outcome = run_here(self._instance, self._configuration, self._asking, work, self._lock)
            run_ids.append(outcome.run_id)
            failed_checks += outcome.failed_checks
        raise GateauError(
            "run.never_done",
            f"After {_MOST_ROUNDS} runs, some assets are still out of date. Something keeps changing the input or the "
            f"models: `{gateau_command('plan')}` shows what.",
        )

    def _after_earlier_runs(self) -> int:
        """End the runs whose process is gone, and return their number.

        Raises:
            GateauError: a run of an earlier refresh is still at work.
        """
        ended = end_dead_runs(self._instance, holding=self._lock)
        for run in self._instance.get_runs(RunsFilter(statuses=UNFINISHED, tags={LOCK_TAG: self._lock})):
            job = run.job_name.split("__")[-1]  # of any pipeline of a code location
            process = process_of(self._instance, run) if job in WORK_JOBS else None
            if process is not None and process_state(process) == "alive":
                raise GateauError(
                    "storage.lease_held",
                    f"the run {run.run_id} of {run.job_name} is at work on {self._configuration.config.located_root}. "
                    "Wait until it ends, or terminate it: all its computed results are kept",
                )
        if self._asking is not None:
            self._instance.add_run_tags(self._asking.run_id, {LOCK_TAG: self._lock})
        return len(ended)
