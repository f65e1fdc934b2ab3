"""Perplexity of held-out responses by context length: the checkpoint beside its base model."""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import polars as pl
from transformers import PreTrainedTokenizerBase

from gateau_dagster import tables
from gateau_dagster.config import HeldoutConfig, ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.progress import Progress, silent
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.scorer import Request, score_samples

ALL = "all"
OFFERED = 16


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of context tokens: up to and including each upper end, and one above the last."""

    ends: tuple[int, ...]

    @classmethod
    def of(cls, config: HeldoutConfig) -> "Buckets":
        """The configured ends, ordered, each once."""
        return cls(ends=tuple(sorted(set(config.buckets))))

    def index(self, tokens: int) -> int:
        """Which range `tokens` lies in, from 0."""
        return bisect_left(self.ends, tokens)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each range, in order: `0–512`, `513–1,024`, `over 1,024`."""
        starts = (0, *(end + 1 for end in self.ends))
        ranges = [f"{start:,}–{end:,}" for start, end in zip(starts, self.ends, strict=False)]
        return (*ranges, f"over {self.ends[-1]:,}")


def heldout_ids(raw: pl.DataFrame, scores: pl.DataFrame, selected: pl.DataFrame, config: HeldoutConfig) -> list[str]:
    """Ids of the held-out samples: never trained on, taken evenly from the length buckets, in order of id.

    `raw`: `sample_id`, `digest`. `scores`: `sample_id`, `context_tokens` (samples without a score cannot be measured
    either). `selected`: `sample_id`, `digest`; a sample with the content of a selected one is not held out.

    The order within a bucket is that of a hash of the id: stable when other samples come and go, and no seed.
    Raises GateauError when nothing is left.
    """
    free = _free(raw, selected).join(scores.select("sample_id", "context_tokens"), on="sample_id", how="inner")
    if free.is_empty():
        raise GateauError(
            "evaluation/heldout: every scored sample was selected for training, none is left to hold out. Lower "
            "selection.fraction (or count), or take heldout out of evaluation.benchmarks."
        )
    buckets = Buckets.of(config)
    queues: list[list[str]] = [[] for _ in buckets.labels]
    for sample_id, tokens in sorted(
        free.select("sample_id", "context_tokens").iter_rows(), key=lambda row: _order(row[0])
    ):
        queues[buckets.index(tokens)].append(sample_id)
    return sorted(_deal(queues, config.samples))


def candidates(raw: pl.DataFrame, selected: pl.DataFrame, config: HeldoutConfig) -> list[str]:
    """Ids that `heldout_ids` may take where no table says how long the samples are: the first of them in its order.

    `OFFERED` times as many as are wanted, so that only their texts have to be counted.
    """
    return sorted(_free(raw, selected)["sample_id"], key=_order)[: OFFERED * config.samples]


def _free(raw: pl.DataFrame, selected: pl.DataFrame) -> pl.DataFrame:
    """`sample_id`, `digest`: neither selected nor of a selected sample's content, and each content once."""
    return (
        raw.select("sample_id", "digest")
        .sort("sample_id")
        .join(selected.select("sample_id"), on="sample_id", how="anti")
        .join(selected.select("digest"), on="digest", how="anti")
        .unique("digest", keep="first", maintain_order=True)
    )


def _order(sample_id: str) -> str:
    return hashlib.sha256(f"heldout:{sample_id}".encode()).hexdigest()


def _deal(queues: Sequence[list[str]], count: int) -> list[str]:
    """One from each queue in turn, until `count` are dealt or all queues are empty."""
    longest = max(len(queue) for queue in queues)
    dealt = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return dealt[:count]


MODELS = ("base", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class HeldoutResult:
    """`table`: tables.HELDOUT. `per_sample`: one row a sample and model. `rejected`: measured under neither model."""

    table: pl.DataFrame
    per_sample: pl.DataFrame
    rejected: list[Reject]


def heldout_perplexity(
    base: LoadedModel,
    checkpoint: LoadedModel,
    samples: Sequence[Sample],
    *,
    config: HeldoutConfig,
    scoring: ScoringConfig,
    max_length: int,
    progress: Progress = silent,
) -> HeldoutResult:
    """Eq. 1 for every sample under both models, averaged by range of context tokens (before truncation), and overall.

    A sample that one model cannot score counts for neither, so that both are measured on the same samples; its
    reason names the model. `mean_nll` weighs every sample alike. Raises GateauError when no sample is left.
    """
    scored: dict[str, dict[str, PerplexityRow]] = {}
    rejected: dict[str, Reject] = {}
    requests = [Request(sample=sample, perplexity=True, cam=False) for sample in samples]
    for place, (name, loaded) in enumerate(zip(MODELS, (base, checkpoint), strict=True)):
        rows = scored.setdefault(name, {})
        outcomes = score_samples(loaded, requests, max_length=max_length, scoring=scoring, meter=Meter())
        for done, outcome in enumerate(outcomes, start=1):
            row = outcome.perplexity
            if isinstance(row, PerplexityRow):
                rows[row.sample_id] = row
            elif row is not None:
                rejected.setdefault(row.sample_id, Reject(sample_id=row.sample_id, reason=f"{name}: {row.reason}"))
            progress(place * len(samples) + done, len(MODELS) * len(samples), "samples", name)
    per_sample = _per_sample(scored, rejected, config)
    if per_sample.is_empty():
        reason = next(iter(rejected.values())).reason if rejected else "there is none"
        raise GateauError(
            f"evaluation/heldout: none of {len(samples)} held-out samples could be scored ({reason}). Raise "
            "scoring.max_length, or take heldout out of evaluation.benchmarks."
        )
    return HeldoutResult(
        table=heldout_table(per_sample, config), per_sample=per_sample, rejected=list(rejected.values())
    )


def context_lengths(tokenizer: PreTrainedTokenizerBase, samples: pl.DataFrame) -> pl.DataFrame:
    """`sample_id` and `context_tokens` i32 of `samples` (tables.RAW_LONG_SFT): the contexts' tokens, none cut off."""
    counted = [
        len(tokenizer(context, add_special_tokens=False, verbose=False)["input_ids"]) for context in samples["context"]
    ]
    return samples.select("sample_id", pl.Series("context_tokens", counted, dtype=pl.Int32))


def _per_sample(
    scored: dict[str, dict[str, PerplexityRow]], rejected: dict[str, Reject], config: HeldoutConfig
) -> pl.DataFrame:
    """The perplexity rows of both models with `model` and `bucket` (index into the ranges), by sample and model."""
    buckets = Buckets.of(config)
    lengths = {name: row.context_tokens + row.truncated_tokens for name, row in scored["base"].items()}
    rows = [
        {"model": model, "bucket": buckets.index(lengths[row.sample_id]), **asdict(row)}
        for model in MODELS
        for row in scored[model].values()
        if row.sample_id not in rejected
    ]
    schema = {"model": pl.String(), "bucket": pl.Int32(), **tables.schema(tables.PERPLEXITY)}
    return pl.DataFrame(rows, schema=schema).sort("sample_id", "model")


def heldout_table(per_sample: pl.DataFrame, config: HeldoutConfig) -> pl.DataFrame:
    """tables.HELDOUT from `per_sample` (`model`, `bucket`, `mean_nll`): ranges in order of length, then `all`.

    A range without samples has no row: the mean of nothing is no number.
    """
    labels = Buckets.of(config).labels
    rows = []
    for bucket in [*range(len(labels)), None]:
        part = per_sample if bucket is None else per_sample.filter(pl.col("bucket") == bucket)
        for model in MODELS:
            values = part.filter(pl.col("model") == model)["mean_nll"].to_list()
            if values:
                mean = math.fsum(values) / len(values)
                label = ALL if bucket is None else labels[bucket]
                rows.append((label, model, len(values), mean, math.exp(mean)))
    return pl.DataFrame(rows, schema=tables.schema(tables.HELDOUT), orient="row")
