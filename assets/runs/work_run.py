"""Choose what one Dagster run does of a plan: its job, assets, partitions and reasons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.assets.steps.partitions import asset_key, has_many, own_name
from gateau_dagster.config.synthesis import SYNTHETIC_SAMPLES
from gateau_dagster.errors import gateau_command
from gateau_dagster.pipeline.asset import DOCUMENTS, VARIANT
from gateau_dagster.pipeline.pipeline import partition_sets
from gateau_dagster.pipeline.plan import Plan, Work
from gateau_dagster.pipeline.state import State

EVERYTHING = "everything"
VARIANTS = "variants"
SYNTHESIS = "synthesis"
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

    A run has partitions of one set only. Work on synthetic samples comes first, then work that reads no variant.
    """
    of_variants = state.pipeline.descendants(each.key for each in state.pipeline.assets if each.partitions == VARIANT)
    of_documents = {each.key for each in state.pipeline.assets if each.partitions == DOCUMENTS}
    plan = whole.before(of_variants)
    if any(work.asset in of_documents for work in plan.work):
        plan = plan.until(SYNTHETIC_SAMPLES, state.pipeline.assets).before(of_documents)
    job = VARIANTS if plan.work[0].asset in of_variants else EVERYTHING
    job = SYNTHESIS if plan.work[0].asset in of_documents else job
    tags = {PLAN_TAG: f"{len(plan.work)} assets"}
    stale = {part for work in plan.work for part in work.partitions}
    found = [part for keys in partition_sets(state.config).values() for part in keys if part in stale]
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
