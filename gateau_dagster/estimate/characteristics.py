"""Estimate the judge's ratings of samples: of the best and worst ones, and of all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import polars as pl

from gateau_dagster.config.judge import CHARACTERISTIC_NAMES, JudgeConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.estimate.scored_model import TokenRates, token_rates
from gateau_dagster.evaluation.judging.characteristics import ends_of_ranking, wanted_ratings
from gateau_dagster.evaluation.judging.cost import CountTokens, PlannedCost, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import JudgmentRequest
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.pipeline.evaluation_assets import rated_characteristics
from gateau_dagster.pipeline.selection_reads import ranking_asset
from gateau_dagster.pipeline.state import State

RAW = "raw_long_sft"
_WORD = " the"
"""A common word of one token."""


def rated_samples(state: State, settings: JudgeConfig) -> tuple[dict[str, str], list[JudgmentRequest]]:
    """Return `part` by sample id, and the judge's requests for these samples, from the tables in the store.

    Raises:
        GateauError: the tables cannot be read.
    """
    assert settings.characteristics is not None
    parts = ends_of_ranking(state.read(ranking_asset(state.config), ["sample_id", "score"]), settings.characteristics)
    wanted_ids = pl.DataFrame({"sample_id": [*parts]}, schema={"sample_id": pl.String()})
    found = pl.concat(state.store.read_rows(RAW, shard, wanted_ids) for shard in state.shards)
    return parts, wanted_ratings([*samples_of(found.sort("sample_id"))], settings)


def rating_cost(state: State, settings: JudgeConfig, replies: Replies | None, count: CountTokens) -> PlannedCost:
    """Return the cost for the samples that the store's ranking names, whether it is up to date or not. Without a
    ranking, assume as many samples of average length.

    replies: None if other samples of about the same length are assumed.

    Raises:
        GateauError: the tables cannot be read.
    """
    read = [(asset, part) for asset in (RAW, ranking_asset(state.config)) for part in state.pipeline.partitions(asset)]
    if all(stamp is not None for stamp in state.store.stamps(read).values()):
        wanted = [each.asked for each in rated_samples(state, settings)[1]]
        return planned_cost(settings, wanted, replies, count)
    assert settings.characteristics is not None
    return _of_middling(state, settings, count) * (2 * min(settings.characteristics, state.index.accepted.height // 2))


def wanted_of_shard(state: State, settings: JudgeConfig, shard: str) -> list[JudgmentRequest]:
    """Return the judge's requests for every sample of a shard, from the validated samples in the store."""
    samples = [*samples_of(state.read(RAW, None, shard))]
    return wanted_ratings(samples, settings, rated_characteristics(state.config))


def shards_cost(
    state: State, settings: JudgeConfig, replies: Replies, count: CountTokens, shards: Iterable[str]
) -> PlannedCost:
    """Return the cost for every sample of these shards; samples not read yet count with average length."""
    cost, unread = planned_cost(settings, [], replies, count), 0
    for shard in shards:  # only one shard's texts are in memory
        given = state.index.accepted.filter(pl.col("shard") == int(shard)).select("sample_id", "digest")
        there = pl.DataFrame(schema=given.schema)
        if state.store.stamp(RAW, shard) is not None:
            there = given.join(state.store.read(RAW, shard, given.columns), on=given.columns, how="semi")
            samples = [*samples_of(state.store.read_rows(RAW, shard, there.select("sample_id")))]
            wanted = wanted_ratings(samples, settings, rated_characteristics(state.config))
            cost += planned_cost(settings, [each.asked for each in wanted], replies, count)
        unread += given.height - there.height
    return cost + _of_middling(state, settings, count, rated_characteristics(state.config)) * unread if unread else cost


def _of_middling(
    state: State, settings: JudgeConfig, count: CountTokens, named: Collection[str] = CHARACTERISTIC_NAMES
) -> PlannedCost:
    """Return the cost for one sample of average length."""
    wanted = wanted_ratings([_middling(state)], settings, named)
    return planned_cost(settings, [each.asked for each in wanted], None, count)


def _middling(state: State) -> Sample:
    """Return a dummy sample with as many tokens as a sample of the input has on average."""
    model = state.config.training.model
    rates = token_rates(state, model) if model in state.config.models else TokenRates()
    whole, tail = state.index.accepted.select(pl.col("characters", "tail_characters").mean()).row(0)
    said = (tail or 0) / rates.tail
    tokens = {
        "context": ((whole or 0) - (tail or 0)) / rates.context,
        "instruction": said * (1 - rates.response),
        "response": said * rates.response,
    }
    return Sample(sample_id="", source="", **{part: _WORD * round(length) for part, length in tokens.items()})
