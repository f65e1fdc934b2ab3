"""Make the assets `contamination/<benchmark>` and `short_contamination/<benchmark>`: questions found in the data.

Also make `untouched_experiment`: the variants' scores without these questions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import polars as pl

from assets.experiment import judged_costs, variant_cost
from assets.further_sections import contamination_of
from assets.steps.compared_models import materials
from assets.steps.definition import makes_asset
from assets.steps.metadata import first_histogram
from assets.steps.partitioned_step import Event, Finished, shard_events, stale_partitions
from assets.steps.step import asset_step
from assets.steps.unpartitioned_step import unpartitioned_step
from gateau_dagster.evaluation.contamination import AskedTexts, overlaps, untouched_rows
from gateau_dagster.evaluation.statistics.experiment import lines_of, reference_of
from gateau_dagster.execution.shard_tables import ShardResult, rejected_frame
from gateau_dagster.pipeline.contamination_asset import asking_benchmarks
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_assets import SCORES
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

RAW, CHAT = "raw_long_sft", "short_chat_mix"
TEXTS = ("context", "instruction", "response")


@makes_asset
def contamination(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Iterator[Event]:
    """Compare the long samples with a benchmark's questions, which are read once for all shards."""
    with asset_step(context, configuration) as progress:
        state, asset = configuration.state(), context.asset_key.to_user_string()
        stale = stale_partitions(context, state, asset)
        yield from shard_events(context, state, {asset: stale}, _compared(state, models, asset, stale, progress))


@makes_asset
def short_contamination(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> dg.MaterializeResult:
    """Compare the short conversations with a benchmark's questions."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            chats = step.state.read(CHAT, ["sample_id", "messages"])
            asked = _asked(step.state, models, step.asset, step.progress)
            table = overlaps(_shown(_conversations(chats), 0, chats.height, step.progress), asked)
            step.write(table)
            step.metadata |= _metadata(table, asked)
    return step.result


@makes_asset
def untouched_experiment(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource
) -> dg.MaterializeResult:
    """Repeat the experiment over the questions that are not in the data."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            state, asking = step.state, asking_benchmarks(step.state.config)
            costs = {name: variant_cost(state, variant) for name, variant in state.config.variant_set.items()}
            lines, reference = lines_of(state.config), reference_of(state.config)
            found = []
            for done, (name, chosen) in enumerate(asking.items(), start=1):
                scores = {variant: state.store.read(f"{SCORES}/{name}", variant) for variant in costs}
                overlap = contamination_of(state, name)
                found.append(
                    untouched_rows(
                        chosen, lines, scores, judged_costs(state, chosen, costs), overlap, reference=reference
                    )
                )
                step.progress(done, len(asking), "benchmarks", name)
            table = pl.concat(found)
            step.write(table)
            step.metadata["benchmarks_without_an_untouched_question"] = len(asking) - table["benchmark"].n_unique()
    return step.result


def _compared(
    state: State, models: ModelsResource, asset: str, stale: Mapping[str, Stamp], progress: Progress
) -> Iterator[Finished]:
    if not stale:
        return
    asked = _asked(state, models, asset, progress)
    sizes = state.store.stamps((RAW, shard) for shard in stale)
    total, done = sum(stamp.rows or 0 for stamp in sizes.values() if stamp is not None), 0
    for shard, stamp in stale.items():
        samples = state.read(RAW, ["sample_id", *TEXTS], shard)
        table = overlaps(_shown(_long_samples(samples), done, total, progress), asked)
        done += samples.height
        complete = state.store.write(table, asset, shard, stamp)
        result = ShardResult(
            table=table, rejected=rejected_frame([]), computed=samples.height, reused=0, stamp=complete
        )
        yield asset, shard, result, _metadata(table, asked)


def _asked(state: State, models: ModelsResource, asset: str, progress: Progress) -> AskedTexts:
    """Return the texts of the benchmark's questions."""
    chosen = asking_benchmarks(state.config)[asset.partition("/")[2]]
    assert chosen.scored.questions is not None
    return AskedTexts.of(chosen.scored.questions(materials(state, asset, models, progress), chosen.options))


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
