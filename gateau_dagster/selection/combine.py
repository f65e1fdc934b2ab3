"""Join the models' tables shard by shard, compute the final score of all samples (Eqs. 2 and 6), and rank them."""

# Why by shard and then whole: a shard's tables have lists per token and segment, and only numbers per sample are kept
# of them. Ten million samples then take about a gigabyte. The scores need all samples at once, since some
# normalisations are over the data set.
#
# Three faults would give a wrong ranking without an error, so they are looked for. A sample may be there twice, its
# rows may be of different versions, and the models may tokenise differently.
#
# What it costs: each preset sorts all samples. All three are computed for any `selection.preset`, because the report
# compares them.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.selection import PRESETS, Preset, alpha_of
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures, PresetScores
from gateau_dagster.selection.statistics import Vector

# Raise it when the same tables give other scores.
CODE_VERSION = "3"

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
READ_COLUMNS = {
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
    """Join a shard's `tables` by name, with at least READ_COLUMNS."""
    short, long, cam = (tables[name].select(columns) for name, columns in READ_COLUMNS.items())
    twice = {name: _repeated(tables[name]["sample_id"]) for name in READ_COLUMNS}
    # A join would multiply repeated rows. The frame stays empty, and `join_all` names the samples.
    if any(ids.len() for ids in twice.values()):
        short = short.clear()
    left = _renamed(short, "short").rename({"response_tokens": "response_tokens_short"})
    joined = left.join(_renamed(long, "long"), on="sample_id")
    joined = joined.join(cam.rename({"digest": "digest_cam"}), on="sample_id")
    # Rows of one sample from before and after an edit may meet while its tables are partly up to date.
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
    for name in READ_COLUMNS:
        _raise_if_any([part.twice[name] for part in parts], "storage.out_of_date", name + _TWICE)
    cure = f": bring the three tables up to date with `{gateau_command('run')}`"
    _raise_if_any([part.differing for part in parts], "storage.out_of_date", _DIFFERING, cure)
    _raise_if_any([part.uneven for part in parts], "models.not_homologous", _UNEVEN)
    if not any(part.frame.height for part in parts):
        sizes = ", ".join(f"{name} {sum(part.rows[name] for part in parts)}" for name in READ_COLUMNS)
        raise GateauError(
            "selection.no_scores", f"no sample was scored by all of {sizes}: read the reasons in the rejected tables"
        )
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
    if ids.is_sorted():  # as stored tables are: comparing neighbours then needs no hash table
        return ids.slice(1).filter(ids.slice(1) == ids.head(max(0, ids.len() - 1)))
    return ids.filter(ids.is_duplicated())


def _raise_if_any(found: list[pl.Series], code: str, message: str, cure: str = "") -> None:
    ids = pl.concat([*found, pl.Series("sample_id", [], pl.String())]).unique().sort()
    if ids.len():
        more = f" and {ids.len() - _NAMED} more" if ids.len() > _NAMED else ""
        raise GateauError(code, message.format(", ".join(ids.head(_NAMED)) + more) + cure)


_FURTHER = {
    "probability_short": "Mean probability of the response tokens under theta_A.",
    "probability_long": "Mean probability of the response tokens under theta_B.",
    "context_tokens": "Context tokens that theta_B saw.",
    "response_tokens": "Response tokens.",
    "segments": "N, segments of the (truncated) context.",
}
_OF_PRESET = {"hmp": "First term", "cas": "Second term", "score": "Final score", "rank": "Rank"}
_PROMISED = {column.name: column for column in tables.COMBINED_SCORES}
COLUMNS = (
    *tables.COMBINED_SCORES,
    *(
        replace(_PROMISED[kind], name=f"{kind}_{preset}", description=f"{name} of the preset {preset}.")
        for preset in PRESETS
        for kind, name in _OF_PRESET.items()
    ),
    *(tables.Column(name=name, dtype=MEASURES[name], description=text) for name, text in _FURTHER.items()),
)

Frame = pl.DataFrame | pl.LazyFrame
Order = npt.NDArray[np.int64]


def combine(short: Frame, long: Frame, cam: Frame, *, preset: Preset, alpha: float | None) -> pl.DataFrame:
    """Return the `ranked` samples of whole tables: `short`, `long` (tables.PERPLEXITY) and `cam` (tables.CAM).

    Raises GateauError as `join_all` does.
    """
    frames = {"perplexity/short": short, "perplexity/long": long, "cam": cam}
    whole = {name: frame.lazy().collect() for name, frame in frames.items()}
    return ranked(join_all([join_shard(whole)]), preset=preset, alpha=alpha)


def ranked(measures: pl.DataFrame, *, preset: Preset, alpha: float | None) -> pl.DataFrame:
    """Return the table of COLUMNS under `preset`, sorted by rank; one row per sample of `measures` (`join_all`).

    A null CAS ranks last, by HMP; ties break by sample_id. `alpha`: for every preset; None: each uses its own.
    """
    found = {name: _preset_columns(measures, name, alpha_of(name, alpha)) for name in PRESETS}
    # The row of each rank. Columns are gathered one by one, so that the table is not in memory twice.
    order = np.empty(measures.height, dtype=np.int64)
    order[found[preset]["rank"].to_numpy() - 1] = np.arange(measures.height)
    taken = {name: measures[name].gather(order) for name in ("sample_id", "perplexity_short", "perplexity_long")}
    each = {name: {kind: found[name].pop(kind).gather(order) for kind in [*found[name]]} for name in PRESETS}
    columns = [*taken.values(), *each[preset].values()]
    columns += [column.alias(f"{kind}_{name}") for name in PRESETS for kind, column in each[name].items()]
    columns += [measures[name].gather(order) for name in _FURTHER]
    frame = pl.DataFrame(columns)
    assert frame.schema == tables.schema(COLUMNS)
    return frame


def with_reasons(absent: pl.DataFrame, rejected: Sequence[Frame]) -> pl.DataFrame:
    """Return `sample_id` and `reason` of the samples without a score, `absent` (column `sample_id`), sorted by id.

    The reasons are from the `rejected` tables; several are joined by "; ". Null means that no reason is known, which is
    a gap in the coverage.
    """
    empty = pl.DataFrame(schema=tables.schema(tables.REJECTED))
    reasons = pl.concat([empty, *(frame.lazy().select("sample_id", "reason").collect() for frame in rejected)])
    joined = reasons.unique().sort("reason").group_by("sample_id").agg(pl.col("reason").str.join("; "))
    return absent.join(joined, on="sample_id", how="left").sort("sample_id")


def _preset_columns(measures: pl.DataFrame, preset: Preset, alpha: float) -> dict[str, pl.Series]:
    values = {field.name: measures[field.name].fill_null(float("nan")).to_numpy() for field in fields(Measures)}
    scores = PRESET_FUNCTIONS[preset](Measures(**values))
    score = scores.score(alpha)
    return {
        "hmp": pl.Series("hmp", scores.hmp),
        "cas": pl.Series("cas", scores.cas, dtype=pl.Float64, nan_to_null=True),
        "score": pl.Series("score", score),
        "rank": pl.Series("rank", rank(scores, score), dtype=pl.Int32),
    }


def rank(scores: PresetScores, score: Vector) -> npt.NDArray[np.int32]:
    """Return the ranks, 1 is the best, int32 [|D|]; ties break by place."""
    # Two groups and not one sort: a sample without segments to compare has no second term, and no number in its place
    # would be fair. So it comes last, whatever its first term is.
    null = np.isnan(scores.cas_term)
    known, unknown = np.flatnonzero(~null), np.flatnonzero(null)
    first = known[_descending(score[known])]
    # With alpha 0, all samples without CAS have the same score; their HMP still orders them.
    last = unknown[_descending(score[unknown], scores.hmp[unknown])]
    ranks = np.empty(null.size, dtype=np.int32)
    ranks[first] = np.arange(1, first.size + 1)
    ranks[last] = np.arange(first.size + 1, null.size + 1)
    return ranks


def _descending(*keys: Vector) -> Order:
    # Equal values are ordered by the next key, then by place. NaN comes last.
    frame = pl.DataFrame({str(number): -key for number, key in enumerate(keys)})
    return frame.select(pl.arg_sort_by(frame.columns, maintain_order=True)).to_series().to_numpy()


def ranked_by_score(scores: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_id`, `score` and `rank` (i32, 1 is the best) of the samples with a score; ties break by sample_id.

    NaN and infinity are no scores. Raises GateauError if no sample has a score.
    """
    known = scores.select("sample_id", "score").filter(pl.col("score").is_finite())
    if not known.height:
        raise GateauError(
            "selection.no_scores",
            "selection.method gives no sample a score, so none can be chosen: read the reasons in its table and "
            "in the rejected tables before it",
        )
    # Ties by id: an order that depends on the shards' order would change with their number.
    ordered = known.sort("score", "sample_id", descending=[True, False])
    return ordered.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))


def choose(chosen: pl.DataFrame, raw: pl.LazyFrame) -> pl.DataFrame:
    """Return tables.SELECTED_SUBSET, sorted by rank: the `chosen` samples (`sample_id`, `score`, `rank`) with their
    texts.

    `raw` is tables.RAW_LONG_SFT; only its chosen rows are read. Raises GateauError if a chosen sample is not in it.
    """
    found = chosen.lazy().join(raw, on="sample_id").collect()
    missing = chosen.join(found, on="sample_id", how="anti")["sample_id"].sort()
    if missing.len():
        raise GateauError(
            "storage.out_of_date",
            f"{missing.len()} chosen samples, {missing[0]} among them, are no longer in raw_long_sft: update the "
            f"scores with `{gateau_command('run')}`",
        )
    return tables.with_conversations(found.sort("rank"), tables.SELECTED_SUBSET)
