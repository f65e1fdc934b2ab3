"""Build the training mix of selected long samples and short conversations, in training order, and its figures."""

# Why tokens are stored, and not text: the mix is tokenised once, and not by each rank and attempt. A sample that cannot
# be trained is a reject with a reason before training begins. `gateau plan` and the page of the asset count real
# tokens.
#
# What it costs: 8 bytes for id and label of a token. The table is made in memory, and so is its copy in the order of
# training.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import MixConfig, TrainedTurns, TrainingConfig
from gateau_dagster.config.values import part_of
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.progress import Progress
from gateau_dagster.tables import REJECTED, TRAINING_MIX, TRIMMED_TOKENS, WEIGHTED_MIX, Column, schema
from gateau_dagster.training.batch_plan import mix_order
from gateau_dagster.training.encode import IGNORED, Encoded, encode_conversation, encode_long
from gateau_dagster.training.token_weights import TokenWeights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it when the same samples give another mix.
CODE_VERSION = "6"

Origin = Literal["long", "short"]
Row = dict[str, Any]
"""The columns of `mix_columns`, except `position`."""


def mix_columns(*, weighted: bool = False, trimmed: bool = False) -> tuple[Column, ...]:
    """Return the columns of a mix: tables.TRAINING_MIX, or with weights WEIGHTED_MIX, and with TRIMMED_TOKENS."""
    return (*(WEIGHTED_MIX if weighted else TRAINING_MIX), *((TRIMMED_TOKENS,) if trimmed else ()))


def build_training_mix(
    selected: pl.DataFrame,
    short: pl.DataFrame | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    training: TrainingConfig,
    template: Template,
    progress: Progress,
    weights: TokenWeights | None = None,
    kept_context: Mapping[str, int] | None = None,
    trained_turns: TrainedTurns = "all",
) -> tuple[pl.DataFrame, pl.DataFrame, Counter[str]]:
    """Tokenise and shuffle the samples. The order depends only on `training.seed` and the ids.

    Args:
        selected: `tables.SELECTED_SUBSET`; without `rank` if `training.mix` uses all of it.
        short: `tables.SHORT_CHAT_MIX`, or None for long samples only.
        tokenizer: the trained model's.
        training: the section with `max_length`, `truncation`, `seed` and `mix`.
        template: `gateau` or `chat`, as in scoring.
        progress: receives the number of samples.
        weights: the token weights of long samples, if `training.loss` is longce or far_gain.
        kept_context: by sample id, the number of tokens at the end of a long sample's context that stay
            (`training.trim`). Contexts of other samples stay whole, and so do conversations under template chat. None:
            all contexts stay whole.
        trained_turns: the answers with loss in a long sample of several exchanges.

    Returns:
        The mix (`mix_columns`), in which a sample of weight 2 has two rows; the rejected samples (`tables.REJECTED`);
        and the number of answers without loss, see `Encoded.unlearned`. Samples that `training.mix` leaves out are in
        neither table.

    Raises:
        GateauError: no sequence is left, no sample is from a source that `training.mix` names, the tokenizer has no
            usable chat template, or the tokens of `weights` differ from the trained ones.
    """
    wanted = wanted_samples(selected, short, mix=training.mix, seed=training.seed)
    total = sum(table.height for table in wanted.values())
    taken: list[tuple[Row, int]] = []
    rejects: list[Reject] = []
    unlearned: Counter[str] = Counter()
    samples: Iterator[tuple[Origin, dict[str, Any]]] = (
        (origin, sample) for origin, table in wanted.items() for sample in table.iter_rows(named=True)
    )
    for done, (origin, sample) in enumerate(samples, start=1):
        try:
            kept = None if kept_context is None else kept_context.get(sample["sample_id"])
            encoded = _encoded(origin, sample, tokenizer, training, template, trained_turns, kept)
            row: Row = {
                "sample_id": sample["sample_id"],
                "origin": origin,
                "source": sample["source"],
                "input_ids": encoded.input_ids,
                "labels": encoded.labels,
                "block_tokens": encoded.block_tokens,
                "truncated_tokens": encoded.truncated_tokens,
            }
            if weights is not None:
                plain = np.ones(len(encoded.input_ids), dtype=np.float32)
                row["weights"] = plain if origin == "short" else weights.of(Sample.of_row(sample), encoded)
            if kept_context is not None:
                row["trimmed_tokens"] = encoded.trimmed_tokens
        except UnscorableSampleError as error:
            rejects.append(Reject(sample_id=sample["sample_id"], reason=str(error)))
        else:
            unlearned.update(encoded.unlearned)
            taken.append((row, sample["copies"]))
        progress(done, total, "samples")
    if not taken:
        reasons = "; ".join(sorted({reject.reason for reject in rejects})[:3]) or "there are no samples"
        raise GateauError(
            "training.empty_mix",
            f"the training mix is empty ({reasons}). Raise training.max_length, select more samples, add short_chat, "
            "or change training.mix.",
        )
    return _in_order(taken, training.seed), rejected_table(rejects), unlearned


def rejected_table(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return the rejects as `tables.REJECTED`, in their order."""
    return pl.DataFrame([(each.sample_id, each.reason) for each in rejects], schema(REJECTED), orient="row")


def _in_order(taken: Sequence[tuple[Row, int]], seed: int) -> pl.DataFrame:
    """Return the shuffled mix. Each copy has a separate place; that of the first does not depend on the weight."""
    rows = [(row, copy) for row, copies in taken for copy in range(copies)]
    places = [(row["origin"], f"{row['sample_id']}/{copy}" if copy else row["sample_id"]) for row, copy in rows]
    ordered = [rows[index][0] for index in mix_order(places, seed)]
    columns = {name: [row[name] for row in ordered] for name in ordered[0]}
    kind = schema(mix_columns(weighted="weights" in columns, trimmed="trimmed_tokens" in columns))
    return pl.DataFrame({"position": range(len(ordered)), **columns}, schema=kind)


def _encoded(
    origin: Origin,
    sample: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingConfig,
    template: Template,
    trained_turns: TrainedTurns,
    kept: int | None,
) -> Encoded:
    if origin == "short":
        return encode_conversation(
            tokenizer,
            sample["messages"],
            template=template,
            max_length=training.max_length,
            trained=sample["trained"],
        )
    return encode_long(
        tokenizer,
        Sample.of_row(sample),
        template=template,
        max_length=training.max_length,
        truncation=training.truncation,
        trained_turns=trained_turns,
        context_tokens=kept,
    )


def wanted_samples(
    selected: pl.DataFrame, short: pl.DataFrame | None, *, mix: MixConfig, seed: int
) -> dict[Origin, pl.DataFrame]:
    """Return the rows of both tables that the mix uses, in their order, with a column `copies` (at least 1).

    Args:
        selected: long samples with `sample_id`, `source`, and `rank` if `mix.long_fraction` is below 1.
        short: conversations with `sample_id` and `source`, or None.
        mix: `training.mix`; a source that has a weight may have no sample in these tables.
        seed: seed of the hash that decides which samples get one copy more than others of their source.

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
    for origin, table in tables.items():
        copies = pl.Series("copies", copies_of(table, origin, mix.weights, seed), dtype=pl.Int64)
        tables[origin] = table.with_columns(copies).filter(pl.col("copies") > 0)
    return tables


def copies_of(table: pl.DataFrame, origin: Origin, weights: Mapping[str, float], seed: int) -> list[int]:
    """Return how often each row occurs in an epoch: the weight of its source, rounded down or up.

    Of n samples of weight 2.3, all occur twice, and round(0.3 n) a third time. A hash of the ids chooses these, so that
    an additional sample changes the number of at most one other.

    Args:
        table: `sample_id` and `source`.
        origin: the origin of all rows.
        weights: the weights by source; other sources have weight 1.
        seed: seed of the hash.
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


def mix_sequences(mix: pl.DataFrame) -> pl.DataFrame:
    """Return one row per sequence of the mix (tables.TRAINING_MIX).

    Columns are `sample_id`, `origin`, `source`, and the int64 counts `tokens`, `trained_tokens` (tokens with loss),
    `truncated_tokens`, and `trimmed_tokens` if the mix has it.
    """
    tokens = pl.col("input_ids").list.len().cast(pl.Int64)
    cut_off = [name for name in ("truncated_tokens", "trimmed_tokens") if name in mix.columns]
    return mix.select(
        "sample_id",
        "origin",
        "source",
        tokens.alias("tokens"),
        (tokens - pl.col("labels").list.count_matches(IGNORED)).alias("trained_tokens"),
        pl.col(cut_off).cast(pl.Int64),
    )


def by_source(sequences: pl.DataFrame) -> pl.DataFrame:
    """Return figures of each origin and source, in descending order of tokens.

    Args:
        sequences: see `mix_sequences`.

    Returns:
        `origin`, `source`, `sequences`, `samples` (fewer if a weight repeats them), `tokens`, `trained_tokens`,
            `truncated` (sequences), `median` and `longest` (tokens of a sequence).
    """
    figures = sequences.group_by("origin", "source").agg(
        pl.len().alias("sequences"),
        pl.col("sample_id").n_unique().alias("samples"),
        pl.col("tokens").sum(),
        pl.col("trained_tokens").sum(),
        (pl.col("truncated_tokens") > 0).sum().alias("truncated"),
        pl.col("tokens").median().cast(pl.Int64).alias("median"),
        pl.col("tokens").max().alias("longest"),
    )
    return figures.sort("tokens", "origin", "source", descending=[True, False, False])


def mix_summary(sequences: pl.DataFrame) -> dict[str, Any]:
    """Return figures of the whole mix. `sequences`: see `mix_sequences`; at least one row."""
    tokens = sequences["tokens"]
    total, trained = int(tokens.sum()), int(sequences["trained_tokens"].sum())
    trimmed = {}
    if "trimmed_tokens" in sequences.columns:
        counts = sequences["trimmed_tokens"]
        trimmed = {"trimmed_sequences": int((counts > 0).sum()), "trimmed_tokens": int(counts.sum())}
    return {
        "sequences": dict(sequences.group_by("origin").len().sort("origin").iter_rows()),
        "tokens": total,
        "trained_tokens": trained,
        "trained_share": trained / total,
        "truncated_sequences": int((sequences["truncated_tokens"] > 0).sum()),
        "truncated_tokens": int(sequences["truncated_tokens"].sum()),
        **trimmed,
        "sequence_tokens": {
            name: round(tokens.quantile(share, "nearest") or 0)
            for name, share in (("10 %", 0.1), ("50 %", 0.5), ("90 %", 0.9), ("longest", 1.0))
        },
    }
