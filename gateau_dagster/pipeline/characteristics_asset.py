"""Declare the judge's ratings of training samples: of the best and worst, and of all for method `judge`."""

from collections.abc import Iterator

from gateau_dagster.config import Config
from gateau_dagster.evaluation.judging.characteristics import CHARACTERISTICS as COLUMNS
from gateau_dagster.evaluation.judging.characteristics import CODE_VERSION, RATINGS
from gateau_dagster.evaluation.judging.judge_answers import means
from gateau_dagster.methods.judge import SAMPLE_RATINGS, Judge
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.asset import FULL_COVERAGE, REJECTED_SHARE, SHARD, Asset
from gateau_dagster.pipeline.selection_reads import ranking_asset

CHARACTERISTICS = "characteristics"


def characteristics(config: Config) -> Iterator[Asset]:
    """Declare `characteristics` if `evaluation.judge.characteristics` is set; it needs no training."""
    judge = config.evaluation.judge
    if judge is None or judge.characteristics is None or not config.evaluation.enabled:
        return
    yield Asset(
        key=CHARACTERISTICS,
        maker="characteristics",
        group="selection",
        kinds=("openai",),
        summary="five characteristics of the best and worst samples, rated by a judge",
        description="Coherence, necessity, faithfulness, helpfulness and complexity of the samples with the highest "
        "and the lowest scores, rated from 1 to 5 by a judge (the paper's figure 2).",
        reads=dict.fromkeys(("raw_long_sft", ranking_asset(config)), "fingerprint"),
        settings={
            "evaluation.judge.model": judge.model,
            **{f"evaluation.judge.{name}": value for name, value in judge.changed_sampling.items()},
            "evaluation.judge.repeats": judge.repeats,
            "evaluation.judge.characteristics": judge.characteristics,
        },
        code_version=CODE_VERSION,
        columns=COLUMNS,
        goal=True,
        means=means(judge),
    )


def rated_characteristics(config: Config) -> list[str]:
    """Return the characteristics that method `judge` reads of every sample; empty if the method is not chosen."""
    method = chosen_methods(config).get(Judge.name)
    return [*method.options.characteristics] if isinstance(method, Judge) else []


def sample_ratings(config: Config) -> Iterator[Asset]:
    """Declare `sample_ratings` if method `judge` is chosen."""
    judge, named = config.evaluation.judge, rated_characteristics(config)
    if judge is None or not named:
        return
    yield Asset(
        key=SAMPLE_RATINGS,
        maker="sample_ratings",
        partitions=SHARD,
        group="selection",
        kinds=("openai",),
        summary="every sample rated by a judge, for the method judge",
        description=f"The {', '.join(named)} of every sample, rated from 1 to 5 by a judge. Every reply is kept: only "
        "changed samples are asked for again.",
        reads={"raw_long_sft": "fingerprint"},
        settings={
            "evaluation.judge.model": judge.model,
            **{f"evaluation.judge.{name}": value for name, value in judge.changed_sampling.items()},
            "evaluation.judge.repeats": judge.repeats,
            "characteristics": sorted(named),
        },
        code_version=CODE_VERSION,
        columns=RATINGS,
        checks=(FULL_COVERAGE, REJECTED_SHARE),
        means=means(judge),
    )
