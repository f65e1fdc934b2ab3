"""Make the assets `contamination/<benchmark>` and `short_contamination/<benchmark>`: questions found in the data.

Also make `untouched_experiment`: the variants' scores without these questions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from gateau_dagster.assets.experiment import judged_costs, variant_cost
from gateau_dagster.assets.further_sections import contamination_of
from gateau_dagster.assets.steps.compared_models import asked_questions
from gateau_dagster.assets.steps.metadata import first_histogram
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.evaluation.contamination import AskedTexts, overlaps, untouched_rows
from gateau_dagster.evaluation.statistics.experiment import lines_of, reference_of
from gateau_dagster.pipeline.evaluation_assets import SCORES, asking_benchmarks
from gateau_dagster.progress import Progress
from gateau_dagster.resources.models import ModelsResource

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
        table = overlaps(_shown(_long_samples(samples), done, total, step.progress), asked)
        done += samples.height
        output.write(table, computed=samples.height)
        output.metadata |= _metadata(table, asked)


@makes_asset
def short_contamination(step: Step, models: ModelsResource) -> None:
    """Compare the short conversations with a benchmark's questions."""
    for output in step.in_turn():
        chats, asked = step.state.read(CHAT, ["sample_id", "messages"]), AskedTexts.of(asked_questions(step, models))
        table = overlaps(_shown(_conversations(chats), 0, chats.height, step.progress), asked)
        output.write(table)
        output.metadata |= _metadata(table, asked)


@makes_asset
def untouched_experiment(step: Step) -> None:
    """Repeat the experiment over the questions that are not in the data."""
    for output in step.in_turn():
        state, asking = output.state, asking_benchmarks(output.state.config)
        costs = {name: variant_cost(state, variant) for name, variant in state.config.variant_set.items()}
        lines, reference = lines_of(state.config), reference_of(state.config)
        found = []
        for done, (name, chosen) in enumerate(asking.items(), start=1):
            scores = {variant: state.store.read(f"{SCORES}/{name}", variant) for variant in costs}
            overlap = contamination_of(state, name)
            found.append(
                untouched_rows(chosen, lines, scores, judged_costs(state, chosen, costs), overlap, reference=reference)
            )
            output.progress(done, len(asking), "benchmarks", name)
        table = pl.concat(found)
        output.write(table)
        output.metadata["benchmarks_without_an_untouched_question"] = len(asking) - table["benchmark"].n_unique()


def _long_samples(samples: pl.DataFrame) -> Iterator[tuple[str, Sequence[str]]]:
    for sample_id, *texts in samples.iter_rows():
        yield sample_id, texts


def _conversations(chats: pl.DataFrame) -> Iterator[tuple[str, Sequence[str]]]:
    for sample_id, messages in chats.iter_rows():
        yield sample_id, [message["content"] for message in messages]


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
