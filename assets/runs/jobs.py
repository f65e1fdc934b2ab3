"""Define the jobs: scoring, everything, and `refresh`, which rebuilds exactly what is out of date."""

from typing import TypeAlias

import dagster as dg
from dagster import OpExecutionContext

# The type that `dg.define_asset_job` returns; Dagster exports no name for it.
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from gateau_dagster.assets.runs.launching import EVERYTHING, FEATURE_SETS, VARIANTS
from gateau_dagster.assets.runs.refresh import refresh
from gateau_dagster.assets.steps.dead_runs import tag_with_process
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.assets.steps.partitions import asset_key, own_name, own_options, own_resource
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import UP_TO_DATE, VARIANT
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.selection_reads import PRESETS_TABLE
from gateau_dagster.scoring.pair_tables import CAM, perplexity_asset
from gateau_dagster.storage.stamp import fingerprint

Job: TypeAlias = dg.JobDefinition | UnresolvedAssetJobDefinition
SCORING = "scoring"
REFRESH = "refresh"
CHECK_UP_TO_DATE = "check_up_to_date"
RAW = "raw_long_sft"


def executor_of(config: Config) -> dg.ExecutorDefinition:
    """Return the configured executor."""
    if config.execution.executor == "in_process":
        return dg.in_process_executor
    return dg.multiprocess_executor.configured({"max_concurrent": config.execution.max_concurrent})


def asset_jobs(config: Config) -> list[UnresolvedAssetJobDefinition]:
    """Return the asset jobs, for launching chosen shards by hand.

    Variants, and each partition set of a feature, have separate jobs: a run has partitions of one set only.
    """
    pipeline, executor = pipeline_of(config), executor_of(config)
    assets = list(pipeline.by_key)
    of_variants = pipeline.descendants(asset.key for asset in pipeline.assets if asset.partitions == VARIANT)
    of_features = {
        each.job: ({asset.key for asset in pipeline.assets if asset.partitions == name}, each.description)
        for name, each in FEATURE_SETS.items()
    }
    scores = [key for key in assets if key in {PRESETS_TABLE, CAM} or key.startswith(perplexity_asset(""))]
    jobs = {
        SCORING: (
            pipeline.ancestors([RAW, *scores]),
            "Computes raw samples, perplexities, CAM and combined scores of the chosen shards, and the models made for "
            "them.",
        ),
        EVERYTHING: (
            {*assets}.difference(of_variants, *(keys for keys, _ in of_features.values())),
            "Computes all assets for the chosen shards, including those that the configuration does not need and "
            "`refresh` skips. The job `variants` compares the variants.",
        ),
        VARIANTS: (
            of_variants,
            "Computes the samples, models, answers and scores of the chosen variants, and their comparison.",
        ),
        **of_features,
    }
    looked_at = [dg.AssetCheckKey(asset_key(config, asset), UP_TO_DATE) for asset in assets]
    return [
        dg.define_asset_job(
            own_name(config, CHECK_UP_TO_DATE),
            selection=dg.AssetSelection.checks(*looked_at),
            executor_def=executor,
            description="Checks which tables are out of date and names their changed shards. Computes nothing.",
        ),
        *(
            dg.define_asset_job(
                own_name(config, name),
                selection=dg.AssetSelection.assets(*(asset_key(config, key) for key in assets if key in keys)),
                executor_def=executor,
                description=description,
            )
            for name, (keys, description) in jobs.items()
            if keys
        ),
    ]


_ALL = "all"


def refresh_job(project: Config) -> dg.JobDefinition:
    """Return the job `refresh`: one op in the run's own process, since it mostly waits.

    Its launchpad offers `until` alone. Dagster's own options for resources, loggers and executors change nothing here.
    """
    assets = [dg.EnumValue(asset.key, description=asset.summary) for asset in pipeline_of(project).assets]
    # Dagster identifies a type by its name, so the choices of two projects need two names.
    enum_name = f"Until_{fingerprint({'assets': [choice.config_value for choice in assets]})[:8]}"
    choices = dg.Enum(enum_name, [dg.EnumValue(_ALL, description="Every asset that the configuration needs."), *assets])
    until = dg.Field(choices, default_value=_ALL, description="The last asset to bring up to date, with its upstreams.")

    @dg.op(
        **own_options(project, "bring_up_to_date", "configuration"),
        description="Compares the store with the configuration, launches a run of the outdated assets and follows it.",
        config_schema=str,
    )
    def bring_up_to_date(context: OpExecutionContext) -> None:
        tag_with_process(context)
        context.log.info("Compares the store with the configuration.")
        configuration = own_resource(context, project, "configuration")
        with readable_failure(context):
            retries = configuration.config.execution.retries
        with readable_failure(context, retries):
            until = None if context.op_config == _ALL else context.op_config
            result = refresh(context.instance, configuration, until=until, asking=context.run, say=context.log.info)
        context.log.info(result.summary)

    @dg.job(
        name=own_name(project, REFRESH),
        description="Refreshes exactly the outdated assets with one click and no choice of partitions. It launches and "
        "follows one or more runs of `everything`. If it is terminated, it ends them.",
        executor_def=dg.in_process_executor,
        config=dg.ConfigMapping(
            config_fn=lambda given: {"ops": {bring_up_to_date.name: {"config": given["until"]}}},
            config_schema={"until": until},
        ),
    )
    def job() -> None:
        bring_up_to_date()

    return job
