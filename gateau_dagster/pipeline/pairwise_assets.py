"""Declare the assets that compare answers of variants in pairs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.grading import CODE_VERSION as GRADING_CODE_VERSION
from gateau_dagster.evaluation.grading import grading_settings
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.judge_answers import means
from gateau_dagster.evaluation.judging.pairwise import PAIRWISE
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.pipeline.variant_assets import ANSWERS
from gateau_dagster.readable import nearest_name

PAIRS = "pairwise"
CODE_VERSION = "2"


def pairwise_assets(config: Config) -> Iterator[Asset]:
    """Declare one asset per benchmark whose judge can compare, if `evaluation.judge.pairs` is set.

    Raises GateauError for an unknown variant.
    """
    judge = config.evaluation.judge
    if judge is None or not judge.pairs:
        return
    unknown = sorted({name for pair in judge.pairs for name in pair} - {*config.variant_set})
    if unknown:
        meant = nearest_name(unknown[0], config.variant_set)
        raise GateauError(f"evaluation.judge.pairs: no variant {unknown[0]}; {meant}")
    for name, chosen in scored_benchmarks(config).items():
        if isinstance(chosen, RatedBenchmark) and chosen.paired:
            yield Asset(
                key=f"{PAIRS}/{name}",
                of="benchmark",
                maker="pairwise",
                group="experiment",
                kinds=("openai",),
                summary="two variants' answers set against each other, in both orders",
                description=f"Wins, ties and losses of pairs of variants. {chosen.description}",
                reads={f"{ANSWERS}/{name}": "content"},
                observe=partial(_settings, config, chosen),
                code_version=f"{CODE_VERSION}.{GRADING_CODE_VERSION}.{chosen.code_version}",
                columns=PAIRWISE,
                goal=True,
                means=means(judge),
            )


def _settings(config: Config, chosen: RatedBenchmark, observed: Observed) -> dict[str, Any]:
    del observed
    judge = config.evaluation.judge
    assert judge is not None
    return {
        **chosen.stamped_settings(),
        **grading_settings(config.evaluation.thoughts),
        "evaluation.judge.model": judge.model,
        **{f"evaluation.judge.{name}": value for name, value in judge.changed_sampling.items()},
        "evaluation.judge.pairs": judge.pairs,
    }
