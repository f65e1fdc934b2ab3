"""What the three tables say of each sample, joined by id shard by shard: a shard's tables hold the same samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow.compute

from gateau_dagster.errors import GateauError
from gateau_dagster.selection.far_gain import Segmented, far_gain, in_full_sight

pc: Any = pyarrow.compute  # its functions are made at import time, so that no type checker knows them

MEASURES = pl.Schema(
    {
        "sample_id": pl.String(),
        "perplexity_short": pl.Float64(),
        "perplexity_long": pl.Float64(),
        "cas": pl.Float64(),
        "far_gain": pl.Float64(),
        "context_tokens": pl.Int32(),
        "response_tokens": pl.Int32(),
        "segments": pl.Int32(),
    }
)
# What is read of each table; of long texts and attention nothing.
COLUMNS = {
    "perplexity/short": ["sample_id", "digest", "perplexity", "context_tokens", "response_tokens"],
    "perplexity/long": ["sample_id", "digest", "perplexity", "context_tokens", "response_tokens"],
    "cam": ["sample_id", "digest", "segments", "segment_perplexity", "cas"],
}
_NAMED = 5  # samples that a message names
_TWICE = " holds {} more than once: recompute its shards"
_DIFFERING = (
    "perplexity/short, perplexity/long and cam scored different versions of {}: bring the three tables up to date with "
    "`gateau run`"
)
_UNEVEN = (
    "models.short and models.long tokenise differently ({}): they are not homologous, and their perplexities per token "
    "cannot be compared. Take two models of one family."
)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The samples of a shard that all three tables hold, and what is wrong with them.

    frame: schema MEASURES; `cas` null and `far_gain` NaN below two segments. Empty if a sample stands twice.
    hides: see Segmented.
    rows: of each table.
    twice: ids that stand in a table more than once.
    differing: ids whose rows stem from different versions of the sample; uneven: whose response was tokenised
        differently by the two models.
    """

    frame: pl.DataFrame
    hides: bool
    rows: Mapping[str, int]
    twice: Mapping[str, pl.Series]
    differing: pl.Series
    uneven: pl.Series


def join_shard(tables: Mapping[str, pl.DataFrame], *, segment_length: int) -> Joined:
    """Joins a shard's `tables` by name, with at least COLUMNS; `segment_length` is the one of its `cam` table."""
    short, long, cam = (tables[name].select(columns) for name, columns in COLUMNS.items())
    twice = {name: _repeated(tables[name]["sample_id"]) for name in COLUMNS}
    if any(ids.len() for ids in twice.values()):
        short = short.clear()
    left = short.rename({"digest": "digest_short", "perplexity": "perplexity_short"}).rename(
        {"context_tokens": "visible_tokens", "response_tokens": "response_tokens_short"}
    )
    right = long.rename({"digest": "digest_long", "perplexity": "perplexity_long"})
    joined = left.join(right, on="sample_id").join(cam.rename({"digest": "digest_cam"}), on="sample_id")
    versions = (pl.col("digest_short") != pl.col("digest_long")) | (pl.col("digest_long") != pl.col("digest_cam"))
    segmented = _segmented(joined, segment_length)
    return Joined(
        frame=joined.with_columns(far_gain=far_gain(segmented)).select(
            pl.col(name).cast(kind) for name, kind in MEASURES.items()
        ),
        hides=segmented.hides,
        rows={name: table.height for name, table in tables.items()},
        twice=twice,
        differing=joined.filter(versions)["sample_id"],
        uneven=joined.filter(pl.col("response_tokens") != pl.col("response_tokens_short"))["sample_id"],
    )


def join_all(shards: Iterable[Joined]) -> pl.DataFrame:
    """All shards' samples, schema MEASURES, sorted by id.

    Raises GateauError when the tables stem from different versions of a sample, hold a sample twice, or have none in
    common.
    """
    parts = list(shards)
    _refuse(parts)
    hides = any(part.hides for part in parts)
    frames = [part.frame if part.hides or not hides else _in_full_sight(part.frame) for part in parts]
    joined = pl.concat(frames).sort("sample_id")
    _raise_if_any([_repeated(joined["sample_id"])], "perplexity/short" + _TWICE)
    return joined


def _in_full_sight(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(far_gain=in_full_sight(frame["far_gain"].to_numpy()))


def _repeated(ids: pl.Series) -> pl.Series:
    """Ids that stand in the column more than once."""
    if ids.is_sorted():  # as stored tables are: then neighbours tell it, without a hash table
        return ids.slice(1).filter(ids.slice(1) == ids.head(max(0, ids.len() - 1)))
    return ids.filter(ids.is_duplicated())


def _segmented(joined: pl.DataFrame, segment_length: int) -> Segmented:
    lists = joined["segment_perplexity"].cast(pl.List(pl.Float64())).to_arrow()
    return Segmented(
        context_tokens=joined["context_tokens"].cast(pl.Int64).to_numpy(),
        visible_tokens=joined["visible_tokens"].cast(pl.Int64).to_numpy(),
        segments=pc.list_value_length(lists).fill_null(0).cast("int64").to_numpy(zero_copy_only=False),
        segment_perplexity=lists.flatten().to_numpy(zero_copy_only=False),
        segment_length=segment_length,
    )


def _refuse(parts: list[Joined]) -> None:
    for name in COLUMNS:
        _raise_if_any([part.twice[name] for part in parts], name + _TWICE)
    _raise_if_any([part.differing for part in parts], _DIFFERING)
    _raise_if_any([part.uneven for part in parts], _UNEVEN)
    if not any(part.frame.height for part in parts):
        sizes = ", ".join(f"{name} {sum(part.rows[name] for part in parts)}" for name in COLUMNS)
        raise GateauError(f"no sample was scored by all of {sizes}: the rejected tables give the reasons")


def _raise_if_any(found: list[pl.Series], message: str) -> None:
    ids = pl.concat([*found, pl.Series("sample_id", [], pl.String())]).unique().sort()
    if ids.len():
        more = f" and {ids.len() - _NAMED} more" if ids.len() > _NAMED else ""
        raise GateauError(message.format(", ".join(ids.head(_NAMED)) + more))
