"""Make the Dagster run for a part of a plan, find its job in the code location, and read its result."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg
from dagster import AssetCheckSeverity, DagsterEvent, DagsterEventType, DagsterInstance, DagsterRun
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository
from dagster._core.definitions.repository_definition.valid_definitions import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo

from assets.steps.event_log import PLAN_TAG
from assets.steps.failures import TITLE
from assets.steps.many_partitions import has_many
from assets.steps.partitions import asset_key
from gateau_dagster.errors import GateauError, UnforeseenError, gateau_command
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.pipeline import partition_sets
from gateau_dagster.pipeline.plan import Plan, Work
from gateau_dagster.pipeline.state import State

# The events that the functions below read.
TOLD_BY = {
    DagsterEventType.ASSET_CHECK_EVALUATION,
    DagsterEventType.STEP_FAILURE,
    DagsterEventType.RUN_FAILURE,
}


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
            facts = "; ".join(f"{name}: {value.value}" for name, value in found.metadata.items())
            lines.append(f"{found.asset_key.to_user_string()}: check {found.check_name} failed ({facts})")
    return lines


def failure_of(events: Iterable[DagsterEvent]) -> GateauError:
    """Return the first step's failure with its own message; a failure not meant for users as an UnforeseenError."""
    events = list(events)
    failed = next((event for event in events if event.is_step_failure), None)
    if failed is None:
        said = next((event.message for event in events if event.event_type is DagsterEventType.RUN_FAILURE), None)
        return GateauError(said or "the run failed before its first step; its log in the Dagster UI says why")
    data = failed.step_failure_data
    told = data.user_failure_data
    if told is not None and told.description:
        title = told.metadata.get(TITLE)
        return GateauError(f"{failed.step_key if title is None else title.value}: {told.description}")
    first = next(reversed(list(_causes(data.error))), None)
    if first is None:
        return UnforeseenError(f"{failed.step_key} failed without a word", kind="failure", trace="")
    if first.cls_name == "ChildProcessCrashException":  # the multi-process executor: nothing was raised
        return GateauError(
            f"{failed.step_key}: its process was killed, often by the system for lack of memory. Run again: what was "
            "computed is kept."
        )
    assert data.error is not None
    message = first.message.strip().removeprefix(f"{first.cls_name}: ")
    return UnforeseenError(f"{failed.step_key}: {message}", kind=str(first.cls_name), trace=data.error.to_string())


def _causes(error: SerializableErrorInfo | None) -> Iterator[SerializableErrorInfo]:
    while error is not None:
        yield error
        error = error.cause


# The same in workspace.yaml, in the workspace.yaml of `gateau dev` and in pyproject.toml. Dagster stores by this name
# which schedules and sensors are on.
LOCATION = "gateau_dagster"
MODULE, ATTRIBUTE = "gateau_dagster.definitions", "defs"


def job_of_location(name: str) -> ReconstructableJob:
    """Return the job by name, in a form that other processes, such as those of its steps, can load."""
    repository = ReconstructableRepository.for_module(MODULE, ATTRIBUTE)
    return repository.get_reconstructable_job(name)


def location_origin() -> RemoteRepositoryOrigin:
    """Return the origin that assigns a terminal run to this code location, for the timeline and re-execution."""
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=MODULE, attribute=ATTRIBUTE)
    return RemoteRepositoryOrigin(
        code_location_origin=ManagedGrpcPythonEnvCodeLocationOrigin(target, location_name=LOCATION),
        repository_name=SINGLETON_REPOSITORY_NAME,
    )


EVERYTHING = "everything"
VARIANTS = "variants"
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

    A run has partitions of one set only. Work that reads no variant comes first, and fills the run if there is any.
    """
    of_variants = state.pipeline.descendants(each.key for each in state.pipeline.assets if each.partitions == VARIANT)
    plan = whole.before(of_variants)
    tags = {PLAN_TAG: f"{len(plan.work)} assets"}
    stale = {part for work in plan.work for part in work.partitions}
    found = [part for keys in partition_sets(state.config).values() for part in keys if part in stale]
    ends = {ASSET_PARTITION_RANGE_START_TAG: found[0], ASSET_PARTITION_RANGE_END_TAG: found[-1]} if found else {}
    many = any(has_many(state.pipeline, work.asset) for work in plan.work)
    return WorkRun(
        job=VARIANTS if plan.work[0].asset in of_variants else EVERYTHING,
        assets=[asset_key(work.asset) for work in plan.work],
        why="\n".join(_lines(state, plan)),
        tags=tags if many else tags | ends,
        later_tags=ends if many else {},
    )


def completed(instance: DagsterInstance, run: DagsterRun, work: WorkRun) -> DagsterRun:
    """Return the created run, which has not started, with `later_tags` added."""
    if not work.later_tags:
        return run
    instance.add_run_tags(run.run_id, dict(work.later_tags))
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def console_level(level: str) -> dict[str, object]:
    """Return the run configuration that prints lines from this level on; the UI has every line anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


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
