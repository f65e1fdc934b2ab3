"""Make `experiment` and `untouched_experiment`, and the overlaps `contamination/…` and `short_contamination/…`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from gateau_dagster.assets.steps.metadata import amounts_chart, figures_metadata, first_histogram
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.config.variants import Variant
from gateau_dagster.features.evaluation import JUDGMENTS, SCORES
from gateau_dagster.features.evaluation.assets.benchmarks import asked_questions
from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.contamination import FAMILY, SHORT_FAMILY, AskedTexts, overlaps, untouched_rows
from gateau_dagster.features.evaluation.experiment_values import by_variant, experiment_inputs
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.asking import cost_of_judgments
from gateau_dagster.features.evaluation.registry import asking_benchmarks, scored_benchmarks
from gateau_dagster.features.evaluation.statistics.experiment import (
    Cost,
    experiment_rows,
    lines_of,
    reference_of,
)
from gateau_dagster.pipeline.recipes import CHECKPOINTS, recipe_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.resources.models import ModelsResource

_HOUR = 3600.0


@makes_asset
def experiment(step: Step) -> None:
    """Compare the scores of all variants, question by question."""
    from gateau_dagster.features.evaluation.statistics.results import experiment_charts, experiment_figures

    for output in step.in_turn():
        state = output.state
        lines, reference = lines_of(state.config), reference_of(state.config)
        rows = []
        for benchmark, scores, costs in _measured(output, scored_benchmarks(state.config)):
            reasons = state.read_rejected(f"{SCORES}/{benchmark.name}")["reason"].to_list()
            rows.append(experiment_rows(benchmark, lines, scores, costs, reference=reference, reasons=reasons))
        table = pl.concat(rows)
        output.write(table)
        inputs = experiment_inputs(state, table)
        for values in experiment_charts(inputs):
            output.metadata |= amounts_chart(values)
        figures = experiment_figures(inputs)
        output.metadata |= figures_metadata({name: figure for name, (figure, _) in figures.items()})


def _measured(
    output: Output, benchmarks: Mapping[str, Benchmark]
) -> Iterator[tuple[Benchmark, dict[str, pl.DataFrame], Mapping[str, Cost]]]:
    """Yield each benchmark with the scores and the costs of all variants."""
    state = output.state
    costs = {name: variant_cost(state, variant) for name, variant in state.config.variant_set.items()}
    for done, (name, benchmark) in enumerate(benchmarks.items(), start=1):
        yield benchmark, by_variant(state, f"{SCORES}/{name}"), judged_costs(state, benchmark, costs)
        output.progress(done, len(benchmarks), "benchmarks", name)


def variant_cost(state: State, variant: Variant) -> Cost:
    """Return the size of a variant's training set, and the hours of one device for choosing samples and training."""
    (row,) = state.store.read(CHECKPOINTS, variant.name).iter_rows(named=True)
    seconds = row["seconds"]
    return Cost(
        samples=row["samples"],
        tokens=row["tokens"],
        scoring_hours=_scoring_seconds(state, variant) / _HOUR if row["samples"] is not None else None,
        training_hours=None if seconds is None else seconds * state.config.training.processes / _HOUR,
    )


def judged_costs(state: State, chosen: Benchmark, costs: Mapping[str, Cost]) -> Mapping[str, Cost]:
    """Return `costs` by variant, with the cost of judging the answers to this benchmark added."""
    judge = evaluation_of(state.config).judge
    if judge is None or not isinstance(chosen, RatedBenchmark):
        return costs
    judged = {name: state.store.read(f"{JUDGMENTS}/{chosen.name}", name) for name in costs}
    return {name: replace(cost, judge_cost=cost_of_judgments(judge, judged[name])) for name, cost in costs.items()}


def _scoring_seconds(state: State, variant: Variant) -> float:
    """Sum the seconds of every table that the choice reads, directly or transitively, as last computed."""
    reads = recipe_of(state.config, variant.name).reads
    tables = state.pipeline.ancestors(asset for asset in reads if asset in state.pipeline.by_key)
    stamps = [state.stamp(asset, part) for asset in tables for part in state.pipeline.partitions(asset)]
    return sum(stamp.effort.get("seconds") or 0.0 for stamp in stamps if stamp is not None)


RAW, CHAT = "raw_long_sft", "short_chat_mix"
TEXTS = ("context", "instruction", "response")


@makes_asset
def contamination(step: Step, models: ModelsResource) -> None:
    """Compare the long samples with a benchmark's questions, which are read once for all shards."""
    if not step.stale:
        return
    asked = AskedTexts.of(asked_questions(step, models))
    sizes = step.state.store.stamps((RAW, output.partition) for output in step.stale)
    total, done = sum(stamp.rows or 0 for stamp in sizes.values() if stamp is not None), 0
    for output in step.in_turn():
        samples = step.state.read(RAW, ["sample_id", *TEXTS], output.partition)
        found = ((sample_id, texts) for sample_id, *texts in samples.iter_rows())
        table = overlaps(_shown(found, done, total, step.progress), asked)
        done += samples.height
        output.write(table, computed=samples.height)
        output.metadata |= _metadata(table, asked)


@makes_asset
def short_contamination(step: Step, models: ModelsResource) -> None:
    """Compare the short conversations with a benchmark's questions."""
    for output in step.in_turn():
        chats, asked = step.state.read(CHAT, ["sample_id", "messages"]), AskedTexts.of(asked_questions(step, models))
        found = ((sample_id, [each["content"] for each in messages]) for sample_id, messages in chats.iter_rows())
        table = overlaps(_shown(found, 0, chats.height, step.progress), asked)
        output.write(table)
        output.metadata |= _metadata(table, asked)


@makes_asset
def untouched_experiment(step: Step) -> None:
    """Repeat the experiment over the questions that are not in the data."""
    for output in step.in_turn():
        state, asking = output.state, asking_benchmarks(output.state.config)
        lines, reference = lines_of(state.config), reference_of(state.config)
        rows = []
        for benchmark, scores, costs in _measured(output, asking):
            overlap = contamination_of(state, benchmark.name)
            rows.append(untouched_rows(benchmark, lines, scores, costs, overlap, reference=reference))
        table = pl.concat(rows)
        output.write(table)
        output.metadata["benchmarks_without_an_untouched_question"] = len(asking) - table["benchmark"].n_unique()


def _shown(
    samples: Iterator[tuple[str, Sequence[str]]], done: int, total: int, progress: Progress
) -> Iterator[tuple[str, Sequence[str]]]:
    for number, sample in enumerate(samples, start=done + 1):
        yield sample
        progress(number, total, "samples")


def _metadata(table: pl.DataFrame, asked: AskedTexts) -> dict[str, Any]:
    return {
        "questions": len(asked.ids),
        "questions_found": table["question_id"].n_unique(),
        "samples_found": table["sample_id"].n_unique(),
        "ngrams_of_the_prompt_left_out": asked.prompt_ngrams,
        **first_histogram(table),
    }


def contamination_of(state: State, benchmark: str) -> pl.DataFrame:
    """Return the overlaps of long samples and conversations with a benchmark's questions: contamination.OVERLAPS."""
    families = [FAMILY, *([SHORT_FAMILY] if state.config.short_chat is not None else [])]
    return pl.concat([state.read(f"{family}/{benchmark}") for family in families])
