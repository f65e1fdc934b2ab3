"""Collect every ranking of the samples: the deciding one, GATEAU's other presets, the other methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from gateau_dagster.comparison.compare import SCORE, rank_spread, read_orders
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.methods.registry import GATEAU, known_methods
from gateau_dagster.report.formula import FORMS, with_terms
from gateau_dagster.selection.combine import ranked_by_score


@dataclass(frozen=True, kw_only=True)
class Summands:
    """The two terms whose weighted sum is a score. `instead`: replaces `weight · second` if a sample lacks the term."""

    names: tuple[str, str]
    weights: tuple[float, float]
    instead: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """One ranking of the samples.

    title: what a high score means.
    table: `sample_id`, `rank` i32 (1 is the best), `score` f64, of samples with a score; with `summands` also `first`,
        `second` f64, as the terms enter the score.
    is_method: whether it is a method's own ranking, and not that of another preset of GATEAU.
    """

    name: str
    title: str
    table: pl.DataFrame
    is_method: bool = True
    summands: Summands | None = None


def rankings(
    config: Config, combined_scores: pl.DataFrame | None, method_scores: Mapping[str, pl.DataFrame]
) -> list[Ranking]:
    """Return all rankings, the one that decides the selection first.

    Args:
        combined_scores: tables.COMBINED_SCORES with the columns of every preset; None if GATEAU ranks nothing.
        method_scores: tables.METHOD_SCORES of methods by name; GATEAU's are ignored if `combined_scores` is given.
    """
    found = [] if combined_scores is None else _of_gateau(config, combined_scores)
    known = {ranking.name for ranking in found}
    for name, table in method_scores.items():
        if name not in known and table["score"].count():
            found.append(Ranking(name=name, title=known_methods(config)[name].title, table=ranked_by_score(table)))
    return sorted(found, key=lambda ranking: ranking.name != config.selection.method)


def _of_gateau(config: Config, scores: pl.DataFrame) -> list[Ranking]:
    """Return the configured preset under the method's own name, with its terms; then the other presets."""
    selection, title = config.selection, known_methods(config)[GATEAU].title
    alpha, names = selection.alphas[selection.preset], [form.name for form in FORMS[selection.preset]]
    with_sum = with_terms(scores, selection.preset)
    summands = Summands(
        names=(names[0], names[1]),
        weights=(alpha, 1 - alpha),
        instead=max(with_sum["without_cas"].to_list(), default=0.0),
    )
    terms = {"first": "hmp_term", "second": "cas_term"}
    decides = Ranking(
        name=GATEAU,
        title=f"{title} Preset {selection.preset}.",
        table=_ordered(with_sum, selection.preset, terms),
        summands=summands,
    )
    others = [
        Ranking(
            name=f"{GATEAU}, preset {preset}",
            title=f"{title} Preset {preset}.",
            table=_ordered(scores, preset, {}),
            is_method=False,
        )
        for preset in PRESETS
        if preset != selection.preset
    ]
    return [decides, *others]


def _ordered(scores: pl.DataFrame, preset: str, further: Mapping[str, str]) -> pl.DataFrame:
    columns = {"rank": f"rank_{preset}", "score": f"score_{preset}", **further}
    return scores.select("sample_id", **{name: pl.col(column) for name, column in columns.items()}).sort("rank")


def disputed(samples: Sequence[str], found: Sequence[Ranking]) -> pl.Series | None:
    """Return how far apart the methods rank each of `samples`: see comparison.compare.rank_spread.

    With a single method, its presets are compared; None with a single ranking.
    """
    methods = [ranking for ranking in found if ranking.is_method]
    counted = methods if len(methods) > 1 else list(found)
    if len(counted) < 2:
        return None
    frame = pl.DataFrame({"sample_id": samples}, schema={"sample_id": pl.String()}).with_row_index("row")
    for ranking in counted:
        scores = ranking.table.select("sample_id", pl.col("score").alias(SCORE + ranking.name))
        frame = frame.join(scores, on="sample_id", how="left")
    frame = frame.sort("sample_id")
    spread = rank_spread(read_orders(frame, [ranking.name for ranking in counted]))
    return frame.with_columns(spread=spread).sort("row")["spread"]
