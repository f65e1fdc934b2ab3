"""The Dagster code location: composes assets, checks, jobs, automation and resources. The only file here that may."""

import os
from functools import partial
from pathlib import Path

import dagster as dg

from assets.automation import dead_runs_sensor, nightly, out_of_date_sensor
from assets.checks import asset_checks
from assets.comparison import comparison_asset
from assets.evaluation import heldout_asset, needle_asset
from assets.event_log import asset_key
from assets.instance import open_instance, prepare_home
from assets.jobs import asset_jobs, refresh_job
from assets.made_models import made_model_assets
from assets.methods import method_scores_asset, sample_table_asset
from assets.raw_long_sft import raw_long_sft_asset
from assets.refresh import Refreshed, refresh, wanted_work
from assets.report import report_asset
from assets.scoring import THETA_B, perplexity_asset, theta_b_assets
from assets.selection import combined_scores_asset, selected_subset_asset
from assets.short_chat_mix import short_chat_mix_asset
from assets.training import checkpoint_asset, training_mix_asset
from gateau_dagster.config import Config
from gateau_dagster.config.load import ENVIRONMENT_VARIABLE
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.required_assets import required_assets
from gateau_dagster.pipeline.selection_nodes import compared_methods, has_comparison
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource
from resources.project import checked_project
from resources.training import TrainingResource

__all__ = ["build_definitions", "defs", "prepare_home", "run_refresh", "wanted_work"]

DEMO_FOLDER_VARIABLE = "GATEAU_DEMO_FOLDER"


def asset_definitions(config: Config) -> dict[str, dg.AssetsDefinition]:
    """What makes each asset that a configuration asks for, by name, in topological order; one step may make two."""
    found = {"raw_long_sft": raw_long_sft_asset(config)}
    if config.short_chat is not None:
        found["short_chat_mix"] = short_chat_mix_asset()
    own = {asset: sample_table_asset(config, table) for asset, table in sample_tables(config).items()}
    found |= made_model_assets(config, own)
    pair = dict.fromkeys((f"perplexity/{THETA_B}", "cam"), theta_b_assets(config)) if config.has_pair else {}
    for model in config.causal_models:
        asset = f"perplexity/{model}"
        found[asset] = pair[asset] if asset in pair else perplexity_asset(config, model)
    found |= pair | own
    if config.has_pair:
        found["combined_scores"] = combined_scores_asset()
    compared = compared_methods(config)
    found |= {chosen.asset: method_scores_asset(config, chosen) for chosen in compared}
    found["selected_subset"] = selected_subset_asset(config)
    if has_comparison(config):
        found["comparison"] = comparison_asset(config)
    if config.training.enabled:
        found |= {"training_mix": training_mix_asset(config), "checkpoint": checkpoint_asset(config)}
        benchmarks = {"heldout": partial(heldout_asset, config), "needle": needle_asset}
        wanted = config.evaluation.benchmarks if config.evaluation.enabled else []
        found |= {f"evaluation/{name}": make() for name, make in benchmarks.items() if name in wanted}
    shown = required_assets(config, {name: _reads(name, made) for name, made in found.items()})
    return found | {"report": report_asset(config, [name for name in found if name in shown])}


def _reads(name: str, made: dg.AssetsDefinition) -> list[str]:
    """The assets that one reads, by name."""
    return ["/".join(key.path) for key in made.asset_deps[asset_key(name)]]


def build_definitions(config_file: str = "", demo_folder: str = ".") -> dg.Definitions:
    """Everything Dagster needs to know, for a configuration file or, without one, for the embedded demo.

    Raises:
        GateauError: the configuration is missing or wrong.
    """
    config = checked_project(config_file or None, folder=Path(demo_folder))
    found = asset_definitions(config)
    execution = config.execution
    executor = (
        dg.in_process_executor
        if execution.executor == "in_process"
        else dg.multiprocess_executor.configured({"max_concurrent": execution.max_concurrent})
    )
    return dg.Definitions(
        assets=list(dict.fromkeys(found.values())),
        asset_checks=asset_checks(list(found)),
        jobs=[*asset_jobs(list(found)), refresh_job],
        schedules=[nightly(config)],
        sensors=[out_of_date_sensor, dead_runs_sensor],
        executor=executor,
        resources={
            "configuration": ConfigurationResource(config_file=config_file, demo_folder=demo_folder),
            "models": ModelsResource(),
            "training": TrainingResource(),
        },
    )


def run_refresh(config: Config, config_file: str, *, until: str | None, plan: Plan) -> Refreshed:
    """Runs what is out of date on the configuration's own Dagster instance; what `gateau run` calls.

    Raises:
        GateauError: a step failed, or another run is at work.
    """
    configuration = ConfigurationResource(config_file=config_file, demo_folder=str(config.folder))
    with open_instance(config) as instance:
        return refresh(instance, configuration, until=until, plan=plan)


defs = build_definitions(os.environ.get(ENVIRONMENT_VARIABLE, ""), os.environ.get(DEMO_FOLDER_VARIABLE, "."))
