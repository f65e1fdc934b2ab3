"""The evidence maps of samples, from the store: rows are read by shard, and of the wanted samples alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.data.sample import Sample, shard_keys, shard_of
from gateau_dagster.models.known_model import known_tokenizer
from gateau_dagster.report.evidence import NAMED_GAIN, Evidence, EvidenceRows, Row, evidence
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, perplexity_asset

if TYPE_CHECKING:
    from gateau_dagster.pipeline.state import State

SHORT, LONG = perplexity_asset(THETA_A), perplexity_asset(THETA_B)
_GAINS = ["sample_id", "near_probability", "far_probability", "far_segment"]
# By sample, the far segments that its map names, ascending.
NAMED = pl.Schema({"sample_id": pl.String(), "named": pl.List(pl.Int32())})


@dataclass(frozen=True, kw_only=True)
class EvidenceMaps:
    """Maps by sample id. missing: why there is none, in a sentence; empty where nobody measured segments, too."""

    maps: Mapping[str, Evidence] = field(default_factory=dict)
    missing: str = ""


def no_evidence(samples: Sequence[Sample]) -> EvidenceMaps:
    """Of tables without `cam`."""
    del samples
    return EvidenceMaps()


def evidence_maps(state: State, samples: Sequence[Sample]) -> EvidenceMaps:
    """The maps of those samples that `cam` and `perplexity/long` have rows of; the tables are to be up to date.

    Raises:
        GateauError: a table is not there, is damaged, or is of other texts than these.
    """
    config = state.config
    tokenizer = known_tokenizer(config, THETA_B)
    path = config.models[THETA_B].path
    if tokenizer is None:
        return EvidenceMaps(missing=f"The tokenizer of models.{THETA_B}, {path}, is not on this machine.")
    if not tokenizer.is_fast:
        return EvidenceMaps(
            missing=f"The tokenizer of models.{THETA_B}, {path}, does not say where its tokens stand in a text: it has "
            "no tokenizer.json."
        )
    cam, long = (_rows(state, asset, samples) for asset in (CAM, LONG))
    # Methods that compare no models do without theta_A's figures.
    short = _rows(state, SHORT, samples) if SHORT in state.asset("report").reads else {}
    found = {
        one.sample_id: evidence(
            one,
            EvidenceRows(cam=cam[one.sample_id], long=long[one.sample_id], short=short.get(one.sample_id)),
            tokenizer,
            segment_length=config.scoring.segment_length,
        )
        for one in samples
        if one.sample_id in cam and one.sample_id in long
    }
    return EvidenceMaps(maps=found)


def _rows(state: State, asset: str, samples: Sequence[Sample]) -> dict[str, Row]:
    shards = state.config.long_sft.shards
    ids = pl.DataFrame({"sample_id": [one.sample_id for one in samples]}, schema={"sample_id": pl.String()})
    places = [shard_of(one.sample_id, shards) for one in samples]
    found: dict[str, Any] = {}
    for place, key in enumerate(shard_keys(shards)):
        if place in places:
            rows = state.store.read_rows(asset, key, ids)
            found |= {row["sample_id"]: row for row in rows.iter_rows(named=True)}
    return found


def named_by_sample(state: State) -> pl.DataFrame:
    """NAMED, of every row of `cam`; read shard by shard, since it is read with every response token.

    Raises:
        GateauError: the table is not there, or is damaged.
    """
    parts = [named_of(state.store.read(CAM, shard, _GAINS)) for shard in state.shards]
    return pl.concat([NAMED.to_frame(), *parts])


def named_of(cam: pl.DataFrame) -> pl.DataFrame:
    """NAMED of these rows of `cam`; the same segments as those of their maps."""
    gain = pl.col("far_probability").cast(pl.Float64) - pl.col("near_probability")
    named = (
        cam.explode(*_GAINS[1:])
        .filter(gain >= NAMED_GAIN, pl.col("far_segment").is_not_null())
        .group_by("sample_id")
        .agg(named=pl.col("far_segment").unique().sort())
    )
    found = cam.select("sample_id").join(named, on="sample_id", how="left", maintain_order="left")
    return found.with_columns(pl.col("named").fill_null(pl.lit([], dtype=pl.List(pl.Int32()))))
