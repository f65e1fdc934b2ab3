"""What a run is to do about a plan, and why: the job, its assets and partitions, and the words for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg
from dagster import DagsterInstance, DagsterRun
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from assets.steps.event_log import PLAN_TAG
from assets.steps.many_partitions import has_many
from assets.steps.partitions import asset_key
from gateau_dagster.errors import gateau_command
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.pipeline import partition_sets
from gateau_dagster.pipeline.plan import Plan, Work
from gateau_dagster.pipeline.state import State

EVERYTHING = "everything"
VARIANTS = "variants"
_MOST_LINES = 40
_MOST_NAMED = 12  # partitions of a line


@dataclass(frozen=True, kw_only=True)
class WorkRun:
    """A run to be made.

    job: its name. tags: with the range of partitions. why: a line an asset.
    later_tags: the range where it is long, for a run that was made without it: else Dagster begins by writing down of
        each asset and partition of the range that it is planned, which takes as long as recording what is made.
    """

    job: str
    assets: Sequence[dg.AssetKey]
    why: str
    tags: Mapping[str, str] = field(default_factory=dict)
    later_tags: Mapping[str, str] = field(default_factory=dict)


def work_run(state: State, whole: Plan) -> WorkRun:
    """One run of the stale assets over the range of stale partitions; those of the range that are current cost nothing.

    A run has partitions of one set: what reads no variant comes first, and is all of it where there is any.
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
    """A run that was just made and does not work yet, with the tags that it was made without."""
    if not work.later_tags:
        return run
    instance.add_run_tags(run.run_id, dict(work.later_tags))
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def console_level(level: str) -> dict[str, object]:
    """The configuration of a run that prints lines from this level on; the UI has every line anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def _lines(state: State, plan: Plan) -> Iterator[str]:
    for work in plan.work[:_MOST_LINES]:
        yield f"{work.asset}: " + "; ".join(_reasons(work, state.asset(work.asset).partitions))
    if len(plan.work) > _MOST_LINES:
        yield f"and {len(plan.work) - _MOST_LINES} more; `{gateau_command('plan')}` names all"


def _reasons(work: Work, unit: str) -> Iterator[str]:
    """Each reason once, with the partitions that it holds for."""
    for reason in dict.fromkeys(work.reasons.values()):
        parts = sorted(part for part, why in work.reasons.items() if why == reason and part is not None)
        if not parts:
            yield reason
            continue
        more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        yield f"{unit}{'s' if len(parts) > 1 else ''} {', '.join(parts[:_MOST_NAMED])}{more} {reason}"
