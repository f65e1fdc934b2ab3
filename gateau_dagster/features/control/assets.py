"""Make the asset `control`: draw samples, exchange far texts, and score them by both models."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.assets.training_mix import mix_tokenizer
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.features.control.design import DRAWN, EXCHANGED, DrawnSample, Words, drawn, exchanged
from gateau_dagster.features.control.feature import COLUMNS, CONTROL, FAR, SCORED
from gateau_dagster.features.control.feature import EXCHANGED as EXCHANGED_ROLE
from gateau_dagster.features.control.result import control_result
from gateau_dagster.models.model_facts import visible_tokens
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.scoring.pair_tables import THETA_A, THETA_B
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow, Running
from gateau_dagster.selection.combine import join_shard
from gateau_dagster.storage.stamp import fingerprint

RAW = "raw_long_sft"


@makes_asset
def control(step: Step, models: ModelsResource) -> None:
    """Draw and exchange the samples; score those whose row is not in the table already."""
    for output in step.in_turn():
        state = output.state
        shown = shown_samples(state, mix_tokenizer(state, THETA_B, step.progress))
        by_words = Words(shown)
        needing = [place for place in range(len(shown)) if by_words.needs_far(place)]
        others = [place for place in range(len(shown)) if place not in {*needing}]
        # Samples that need no far text stand for those of the data. Where they are few, the others do as well.
        taken = [*others, *needing][:EXCHANGED]
        samples = [exchanged(shown, place, by_words) for place in taken]
        scorer = _scorer(state)
        kept = _kept(state, scorer)
        missing = [each for each in samples if (each.sample_id, each.digest) not in kept]
        measured = scored(state, models, missing, step.progress)
        far = [shown[place].sample for place in needing]
        rows = [{"sample_id": each.sample_id, "role": FAR, "digest": each.digest, "scorer": scorer} for each in far]
        for each in samples:
            row = kept.get((each.sample_id, each.digest)) or measured.get(each.sample_id)
            if row is not None:
                known = {"sample_id": each.sample_id, "role": EXCHANGED_ROLE, "digest": each.digest, "scorer": scorer}
                rows.append({**row, **known})
        output.write(pl.DataFrame(rows, schema=tables.schema(COLUMNS)), computed=len(missing))
        found = control_result(state)
        output.metadata |= {"result": found.sentence, "scored": len(missing)}
        if found.auroc is not None:
            output.metadata["auroc"] = found.auroc


def shown_samples(state: State, tokenizer: Any) -> list[DrawnSample]:
    """Return the drawn samples with far text, in the order of the draw; empty for a tokenizer without offsets."""
    from gateau_dagster.models.prompt import token_offsets

    if not tokenizer.is_fast:
        return []
    cut = [state.read(asset, ["sample_id", "truncated_tokens"]) for asset in SCORED[:2]]
    both = cut[0].join(cut[1], on="sample_id", suffix="_long")
    far = both.filter(pl.col("truncated_tokens") > pl.col("truncated_tokens_long"))
    names = drawn(far["sample_id"].to_list(), DRAWN)
    ids = pl.DataFrame({"sample_id": names}, schema={"sample_id": pl.String})
    places = {name: (begin, border) for name, border, begin in far.join(ids, on="sample_id").iter_rows()}
    found = {}
    for shard in state.shards:
        for sample in samples_of(state.store.read_rows(RAW, shard, ids)):
            if sample.conversation:
                continue  # its prompt has turns beside the context, which the exchange does not know
            offsets = token_offsets(tokenizer, sample.context)
            starts = (
                offsets[token][0] if 0 < token < len(offsets) else 0 if token == 0 else len(sample.context)
                for token in places[sample.sample_id]
            )
            start, border = starts
            found[sample.sample_id] = DrawnSample(sample=sample, start=start, border=border)
    return [found[name] for name in names if name in found]


def _scorer(state: State) -> str:
    """Return the digest of the models and settings that make the figures."""
    return fingerprint({asset: state.row_scorer(asset) or "" for asset in SCORED})


def _kept(state: State, scorer: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of the present table that the same models made, by id and digest."""
    if state.store.stamp(CONTROL) is None:
        return {}
    table = state.store.read(CONTROL, None)
    rows = table.filter(pl.col("role") == EXCHANGED_ROLE, pl.col("scorer") == scorer).iter_rows(named=True)
    return {(row["sample_id"], row["digest"]): row for row in rows}


def scored(
    state: State, models: ModelsResource, samples: Sequence[Sample], progress: Progress
) -> dict[str, dict[str, Any]]:
    """Return MEASURES of samples by id, first by theta_A, then by theta_B; a sample that is rejected has none."""
    if not samples:
        return {}
    prepare_inputs(state.config, "models", progress)
    schemas = {asset: tables.schema(tuple(state.asset(asset).columns)) for asset in SCORED}
    rows: dict[str, list[dict[str, Any]]] = {asset: [] for asset in SCORED}
    for model, assets in ((THETA_A, SCORED[:1]), (THETA_B, SCORED[1:])):
        for done, outcome in enumerate(_outcomes(state, models, model, assets, samples), start=1):
            progress(done, len(samples), "samples", f"theta_{'A' if model == THETA_A else 'B'} reads")
            for asset, row in outcome.items():
                if not isinstance(row, Reject):
                    rows[asset].append(dict(row))
    frames = {asset: pl.DataFrame(rows[asset], schema=schemas[asset]) for asset in SCORED}
    return {row["sample_id"]: row for row in join_shard(frames).frame.iter_rows(named=True)}


def _outcomes(
    state: State, models: ModelsResource, model: str, assets: Sequence[str], samples: Sequence[Sample]
) -> Iterator[Outcomes]:
    """Yield the rows of each sample for these tables, which one pass of the model gives."""
    from gateau_dagster.models.loaded import ForwardWork
    from gateau_dagster.models.loading import effective_max_length

    config, section = state.config, loadable_model(state, model)
    loaded = models.load(config, section, version=model_version(state, model))
    longest = effective_max_length(loaded, section, config.scoring)
    visible = visible_tokens(config)
    running = {
        asset: Running(max_length=longest, scoring=config.scoring, work=ForwardWork(), visible_tokens=visible)
        for asset in assets
    }
    table = state.asset(assets[0]).table
    assert table is not None
    if len(assets) > 1:
        assert table.shared is not None
        requests = (RequestedRow(sample=each, assets=frozenset(assets)) for each in samples)
        yield from table.shared.score(loaded, requests, running)
        return
    yield from ({assets[0]: row} for row in table.score(loaded, samples, running[assets[0]]))
