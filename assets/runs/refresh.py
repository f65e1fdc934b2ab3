"""Start runs of exactly the stale assets and shards, one after another, until nothing is stale."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.api import execute_run
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.tags import MAX_RETRIES_TAG
from dagster._core.utils import make_new_run_id
from sqlalchemy import Connection, Engine, StaticPool, create_engine
from sqlalchemy.event import listens_for

from assets.runs.instance import open_instance
from assets.runs.launched_run import require_queue, run_by_daemon
from assets.runs.work_run import (
    EVERYTHING,
    VARIANTS,
    RunOutcome,
    WorkRun,
    completed,
    console_level,
    failed_checks_of,
    failure_of,
    interrupted,
    job_of_location,
    location_origin,
    work_run,
)
from assets.steps.dead_runs import (
    LOCK_TAG,
    PROCESS_TAG,
    UNFINISHED,
    end_dead_runs,
    process_of,
    process_state,
    process_tag,
)
from assets.steps.event_log import record_what_the_store_holds
from assets.steps.progress import remove_old_boards
from assets.steps.termination import is_to_end
from gateau_dagster.config import Config
from gateau_dagster.errors import ENVIRONMENT_VARIABLE, GateauError, gateau_command
from gateau_dagster.estimate.judging import planned_judging
from gateau_dagster.estimate.questions import check_questions
from gateau_dagster.estimate.servers import check_servers
from gateau_dagster.execution.ending import ENDING, at_end, at_request
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from resources.configuration import ConfigurationResource
from resources.locks.lease import store_id, store_lease


@contextmanager
def open_log(instance: DagsterInstance) -> Iterator[None]:
    """Keep each file that this instance's SQLite event log writes open within the block; ignore other storages."""
    log = instance.event_log_storage
    if not isinstance(log, SqliteEventLogStorage):
        yield
        return
    files = _Files(log)
    log._connect, log.has_table = files.connection, files.has_table
    try:
        yield
    finally:
        del log._connect, log.has_table
        files.close()


class _Files:
    """The open files by the name of their run; `index` is the file of all runs."""

    def __init__(self, log: SqliteEventLogStorage) -> None:
        self._log = log
        self._engines: dict[str, Engine] = {}
        self._has_table, self._tables = log.has_table, set[str]()

    def has_table(self, table_name: str) -> bool:
        """Replace `SqliteEventLogStorage.has_table`, and remember a table that exists."""
        if table_name not in self._tables and self._has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    @contextmanager
    def connection(self, shard: str) -> Iterator[Connection]:
        """Replace `SqliteEventLogStorage._connect`: yield a transaction, one at a time."""
        log = self._log
        with log._db_lock:
            engine = self._engine(shard)
            if shard not in log._initialized_dbs:
                log._initdb(engine)
                log._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine(self, shard: str) -> Engine:
        # SQLite would silently go on writing into a file that somebody has removed.
        if shard in self._engines and not Path(self._log.path_for_shard(shard)).exists():
            self._engines.pop(shard).dispose()
        if shard not in self._engines:
            engine = self._engines[shard] = create_engine(
                self._log.conn_string_for_shard(shard),
                poolclass=StaticPool,
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            )
            listens_for(engine, "connect")(_wait_for_no_disk)
        return self._engines[shard]

    def close(self) -> None:
        with self._log._db_lock:
            for engine in self._engines.values():
                engine.dispose()


def _wait_for_no_disk(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")


_ENDED_WELL = {DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED}


@contextmanager
def canceled_when_interrupted(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Record the run as canceled if the block is interrupted, even if Dagster records it as failed."""

    def canceling() -> None:
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished and run.status is not DagsterRunStatus.CANCELING:
            instance.report_run_canceling(run, "Interrupted.")

    def canceled() -> None:
        run = instance.get_run_by_id(run_id)
        if run is not None:
            record_canceled(instance, run)

    with at_request(canceling), at_end(canceled, "its end is not on record in Dagster"):
        yield


def record_canceled(instance: DagsterInstance, run: DagsterRun) -> None:
    """Record the end of a run, unless it succeeded or was canceled, and free its pool slots.

    Dagster itself frees no slots for an interrupted step of another process.
    """
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    if run.status not in _ENDED_WELL:
        instance.report_run_canceled(run, "Interrupted. What was computed is kept.")


_SECONDS_BETWEEN_LOOKS = 2.0


def run_here(
    instance: DagsterInstance, configuration: ConfigurationResource, work: WorkRun, tags: Mapping[str, str], level: str
) -> RunOutcome:
    """Make the run and execute it in this process. `level`: of printed lines; the UI has every line anyway.

    Raises:
        KeyboardInterrupt: it was interrupted from the terminal, or terminated in the UI.
        GateauError: it failed; an UnforeseenError by a defect.
    """
    run_id = make_new_run_id()
    with _configured_environment(configuration), canceled_when_interrupted(instance, run_id):
        job = job_of_location(work.job)
        run = instance.create_run_for_job(
            job.get_definition(),
            run_id=run_id,
            run_config=console_level(level),
            status=DagsterRunStatus.NOT_STARTED,
            tags={**work.tags, **tags, PROCESS_TAG: process_tag()},
            asset_selection=frozenset(work.assets),
            remote_job_origin=location_origin().get_job_origin(work.job),
            job_code_origin=job.get_python_origin(),
        )
        run = completed(instance, run, work)
        with _ended_on_request(instance, run_id), execute_run(job, run, instance) as result:
            if not result.success and interrupted(result.all_events):
                record_canceled(instance, result.dagster_run)
                raise KeyboardInterrupt
            if not result.success:
                raise failure_of(result.all_events)
            return RunOutcome(run_id=run_id, failed_checks=failed_checks_of(result.all_events))


@contextmanager
def _ended_on_request(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Watch the run's status, so that termination in the UI reaches a process that the UI did not start."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if not is_to_end(instance, run_id):
                continue
            if not ENDING.requested.is_set():  # otherwise Ctrl-C has set the status
                os.kill(os.getpid(), signal.SIGINT)
            return

    thread = threading.Thread(target=look, daemon=True, name="termination-watch")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _configured_environment(configuration: ConfigurationResource) -> Iterator[None]:
    """Set the configuration file in the environment, where the definitions read it when loaded by name."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = configuration.config_file
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before


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
            notes.append(f"Ended {self.ended_runs} earlier run(s) whose process was gone.")
        if self.recorded:
            notes.append(f"Recorded {self.recorded} output(s) of the store that Dagster did not know of.")
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
        return _Refresh(instance, configuration, until).done(plan)


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
        # This comes first, so that Dagster sees inputs as older than what the runs below make of them.
        recorded = record_what_the_store_holds(self._instance, State(config=config))
        for _ in range(_MOST_ROUNDS):
            state = State(config=config)
            current = plan if plan is not None else state.plan_until(self._until)
            plan = None
            if not current:
                return Refreshed(run_ids=run_ids, recorded=recorded, ended_runs=ended, failed_checks=failed_checks)
            if not run_ids:
                check_questions(state, current)
            check_servers(state, current, planned_judging(state, current))  # before days of training, not after
            outcome = self._run(work_run(state, current))
            run_ids.append(outcome.run_id)
            failed_checks += outcome.failed_checks
        raise GateauError(
            f"After {_MOST_ROUNDS} runs there is still work. Something changes the input or the models all the time; "
            f"`{gateau_command('plan')}` says what."
        )

    def _run(self, work: WorkRun) -> RunOutcome:
        # The asking run receives the failure. Dagster's `run_retries` would start another run that nobody waits for. It
        # may retry `refresh`, which finds the remaining work.
        tags = {LOCK_TAG: self._lock, MAX_RETRIES_TAG: "0"}
        if self._asking is not None and self._asking.remote_job_origin is not None:
            return run_by_daemon(self._instance, self._asking, work, tags, self._say)
        level = "CRITICAL" if self._asking is None else "INFO"  # `gateau run` has a progress bar
        return run_here(self._instance, self._configuration, work, tags, level)

    def _after_earlier_runs(self) -> int:
        """End the runs whose process is gone, and return their number.

        Raises:
            GateauError: a run of an earlier refresh is still at work.
        """
        ended = end_dead_runs(self._instance, holding=self._lock)
        for run in self._instance.get_runs(RunsFilter(statuses=UNFINISHED, tags={LOCK_TAG: self._lock})):
            process = process_of(self._instance, run) if run.job_name in {EVERYTHING, VARIANTS} else None
            if process is not None and process_state(process) == "alive":
                raise GateauError(
                    f"the run {run.run_id} of {run.job_name} is at work on {self._configuration.config.located_root}. "
                    "Wait for it to end, or terminate it: what it has computed is kept"
                )
        if self._asking is not None:
            self._instance.add_run_tags(self._asking.run_id, {LOCK_TAG: self._lock})
        return len(ended)
