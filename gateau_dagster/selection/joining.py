"""Join the three tables by sample id, shard by shard: a shard's tables hold the same samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from gateau_dagster.errors import GateauError, gateau_command

MEASURES = pl.Schema(
    {
        "sample_id": pl.String(),
        "perplexity_short": pl.Float64(),
        "perplexity_long": pl.Float64(),
        "probability_short": pl.Float64(),
        "probability_long": pl.Float64(),
        "cas": pl.Float64(),
        "far_gain": pl.Float64(),
        "context_tokens": pl.Int32(),
        "response_tokens": pl.Int32(),
        "segments": pl.Int32(),
    }
)
# The columns read from each table: values per sample only, not lists per token or segment.
COLUMNS = {
    "perplexity/short": ["sample_id", "digest", "perplexity", "mean_probability", "response_tokens"],
    "perplexity/long": ["sample_id", "digest", "perplexity", "mean_probability", "context_tokens", "response_tokens"],
    "cam": ["sample_id", "digest", "segments", "cas", "far_gain"],
}
_NAMED = 5  # the number of samples that a message names
_TWICE = " holds {} more than once: recompute its shards"
_DIFFERING = "perplexity/short, perplexity/long and cam scored different versions of {}"
_UNEVEN = (
    "models.short and models.long tokenise differently ({}): they are not homologous, and their perplexities per token "
    "cannot be compared. Take two models of one family."
)


@dataclass(frozen=True, kw_only=True)
class JoinedShard:
    """The samples of a shard that all three tables hold, and their faults.

    frame: schema MEASURES; `cas` and `far_gain` are null below two segments. It is empty if a sample is listed twice.
    rows: of each table. twice: ids that are in a table more than once. differing: ids whose rows come from different
    versions of the sample. uneven: ids whose response the two models tokenise differently.
    """

    frame: pl.DataFrame
    rows: Mapping[str, int]
    twice: Mapping[str, pl.Series]
    differing: pl.Series
    uneven: pl.Series


def join_shard(tables: Mapping[str, pl.DataFrame]) -> JoinedShard:
    """Join a shard's `tables` by name, with at least COLUMNS."""
    short, long, cam = (tables[name].select(columns) for name, columns in COLUMNS.items())
    twice = {name: _repeated(tables[name]["sample_id"]) for name in COLUMNS}
    if any(ids.len() for ids in twice.values()):
        short = short.clear()
    left = _renamed(short, "short").rename({"response_tokens": "response_tokens_short"})
    joined = left.join(_renamed(long, "long"), on="sample_id")
    joined = joined.join(cam.rename({"digest": "digest_cam"}), on="sample_id")
    versions = (pl.col("digest_short") != pl.col("digest_long")) | (pl.col("digest_long") != pl.col("digest_cam"))
    return JoinedShard(
        frame=joined.select(pl.col(name).cast(kind) for name, kind in MEASURES.items()),
        rows={name: table.height for name, table in tables.items()},
        twice=twice,
        differing=joined.filter(versions)["sample_id"],
        uneven=joined.filter(pl.col("response_tokens") != pl.col("response_tokens_short"))["sample_id"],
    )


def _renamed(table: pl.DataFrame, model: str) -> pl.DataFrame:
    names = {"perplexity": "perplexity", "mean_probability": "probability", "digest": "digest"}
    return table.rename({name: f"{to}_{model}" for name, to in names.items()})


def join_all(shards: Iterable[JoinedShard]) -> pl.DataFrame:
    """Return all shards' samples, schema MEASURES, sorted by id.

    Raises GateauError if the tables come from different versions of a sample, hold a sample twice, or have none in
    common.
    """
    parts = list(shards)
    _refuse(parts)
    joined = pl.concat([part.frame for part in parts]).sort("sample_id")
    _raise_if_any([_repeated(joined["sample_id"])], "storage.out_of_date", "perplexity/short" + _TWICE)
    return joined


def check_observed(measures: pl.DataFrame) -> None:
    """Raise GateauError if no sample with segments to compare has a CAS: theta_B shows no attention weights.

    `measures`: schema MEASURES. Methods that do not read CAS may still use such a table; a ranking by CAS would be
    arbitrary.
    """
    comparable = measures.filter(pl.col("segments") >= 2)
    if comparable.height and comparable["cas"].null_count() == comparable.height:
        raise GateauError(
            "models.no_attention",
            "cam contains no attention, since models.long shows none, but the selection reads CAS: choose "
            "without it (selection.preset robust, far_gain, hmg), or take another models.long",
        )


def _repeated(ids: pl.Series) -> pl.Series:
    """Return the ids that are in the column more than once."""
    if ids.is_sorted():  # as stored tables are: comparing neighbours then needs no hash table
        return ids.slice(1).filter(ids.slice(1) == ids.head(max(0, ids.len() - 1)))
    return ids.filter(ids.is_duplicated())


def _refuse(parts: list[JoinedShard]) -> None:
    for name in COLUMNS:
        _raise_if_any([part.twice[name] for part in parts], "storage.out_of_date", name + _TWICE)
    cure = f": bring the three tables up to date with `{gateau_command('run')}`"
    _raise_if_any([part.differing for part in parts], "storage.out_of_date", _DIFFERING, cure)
    _raise_if_any([part.uneven for part in parts], "models.not_homologous", _UNEVEN)
    if not any(part.frame.height for part in parts):
        sizes = ", ".join(f"{name} {sum(part.rows[name] for part in parts)}" for name in COLUMNS)
        raise GateauError(
            "selection.no_scores", f"no sample was scored by all of {sizes}: read the reasons in the rejected tables"
        )


def _raise_if_any(found: list[pl.Series], code: str, message: str, cure: str = "") -> None:
    ids = pl.concat([*found, pl.Series("sample_id", [], pl.String())]).unique().sort()
    if ids.len():
        more = f" and {ids.len() - _NAMED} more" if ids.len() > _NAMED else ""
        raise GateauError(code, message.format(", ".join(ids.head(_NAMED)) + more) + cure)
