"""Declare the assets that compare the data with the questions of benchmarks."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.evaluation.benchmark import QuestionBenchmark
from gateau_dagster.evaluation.contamination import (
    CODE_VERSION,
    FAMILY,
    OVERLAPS,
    SHORT_FAMILY,
    TOUCHED_CODE_VERSION,
    UNTOUCHED,
)
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.evaluation.statistics.experiment import CODE_VERSION as EXPERIMENT_CODE_VERSION
from gateau_dagster.pipeline.asset import FINITE_VALUES, SHARD, Asset, Observed
from gateau_dagster.pipeline.inputs import origin_key
from gateau_dagster.pipeline.recipes import CHECKPOINTS
from gateau_dagster.pipeline.scoring_assets import made_upstream
from gateau_dagster.pipeline.variant_assets import SCORES, experiment_settings, judged_tables

UNTOUCHED_EXPERIMENT = "untouched_experiment"
_DESCRIPTION = (
    "have in common with the questions: n-grams of 13 words, and near-duplicates. Case, punctuation and white space do "
    "not count; Chinese, Japanese and Thai go by characters."
)


def contamination(config: Config) -> Iterator[Asset]:
    """Declare, per benchmark with questions, its overlaps with the long samples and with the short conversations."""
    for chosen in asking_benchmarks(config).values():
        # Questions may be measured in tokens of the model that is trained.
        model = made_upstream(config, config.training.model)
        common: dict[str, Any] = {
            "of": "benchmark",
            "group": "evaluation",
            "kinds": ("polars",),
            "inputs": (origin_key(config, config.training.model),),
            "observe": partial(_settings, config, chosen),
            "code_version": f"{CODE_VERSION}.{chosen.code_version}",
            "columns": OVERLAPS,
            "finite": ("share", "similarity"),
            "checks": (FINITE_VALUES,),
            "goal": True,
            "own_rejects": False,
        }
        yield Asset(
            key=f"{FAMILY}/{chosen.name}",
            maker="contamination",
            partitions=SHARD,
            summary="what the long samples have in common with a benchmark's questions",
            description=f"What the long samples {_DESCRIPTION}",
            reads={"raw_long_sft": "fingerprint", **model},
            **common,
        )
        if config.short_chat is not None:
            yield Asset(
                key=f"{SHORT_FAMILY}/{chosen.name}",
                maker="short_contamination",
                summary="what the short conversations have in common with a benchmark's questions",
                description=f"What the short conversations {_DESCRIPTION}",
                reads={"short_chat_mix": "content", **model},
                **common,
            )


def untouched_experiment(config: Config) -> Iterator[Asset]:
    """Declare the experiment without contaminated questions, if a benchmark has questions that may be in the data."""
    asking = asking_benchmarks(config)
    if not asking:
        return
    families = (SCORES, FAMILY, *([SHORT_FAMILY] if config.short_chat is not None else []))
    yield Asset(
        key=UNTOUCHED_EXPERIMENT,
        maker="untouched_experiment",
        group="experiment",
        kinds=("polars",),
        summary="the experiment over the questions that do not stand in the data",
        description="Every model under every benchmark, as in the experiment, over the questions of which neither long "
        "samples nor short conversations hold a notable part; and how many were left out.",
        reads=dict.fromkeys(
            [CHECKPOINTS, *judged_tables(asking), *(f"{each}/{name}" for name in asking for each in families)],
            "fingerprint",
        ),
        settings=experiment_settings(config, asking),
        code_version=f"{TOUCHED_CODE_VERSION}.{EXPERIMENT_CODE_VERSION}",
        columns=UNTOUCHED,
        finite=("value", "probability_best"),
        checks=(FINITE_VALUES,),
        goal=True,
        own_rejects=False,
    )


def asking_benchmarks(config: Config) -> dict[str, QuestionBenchmark]:
    """Return the benchmarks whose questions are not made from the store's tables, since the data contain such
    questions.

    Raises as `chosen_benchmarks` does.
    """
    found = scored_benchmarks(config)
    return {name: each for name, each in found.items() if isinstance(each, QuestionBenchmark) and not each.reads()}


def _settings(config: Config, chosen: QuestionBenchmark, observed: Observed) -> dict[str, Any]:
    """Return the settings that decide the questions."""
    model = config.origin(config.training.model)
    return {**chosen.stamped_settings(), f"models.{model} weights": observed.model_digests[model]}
