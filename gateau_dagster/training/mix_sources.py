"""Choose which samples the training mix takes, and how often, by `training.mix`, before anything is tokenised."""

import math
from collections.abc import Mapping
from typing import Literal

import polars as pl

from gateau_dagster.config.training_sections import MixConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.errors import GateauError
from gateau_dagster.training.batching import mix_order

Origin = Literal["long", "short"]


def wanted_samples(
    selected: pl.DataFrame, short: pl.DataFrame | None, *, mix: MixConfig, seed: int
) -> dict[Origin, pl.DataFrame]:
    """Return the rows of both tables that the mix takes, in their order, with a column `copies` (at least 1).

    Args:
        selected: long samples with `sample_id`, `source`, and `rank` if `mix.long_fraction` is below 1.
        short: conversations with `sample_id` and `source`, or None.
        mix: `training.mix`; a source of its weights may be in the data without a sample in these tables.
        seed: of the hash that decides which samples occur once more than others of their source.

    Raises:
        GateauError: a mix without long samples has no conversations.
    """
    if mix.without_long:
        if short is None:
            raise GateauError(
                "training.no_conversations",
                "training.mix.without_long leaves out the long samples, and there are no short conversations. "
                "Add short_chat, or set training.mix.without_long: false.",
            )
        selected = selected.clear()
    elif mix.long_fraction < 1:
        count = part_of(selected.height, mix.long_fraction)
        selected = selected.filter(selected["rank"].rank("ordinal") <= count)
    tables: dict[Origin, pl.DataFrame] = {"long": selected}
    if short is not None:
        tables["short"] = short
    return {origin: _with_copies(table, origin, mix.weights, seed) for origin, table in tables.items()}


def _with_copies(table: pl.DataFrame, origin: Origin, weights: Mapping[str, float], seed: int) -> pl.DataFrame:
    copies = pl.Series("copies", copies_of(table, origin, weights, seed), dtype=pl.Int64)
    return table.with_columns(copies).filter(pl.col("copies") > 0)


def copies_of(table: pl.DataFrame, origin: Origin, weights: Mapping[str, float], seed: int) -> list[int]:
    """Return how often each row occurs in an epoch: its source's weight rounded down, or once more for the fraction.

    Of n samples of weight 2.3 all occur twice, and round(0.3 n) a third time. A hash of their ids chooses these, so
    that another sample changes the number of at most one.

    Args:
        table: `sample_id` and `source`.
        origin: of all rows.
        weights: by source; 1 for other sources.
        seed: of the hash.
    """
    ids, sources = table["sample_id"].to_list(), table["source"].to_list()
    copies = [math.floor(weights.get(source, 1.0)) for source in sources]
    for source, weight in weights.items():
        rows = [row for row, its in enumerate(sources) if its == source]
        once_more = round((weight - math.floor(weight)) * len(rows))
        lot = mix_order([(f"weight/{origin}", ids[row]) for row in rows], seed)
        for place in lot[:once_more]:
            copies[rows[place]] += 1
    return copies
