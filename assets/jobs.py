"""Jobs: scoring, everything, and `refresh`, which brings exactly what is out of date up to date."""

import dagster as dg
from dagster import OpExecutionContext
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.checks import UP_TO_DATE
from assets.dead_runs import tag_with_process
from assets.event_log import asset_key
from assets.failures import readable_failure
from assets.refresh import refresh
from resources.configuration import ConfigurationResource

SCORING = "scoring"
EVERYTHING = "everything"
REFRESH = "refresh"
CHECK_UP_TO_DATE = "check_up_to_date"

# Families of assets that the job `scoring` makes.
_SCORED = {
    *("raw_long_sft", "perplexity", "cam", "combined_scores"),
    *("instruction_embedding", "pre_experience_mix", "pre_experienced", "homologous_mix", "homologous_model"),
}


def asset_jobs(assets: list[str]) -> list[UnresolvedAssetJobDefinition]:
    """The asset jobs, for launching chosen shards by hand."""
    scored = [asset for asset in assets if asset.split("/")[0] in _SCORED]
    looked_at = [dg.AssetCheckKey(asset_key(asset), UP_TO_DATE) for asset in assets]
    return [
        dg.define_asset_job(
            CHECK_UP_TO_DATE,
            selection=dg.AssetSelection.checks(*looked_at),
            description="Looks which tables are out of date, and names their changed shards; computes nothing.",
        ),
        dg.define_asset_job(
            SCORING,
            selection=dg.AssetSelection.assets(*map(asset_key, scored)),
            description="Raw samples, perplexities, CAM and combined scores of the chosen shards, and the models that "
            "the pipeline makes for them.",
        ),
        dg.define_asset_job(
            EVERYTHING,
            selection=dg.AssetSelection.assets(*map(asset_key, assets)),
            description="All assets, for the chosen shards, with those that the configuration does not need; the job "
            "`refresh` leaves these out.",
        ),
    ]


class RefreshConfig(dg.Config):
    """Options of `refresh`."""

    until: str = ""
    """Asset to stop at, such as selected_subset; empty for all."""


@dg.op(description="Compares what is stored with what is wanted, and runs the difference as one run of `everything`.")
def bring_up_to_date(context: OpExecutionContext, config: RefreshConfig, configuration: ConfigurationResource) -> None:
    """Runs what is out of date; does nothing, in seconds, when nothing is."""
    tag_with_process(context)
    with readable_failure(context):
        retries = configuration.config.execution.retries
    with readable_failure(context, retries):
        result = refresh(context.instance, configuration, until=config.until or None, parent_run=context.run_id)
    context.log.info(result.summary)


@dg.job(name=REFRESH, description="Brings exactly what is out of date up to date: one click, no partitions to choose.")
def refresh_job() -> None:
    """One op: the work itself is a run of `everything`, so that assets show their own state."""
    bring_up_to_date()
