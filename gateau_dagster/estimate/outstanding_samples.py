"""The samples that a run would score, with the tokens of their prompts: from the input's index, without their texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from gateau_dagster.estimate.token_rates import TokenRates
from gateau_dagster.execution.row_checkpoints import FOLDER, RowCheckpoints
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.planned_work import SampleTokens

_IDENTITY = pl.Schema({"sample_id": pl.String(), "digest": pl.String()})


def outstanding_samples(state: State, asset: str, shards: Sequence[str]) -> pl.DataFrame:
    """`sample_id`, `shard`, `characters` and `tail_characters` of the samples whose row cannot be kept."""
    wanted = state.index.accepted.filter(pl.col("shard").is_in([int(shard) for shard in shards]))
    kept = [*_finished(state, asset, shards), *_begun(state, asset, shards)]
    if kept:
        wanted = wanted.join(pl.concat(kept), on=["sample_id", "digest"], how="anti")
    return wanted.select("sample_id", "shard", "characters", "tail_characters")


def _finished(state: State, asset: str, shards: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Ids and digests of the tables that the wanted scorer made."""
    scorer = state.row_scorer(asset)
    for key, stamp in state.store.stamps((asset, shard) for shard in shards).items():
        if stamp is not None and stamp.scorer == scorer:
            yield state.store.read(*key, columns=list(_IDENTITY))


def _begun(state: State, asset: str, shards: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Ids and digests of the rows that an interrupted run saved."""
    scorer = state.row_scorer(asset)
    if scorer is None:
        return
    for shard in {*state.store.files.names(f"{FOLDER}/{asset}")} & {*shards}:
        yield RowCheckpoints(state.store, asset, shard, scorer, _IDENTITY).load().select(_IDENTITY.names())


def sample_tokens(samples: pl.DataFrame, rates: TokenRates, *, limit: int) -> SampleTokens:
    """Token counts from the texts' lengths: `characters` of a sample's texts, `tail_characters` of all but the context.

    How a tail divides into instruction and response, `rates` says for all alike.
    """
    characters = samples["characters"].to_numpy().astype(np.float64)
    tail_characters = samples["tail_characters"].to_numpy().astype(np.float64)
    texts = np.round(tail_characters / rates.tail)
    response = np.maximum(np.round(texts * rates.response), 1.0)
    return SampleTokens(
        context=np.round((characters - tail_characters) / rates.context),
        instruction=texts - response,
        response=response,
        frame=rates.frame,
        opening=rates.opening,
        alone=rates.alone,
        bos=rates.bos,
        special=rates.special,
        limit=limit,
    )


class PromptTokens:
    """Tokens of each sample's prompt, as float64 arrays [samples]: truncated to what the model is shown.

    prompt: the whole of it, 0 for one that is rejected because instruction and response alone are too long.
    context, tail: its parts; the tail is everything but the context, `response` a part of the tail.
    segments: how many segment prompts there are, all but the last with `segment_length` tokens of context.
    """

    def __init__(self, samples: pl.DataFrame, rates: TokenRates, *, limit: int, segment_length: int) -> None:
        parts = sample_tokens(samples, rates, limit=limit).prompts(opening=True)
        self.context, self.tail, self.response, self.prompt = parts.context, parts.tail, parts.response, parts.prompt
        self.segments = np.ceil(self.context / segment_length)
        self.segment_prompt = np.minimum(self.context, segment_length) + self.tail  # all but the last
        self.last_segment = np.where(
            self.segments > 0, self.context - np.maximum(self.segments - 1, 0) * segment_length + self.tail, 0.0
        )
        self.segment_tokens = self.context + self.segments * self.tail
