"""Choose what a run does of a plan, launch it here or through the daemon, follow it, and read its result."""

# Why one run over a range, and no backfill: a backfill needs the daemon, and starts a run for each group of shards.
# Each run has a process and loads the model. A range may contain current shards, but the steps skip them.

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg
from dagster import (
    AssetCheckSeverity,
    DagsterEvent,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    QueuedRunCoordinator,
)

# A terminal run needs the origin of its code location, without which the UI can neither show it on the timeline nor
# execute it again, and an id before it starts, by which a kill is found. `dg.execute_job` takes neither.
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.events import EngineEventData
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.hosted_user_process import recon_repository_from_origin
from dagster_shared.error import SerializableErrorInfo

from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, PROCESS_TAG, process_tag
from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.assets.steps.failures import CODE, TITLE
from gateau_dagster.assets.steps.partitions import asset_key, has_many, own_name
from gateau_dagster.assets.steps.step import is_to_end
from gateau_dagster.errors import GateauError, UnforeseenError, gateau_command
from gateau_dagster.execution.interruption import ENDING, at_end, at_request
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.plan import Plan, Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.resources.configuration import ConfigurationResource

EVERYTHING = "everything"
VARIANTS = "variants"
FEATURE_SETS = {each.name: each for feature in features() for each in feature.partition_sets}
"""The partition sets of features, by their names."""
WORK_JOBS = frozenset({EVERYTHING, VARIANTS, *(each.job for each in FEATURE_SETS.values())})
"""The jobs that make stale assets."""
# Dagster's documented tags of a run over a range of partitions.
_RANGE_START, _RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_MOST_LINES = 40
_MOST_NAMED = 12  # partitions in one line


@dataclass(frozen=True, kw_only=True)
class WorkRun:
    """A run to be made.

    job: its name. tags: these include the range of partitions. why: one line per asset.
    later_tags: the range if it is long, added after creation. Dagster would otherwise first write a "planned" event per
    asset and partition, which takes as long as recording the results.
    """

    job: str
    assets: Sequence[dg.AssetKey]
    why: str
    tags: Mapping[str, str] = field(default_factory=dict)
    later_tags: Mapping[str, str] = field(default_factory=dict)


def work_run(state: State, whole: Plan) -> WorkRun:
    """Return one run of the stale assets over the range of stale partitions; current ones in it cost nothing.

    A run has partitions of one set only. Work on sets of features comes first, then work that reads no variant.
    """
    of_variants = state.pipeline.descendants(each.key for each in state.pipeline.assets if each.partitions == VARIANT)
    plan = whole.before(of_variants)
    job = VARIANTS if plan.work[0].asset in of_variants else EVERYTHING
    for each in FEATURE_SETS.values():
        own = {asset.key for asset in state.pipeline.assets if asset.partitions == each.name}
        if any(work.asset in own for work in plan.work):
            needed = state.pipeline.ancestors(own)
            plan = Plan(work=[work for work in plan.work if work.asset in needed]).before(own)
            job = each.job if plan.work[0].asset in own else EVERYTHING
            break
    last, others = plan.work[-1].asset, len(plan.work) - 1
    tags = {PLAN_TAG: f"{last}, after {plural(others, 'other asset')}" if others else last}
    stale = {part for work in plan.work for part in work.partitions}
    found = [part for keys in state.pipeline.partition_sets.values() for part in keys if part in stale]
    ends = {_RANGE_START: found[0], _RANGE_END: found[-1]} if found else {}
    many = any(has_many(state.pipeline, work.asset) for work in plan.work)
    return WorkRun(
        job=own_name(state.config, job),
        assets=[asset_key(state.config, work.asset) for work in plan.work],
        why="\n".join(_lines(state, plan)),
        tags=tags if many else tags | ends,
        later_tags=ends if many else {},
    )


def _lines(state: State, plan: Plan) -> Iterator[str]:
    for work in plan.work[:_MOST_LINES]:
        yield f"{work.asset}: " + "; ".join(_reasons(work, state.asset(work.asset).partitions))
    if len(plan.work) > _MOST_LINES:
        yield f"and {len(plan.work) - _MOST_LINES} more; `{gateau_command('plan')}` names all"


def _reasons(work: Work, unit: str) -> Iterator[str]:
    """Yield each reason once, with its partitions."""
    for reason in dict.fromkeys(work.reasons.values()):
        parts = sorted(part for part, why in work.reasons.items() if why == reason and part is not None)
        if not parts:
            yield reason
            continue
        more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        yield f"{unit}{'s' if len(parts) > 1 else ''} {', '.join(parts[:_MOST_NAMED])}{more} {reason}"


# The same in workspace.yaml, in the workspace.yaml of `gateau dev` and in pyproject.toml. Dagster stores by this name
# which schedules and sensors are on.
LOCATION = "gateau_dagster"
MODULE, ATTRIBUTE = "gateau_dagster.definitions", "defs"


def location_origin() -> RemoteRepositoryOrigin:
    """Return the origin that assigns a terminal run to this code location, for the timeline and re-execution."""
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=MODULE, attribute=ATTRIBUTE)
    return RemoteRepositoryOrigin(
        code_location_origin=ManagedGrpcPythonEnvCodeLocationOrigin(target, location_name=LOCATION),
        repository_name="__repository__",  # Dagster's name of a module's only one
    )


def location_of(asking: DagsterRun | None) -> tuple[ReconstructableRepository, RemoteRepositoryOrigin | None]:
    """Return the code location of the run that asks for another one, in a form that other processes can load.

    It is this project's own, or one with a component. The origin is None for a run of Dagster's command line there.
    """
    code = None if asking is None else asking.job_code_origin
    remote = None if asking is None else asking.remote_job_origin
    if code is None or getattr(code.repository_origin.code_pointer, "module", None) == MODULE:
        repository, origin = ReconstructableRepository.for_module(MODULE, ATTRIBUTE), location_origin()
    else:
        repository, origin = recon_repository_from_origin(code.repository_origin), None
    return repository, origin if remote is None else remote.repository_origin


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The result of a successful run."""

    run_id: str
    failed_checks: list[str] = field(default_factory=list)


def interrupted(events: Iterable[DagsterEvent]) -> bool:
    """Return whether the run was interrupted, which Dagster records as the failure of the running step."""
    failures = [event.step_failure_data.error for event in events if event.is_step_failure]
    names = {link.cls_name for error in failures for link in _causes(error)}
    return "DagsterExecutionInterruptedError" in names


def failed_checks_of(events: Iterable[DagsterEvent], *, as_errors: bool = False) -> list[str]:
    """Return a line per failed check, for the caller to report, since the run itself succeeds.

    as_errors: leave out checks that only warn.
    """
    lines = []
    for event in events:
        if event.event_type is not DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        found = event.asset_check_evaluation_data
        counts = not as_errors or found.severity is AssetCheckSeverity.ERROR
        if counts and not found.passed and found.partition is None:  # the result of the whole includes the partitions
            lines.append(
                f"{found.asset_key.to_user_string()}: check {found.check_name} failed ({told(found.metadata)})"
            )
    return lines


def told(metadata: Mapping[str, dg.MetadataValue]) -> str:
    """Return a check's metadata in a line: a summary, which says what the numbers mean, in their place."""
    facts: dict[str, object] = {name: value.value for name, value in metadata.items()}
    if "summary" in facts:
        facts = {name: fact for name, fact in facts.items() if isinstance(fact, str)}
    return "; ".join(f"{name}: {fact}" if name != "summary" else f"{fact}" for name, fact in facts.items())


def failure_of(events: Iterable[DagsterEvent]) -> GateauError:
    """Return the first step's failure with its own message; a failure not meant for users as an UnforeseenError."""
    events = list(events)
    failed = next((event for event in events if event.is_step_failure), None)
    if failed is None:
        said = next((event.message for event in events if event.event_type is DagsterEventType.RUN_FAILURE), None)
        nothing = "the run failed before its first step. The Dagster UI shows its log."
        return GateauError("gateau.run_failed", said or nothing)
    data = failed.step_failure_data
    told = data.user_failure_data
    if told is not None and told.description:
        title, code = told.metadata.get(TITLE), told.metadata.get(CODE)
        code = "gateau.run_failed" if code is None else str(code.value)
        return GateauError(code, f"{failed.step_key if title is None else title.value}: {told.description}")
    first = next(reversed(list(_causes(data.error))), None)
    if first is None:
        return UnforeseenError(f"{failed.step_key} failed without a message", kind="failure", trace="")
    if first.cls_name == "ChildProcessCrashException":  # the multi-process executor: nothing was raised
        return GateauError(
            "machine.killed",
            f"{failed.step_key}: its process was killed, often by the system for lack of memory. Run again: all "
            "computed results are kept.",
        )
    assert data.error is not None
    message = first.message.strip().removeprefix(f"{first.cls_name}: ")
    return UnforeseenError(f"{failed.step_key}: {message}", kind=str(first.cls_name), trace=data.error.to_string())


def _causes(error: SerializableErrorInfo | None) -> Iterator[SerializableErrorInfo]:
    while error is not None:
        yield error
        error = error.cause


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

    with at_request(canceling), at_end(canceled, "Dagster has no record of its end"):
        yield


def record_canceled(instance: DagsterInstance, run: DagsterRun) -> None:
    """Record the end of a run, unless it succeeded or was canceled, and free its pool slots.

    Dagster itself frees no slots for an interrupted step of another process.
    """
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    if run.status not in _ENDED_WELL:
        instance.report_run_canceled(run, "Interrupted. All computed results are kept.")


_SECONDS_BETWEEN_STATUS = 2.0


def run_here(
    instance: DagsterInstance,
    configuration: ConfigurationResource,
    asking: DagsterRun | None,
    work: WorkRun,
    lock: str,
) -> RunOutcome:
    """Make the run and execute it in this process. `lock`: the id of the store, which the caller holds.

    Raises:
        KeyboardInterrupt: it was interrupted from the terminal, or terminated in the UI.
        GateauError: the run failed; an UnforeseenError if the cause is a defect.
    """
    run_id = str(uuid.uuid4())
    with configuration.in_environment(), canceled_when_interrupted(instance, run_id):
        job, run = _made(instance, asking, work, run_id, {LOCK_TAG: lock})
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
        while not over.wait(_SECONDS_BETWEEN_STATUS):
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


# Tag of a launched run: the run that asked for it.
ASKED_BY_TAG = "gateau/refresh"
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_IN_THE_QUEUE = 60.0
_SECONDS_TO_END = 120.0
_SECONDS_BETWEEN_REQUESTS = 5.0


def run_by_daemon(
    instance: DagsterInstance,
    asking: DagsterRun,
    work: WorkRun,
    lock: str,
    say: Callable[[str], None],
) -> RunOutcome:
    """Submit the run to the queue, and return when it has ended. It ends with the run that asks for it.

    Raises:
        GateauError: the run failed, or it was terminated, which cancels the asking run, too.
    """
    run_id = str(uuid.uuid4())
    try:
        _, run = _made(instance, asking, work, run_id, {LOCK_TAG: lock, ASKED_BY_TAG: asking.run_id})
        _tell(instance, asking, work, f"Launches a run of {work.job}, which computes them.", run_id)
        _tell(instance, run, work, "Launched by a run of refresh, which follows this one.", asking.run_id)
        instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run_id)
        ended = _followed(instance, run_id, say)
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        _end(instance, run_id)
        raise
    return _outcome(instance, asking, ended)


def require_queue(instance: DagsterInstance) -> None:
    """Raise GateauError if Dagster's settings would make a run that waits for another one wait forever."""
    coordinator, queue = instance.run_coordinator, instance.get_concurrency_config().run_queue_config
    if not isinstance(coordinator, QueuedRunCoordinator):
        wrong = f"run_coordinator: {type(coordinator).__name__} keeps no queue from which the daemon launches runs"
    elif queue is not None and queue.max_concurrent_runs in {0, 1}:
        wrong = f"max_concurrent_runs: {queue.max_concurrent_runs}: `refresh` waits for the run that it launches"
    else:
        return
    raise GateauError(
        "dagster.queue",
        f"dagster.yaml: {wrong}. Keep Dagster's default coordinator with at least 2 concurrent runs, or launch "
        "`everything` yourself.",
    )


def _tell(instance: DagsterInstance, run: DagsterRun, work: WorkRun, message: str, other: str) -> None:
    # Two events, since the page folds long ones, and the link would be in the folded part.
    instance.report_engine_event(f"Out of date:\n{work.why}", run)
    link = {"run": dg.MetadataValue.dagster_run(other)}
    instance.report_engine_event(message, run, EngineEventData(link))


def _made(
    instance: DagsterInstance, asking: DagsterRun | None, work: WorkRun, run_id: str, tags: Mapping[str, str]
) -> tuple[ReconstructableJob, DagsterRun]:
    """Create the run, not started and not queued, with the process that made it; return it with its job."""
    repository, origin = location_of(asking)
    job = repository.get_reconstructable_job(work.job)
    level = "CRITICAL" if asking is None else "INFO"  # fewer lines are printed, since `gateau run` has a progress bar
    # The asking run receives the failure. Dagster's `run_retries` would start another run that nobody waits for. It may
    # retry `refresh`, which finds the remaining work.
    own_tags = {PROCESS_TAG: process_tag(), "dagster/max_retries": "0"}
    run = instance.create_run_for_job(
        job.get_definition(),
        run_id=run_id,
        run_config={"loggers": {"console": {"config": {"log_level": level}}}},
        status=DagsterRunStatus.NOT_STARTED,
        tags={**work.tags, **tags, **own_tags},
        asset_selection=frozenset(work.assets),
        remote_job_origin=None if origin is None else origin.get_job_origin(work.job),
        job_code_origin=job.get_python_origin(),
    )
    if work.later_tags:
        instance.add_run_tags(run_id, dict(work.later_tags))
        tagged = instance.get_run_by_id(run_id)
        assert tagged is not None
        return job, tagged
    return job, run


def _followed(instance: DagsterInstance, run_id: str, say: Callable[[str], None]) -> DagsterRun:
    waits_since = time.monotonic()
    while True:
        run = instance.get_run_by_id(run_id)
        if run is None:
            raise GateauError("dagster.deleted_run", f"the run {run_id}, which did the work, was deleted. Run again")
        if run.is_finished:
            return run
        if run.status is DagsterRunStatus.QUEUED and time.monotonic() - waits_since > _SECONDS_IN_THE_QUEUE:
            say(f"The run {run_id} waits in the queue for other runs, or for Dagster's daemon, which launches it.")
            waits_since = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _outcome(instance: DagsterInstance, asking: DagsterRun, run: DagsterRun) -> RunOutcome:
    """Return the result of the run; raise GateauError if it did not succeed."""
    if run.status is DagsterRunStatus.CANCELED:
        instance.report_run_canceling(asking, f"The run {run.run_id}, which did the work, was terminated.")
        raise GateauError("run.terminated", f"The run {run.run_id} was terminated. All its computed results are kept.")
    kinds = DagsterEventType
    read = {kinds.ASSET_CHECK_EVALUATION, kinds.STEP_FAILURE, kinds.RUN_FAILURE}
    events = [entry.get_dagster_event() for entry in instance.all_logs(run.run_id, of_type=read)]
    if run.status is not DagsterRunStatus.SUCCESS:
        raise failure_of(events)
    return RunOutcome(run_id=run.run_id, failed_checks=failed_checks_of(events))


def _end(instance: DagsterInstance, run_id: str) -> None:
    """Terminate the run, if it exists, and wait up to two minutes: until then its steps hold the store."""
    deadline, asked = time.monotonic() + _SECONDS_TO_END, float("-inf")
    while time.monotonic() < deadline:
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if time.monotonic() - asked >= _SECONDS_BETWEEN_REQUESTS:  # a starting run misses the first request
            if run.status is DagsterRunStatus.NOT_STARTED:
                instance.report_run_canceled(run)
            else:
                instance.run_coordinator.cancel_run(run_id)
            asked = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS / 4)
