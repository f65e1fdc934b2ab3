"""Declare what measures, compares and judges models, and what a judge says of samples."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation import (
    ANSWERS,
    CHARACTERISTICS,
    EXPERIMENT,
    GATE,
    JUDGMENTS,
    PAIRS,
    READABLE_REPLIES,
    SCORES,
    UNTOUCHED_EXPERIMENT,
)
from gateau_dagster.features.evaluation.benchmark import Benchmark, MeasuredBenchmark, QuestionBenchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.contamination import CODE_VERSION as OVERLAPS_CODE_VERSION
from gateau_dagster.features.evaluation.contamination import (
    FAMILY,
    OVERLAPS,
    SHORT_FAMILY,
    TOUCHED_CODE_VERSION,
    UNTOUCHED,
)
from gateau_dagster.features.evaluation.generation.answering import CODE_VERSION as GENERATION_CODE_VERSION
from gateau_dagster.features.evaluation.generation.answering import generation_settings, server_means
from gateau_dagster.features.evaluation.grading import CODE_VERSION as GRADING_CODE_VERSION
from gateau_dagster.features.evaluation.grading import grading_settings
from gateau_dagster.features.evaluation.judged import CODE_VERSION as RATING_CODE_VERSION
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.asking import means
from gateau_dagster.features.evaluation.judging.characteristics import CHARACTERISTICS as RATED
from gateau_dagster.features.evaluation.judging.characteristics import CODE_VERSION as CHARACTERISTICS_CODE_VERSION
from gateau_dagster.features.evaluation.judging.characteristics import RATINGS, rated_characteristics
from gateau_dagster.features.evaluation.judging.judge_answers import PAIRWISE
from gateau_dagster.features.evaluation.method import SAMPLE_RATINGS
from gateau_dagster.features.evaluation.registry import (
    asking_benchmarks,
    asset_of,
    compared_benchmarks,
    question_settings,
    scored_benchmarks,
)
from gateau_dagster.features.evaluation.statistics.experiment import CODE_VERSION as EXPERIMENT_CODE_VERSION
from gateau_dagster.features.evaluation.statistics.experiment import check_experiment, reference_of
from gateau_dagster.pipeline.asset import (
    FINITE_VALUES,
    FULL_COVERAGE,
    REJECTED_SHARE,
    SHARD,
    VARIANT,
    Asset,
    Observed,
    origin_key,
)
from gateau_dagster.pipeline.recipes import CHECKPOINTS, checkpoint, selected_subset, training_mix
from gateau_dagster.pipeline.scoring_assets import made_upstream, memory_settings
from gateau_dagster.pipeline.selection_reads import ranking_asset
from gateau_dagster.readable import nearest_name
from gateau_dagster.storage.stamp import By


def evaluations(config: Config) -> Iterator[Asset]:
    """Declare the evaluation of the checkpoint and its base model under every configured benchmark."""
    for chosen in compared_benchmarks(config).values():
        yield Asset(
            key=asset_of(chosen.name),
            of="benchmark",
            maker="evaluation",
            group="evaluation",
            kinds=("pytorch",),
            summary="results of the checkpoint and its base model on a benchmark",
            description=chosen.description,
            # By content: an equal checkpoint is not measured again.
            reads={**chosen.reads(), "checkpoint": "content"},
            settings=chosen.stamped_settings(),
            code_version=chosen.version,
            columns=chosen.columns,
            finite=chosen.finite,
            checks=(FINITE_VALUES,) if chosen.finite else (),
            goal=True,
            pool="gpu",
        )


def judged_tables(scored: Mapping[str, Benchmark]) -> list[str]:
    """Return the assets with judgments, from which the cost of a benchmark is computed."""
    return [f"{JUDGMENTS}/{name}" for name, chosen in scored.items() if isinstance(chosen, RatedBenchmark)]


def experiment_settings(config: Config, scored: Mapping[str, Benchmark]) -> dict[str, Any]:
    """Return the reference of the comparison and, if there are judgments, the judge's prices."""
    judge = evaluation_of(config).judge
    prices = None if judge is None or judge.prices is None else judge.prices.model_dump(mode="json")
    found = {"evaluation.reference": reference_of(config)}
    return {**found, "evaluation.judge.prices": prices} if judged_tables(scored) else found


def experiment_assets(config: Config) -> Iterator[Asset]:
    """Declare the experiment: every benchmark's values and costs by variant; nothing if no benchmark is scored.

    Raises GateauError as `check_experiment` does.
    """
    check_experiment(config)
    scored = scored_benchmarks(config)
    if not scored:
        return
    yield Asset(
        key=EXPERIMENT,
        maker="experiment",
        group="experiment",
        kinds=("polars",),
        summary="a row for each model and benchmark: value, interval, difference to the reference, cost",
        description="Values of every model under every benchmark, with intervals by paired bootstrap over the "
        "questions. Shows which differences are significant, and the cost of scoring, training and "
        "judging.",
        reads=dict.fromkeys(
            [CHECKPOINTS, *judged_tables(scored), *(f"{SCORES}/{name}" for name in scored)], "fingerprint"
        ),
        settings=experiment_settings(config, scored),
        code_version=EXPERIMENT_CODE_VERSION,
        columns=tables.EXPERIMENT,
        finite=("value", "probability_best"),
        checks=(FINITE_VALUES, *((GATE,) if evaluation_of(config).gate is not None else ())),
        goal=True,
        own_rejects=False,
    )


def variant_assets(config: Config) -> Iterator[Asset]:
    """Declare the variants' subsets, mixes and models, and their answers, judgments and scores."""
    scored = scored_benchmarks(config)
    if config.variants is not None:
        yield from selected_subset(config, of_variants=True)
        yield from training_mix(config, of_variants=True)
    if config.variants is not None or scored:
        yield from checkpoint(config, of_variants=True)
    for chosen in scored.values():
        yield from _measured(config, chosen)


def _measured(config: Config, chosen: Benchmark) -> Iterator[Asset]:
    """Declare the questions' answers, judgments and scores of a benchmark, or its measurements."""
    name, own = chosen.name, dict(chosen.reads())
    own |= made_upstream(config, config.training.model) if chosen.by_base else {}
    before: dict[str, By] = {CHECKPOINTS: "content"}
    if isinstance(chosen, QuestionBenchmark):
        if chosen.asks_as in scored_benchmarks(config):
            before[f"{ANSWERS}/{chosen.asks_as}"] = "content"
        yield _answers(config, chosen, {**before, **own})
        before = {f"{ANSWERS}/{name}": "content"}
    if isinstance(chosen, RatedBenchmark):
        yield _judgments(config, chosen, {**before, **own})
        before[f"{JUDGMENTS}/{name}"] = "content"
    yield _scores(config, chosen, {**before, **own})


def _of_benchmark(config: Config, chosen: Benchmark, family: str, says: str, settings: Any, **own: Any) -> Asset:
    """Return an asset with what all assets of a benchmark have in common. `says`: put before its description."""
    return Asset(
        key=f"{family}/{chosen.name}",
        of="benchmark",
        maker=f"benchmark_{family}",
        partitions=VARIANT,
        group="experiment",
        description=f"{says} {chosen.description}",
        inputs=(origin_key(config, config.training.model),) if chosen.by_base else (),
        observe=partial(settings, config, chosen),
        **{"code_version": chosen.version, **own},
    )


def _answers(config: Config, chosen: Benchmark, reads: Mapping[str, By]) -> Asset:
    engine = evaluation_of(config).engine
    return _of_benchmark(
        config,
        chosen,
        ANSWERS,
        "The answers of each variant.",
        _answered_settings,
        kinds=("pytorch",),
        summary="each variant's answers to a benchmark's questions",
        reads=reads,
        code_version=f"{chosen.version}.{GENERATION_CODE_VERSION}",
        columns=(*tables.ANSWERS, tables.UNREAD),
        own_rejects=False,
        pool="gpu",
        means=memory_settings(config) if engine is None else server_means(engine),
    )


def _judgments(config: Config, chosen: RatedBenchmark, reads: Mapping[str, By]) -> Asset:
    return _of_benchmark(
        config,
        chosen,
        JUDGMENTS,
        "A judge's ratings of each variant's answers.",
        _judged_settings,
        kinds=("openai",),
        summary="a judge's ratings of the answers",
        reads=reads,
        code_version=f"{chosen.version}.{RATING_CODE_VERSION}.{GRADING_CODE_VERSION}",
        columns=tables.JUDGMENTS,
        checks=(READABLE_REPLIES,),
        own_rejects=False,
        means=means(evaluation_of(config).judge),
    )


def _scores(config: Config, chosen: Benchmark, reads: Mapping[str, By]) -> Asset:
    measures, version = isinstance(chosen, MeasuredBenchmark), chosen.version
    return _of_benchmark(
        config,
        chosen,
        SCORES,
        "The values of each variant's answers.",
        _benchmark_settings if measures else _graded_settings,
        kinds=("pytorch",) if measures else ("polars",),
        summary="the value of each variant's answer to each of a benchmark's questions",
        reads=reads,
        code_version=version if measures else f"{version}.{GRADING_CODE_VERSION}",
        columns=tables.SCORES,
        finite=("value",),
        checks=(FINITE_VALUES,),
        goal=True,
        pool="gpu" if measures else "",
        means=memory_settings(config) if measures else "",
    )


def _benchmark_settings(config: Config, chosen: Benchmark, observed: Observed) -> dict[str, Any]:
    # When the plan is made and not when the asset is declared, since they may depend on the files of the benchmark.
    return question_settings(config, chosen, observed.model_digests) if chosen.by_base else chosen.stamped_settings()


def _answered_settings(config: Config, chosen: Benchmark, observed: Observed) -> dict[str, Any]:
    frame = observed.frame(config.origin(config.training.model))
    return {**_benchmark_settings(config, chosen, observed), **generation_settings(config, frame)}


def _judged_settings(config: Config, chosen: RatedBenchmark, observed: Observed) -> dict[str, Any]:
    return {**_graded_settings(config, chosen, observed), **chosen.judge_settings()}


def _graded_settings(config: Config, chosen: Benchmark, observed: Observed) -> dict[str, Any]:
    return {**_benchmark_settings(config, chosen, observed), **grading_settings(evaluation_of(config).thoughts)}


_IN_COMMON = (
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
            "observe": lambda observed, chosen=chosen: question_settings(config, chosen, observed.model_digests),
            "code_version": f"{OVERLAPS_CODE_VERSION}.{chosen.version}",
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
            summary="overlap of the long samples with a benchmark's questions",
            description=f"What the long samples {_IN_COMMON}",
            reads={"raw_long_sft": "fingerprint", **model},
            **common,
        )
        if config.short_chat is not None:
            yield Asset(
                key=f"{SHORT_FAMILY}/{chosen.name}",
                maker="short_contamination",
                summary="overlap of the short conversations with a benchmark's questions",
                description=f"What the short conversations {_IN_COMMON}",
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
        summary="the experiment over the questions that the data does not contain",
        description="Values of every model under every benchmark, as in the experiment, without questions of which "
        "the data contain a notable part. Also gives the number of excluded questions.",
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


PAIRS_CODE_VERSION = "2"


def pairwise_assets(config: Config) -> Iterator[Asset]:
    """Declare one asset per benchmark whose judge can compare, if `evaluation.judge.pairs` is set.

    Raises GateauError for an unknown variant.
    """
    judge = evaluation_of(config).judge
    if judge is None or not judge.pairs:
        return
    unknown = sorted({name for pair in judge.pairs for name in pair} - {*config.variant_set})
    if unknown:
        meant = nearest_name(unknown[0], config.variant_set)
        raise GateauError(
            "evaluation.unknown_variant", f"evaluation.judge.pairs: there is no variant {unknown[0]}; {meant}"
        )
    for name, chosen in scored_benchmarks(config).items():
        if isinstance(chosen, RatedBenchmark) and chosen.paired:
            yield Asset(
                key=f"{PAIRS}/{name}",
                of="benchmark",
                maker="pairwise",
                group="experiment",
                kinds=("openai",),
                summary="comparison of two variants' answers, in both orders",
                description=f"Wins, ties and losses of pairs of variants. {chosen.description}",
                reads={f"{ANSWERS}/{name}": "content"},
                observe=partial(_pair_settings, config, chosen),
                code_version=f"{PAIRS_CODE_VERSION}.{GRADING_CODE_VERSION}.{chosen.version}",
                columns=PAIRWISE,
                goal=True,
                means=means(judge),
            )


def _pair_settings(config: Config, chosen: RatedBenchmark, observed: Observed) -> dict[str, Any]:
    del observed
    judge = evaluation_of(config).judge
    assert judge is not None
    return {
        **chosen.stamped_settings(),
        **grading_settings(evaluation_of(config).thoughts),
        "evaluation.judge.model": judge.model,
        **{f"evaluation.judge.{name}": value for name, value in judge.changed_sampling.items()},
        "evaluation.judge.pairs": judge.pairs,
    }


def characteristics(config: Config) -> Iterator[Asset]:
    """Declare `characteristics` if `evaluation.judge.characteristics` is set; it needs no training."""
    judge = evaluation_of(config).judge
    if judge is None or judge.characteristics is None or not evaluation_of(config).enabled:
        return
    yield Asset(
        key=CHARACTERISTICS,
        maker="characteristics",
        group="selection",
        kinds=("openai",),
        summary="five characteristics of the best and worst samples, rated by a judge",
        description="A judge's ratings from 1 to 5 of the best and worst samples: coherence, necessity, "
        "faithfulness, helpfulness and complexity (the paper's figure 2).",
        reads=dict.fromkeys(("raw_long_sft", ranking_asset(config)), "fingerprint"),
        settings={
            "evaluation.judge.model": judge.model,
            **{f"evaluation.judge.{name}": value for name, value in judge.changed_sampling.items()},
            "evaluation.judge.repeats": judge.repeats,
            "evaluation.judge.characteristics": judge.characteristics,
        },
        code_version=CHARACTERISTICS_CODE_VERSION,
        columns=RATED,
        goal=True,
        means=means(judge),
    )


def sample_ratings(config: Config) -> Iterator[Asset]:
    """Declare `sample_ratings` if method `judge` is chosen."""
    judge, named = evaluation_of(config).judge, rated_characteristics(config)
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
        code_version=CHARACTERISTICS_CODE_VERSION,
        columns=RATINGS,
        checks=(FULL_COVERAGE, REJECTED_SHARE),
        means=means(judge),
    )
