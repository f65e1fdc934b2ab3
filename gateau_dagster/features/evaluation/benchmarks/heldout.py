"""Perplexity of held-out responses by context length: the checkpoint compared with its base model."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.document_split import SPLIT, Reserving
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import (
    MODELS,
    Materials,
    Measured,
    MeasuredBenchmark,
    PageFigure,
    PageSection,
    PageTable,
)
from gateau_dagster.models.prompt import encode
from gateau_dagster.readable import PageAmount, PageChart, number, percent, plural
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.models.loaded import LoadedModel
    from gateau_dagster.scoring.response_perplexity import PerplexityRow


# Choice of the reserved samples that are measured, by ranges of context length.


OFFERED = 16


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of context tokens: one range up to and including each upper end, and one above the last end."""

    ends: tuple[int, ...]

    @classmethod
    def of(cls, ends: Iterable[int]) -> Buckets:
        """Sort the ends and drop repeated ones."""
        return cls(ends=tuple(sorted(set(ends))))

    def index(self, tokens: int) -> int:
        """Return the index of the range that contains `tokens`."""
        return bisect_left(self.ends, tokens)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return a name for each range, in order: `0–512`, `513–1,024`, `over 1,024`."""
        starts = (0, *(end + 1 for end in self.ends))
        ranges = [f"{start:,}–{end:,}" for start, end in zip(starts, self.ends, strict=False)]
        return (*ranges, f"over {self.ends[-1]:,}")


def heldout_ids(reserved: pl.DataFrame, lengths: pl.DataFrame, *, count: int, buckets: Buckets) -> list[str]:
    """Return the ids of `count` reserved samples, taken evenly from the length buckets, in order of id.

    `reserved`: `sample_id`, `digest`; each content is taken once. `lengths`: `sample_id`, `context_tokens`; other
    samples are left out.

    A hash of the id determines the order within a bucket. It needs no seed, and stays the same when other samples are
    added or removed.
    """
    known = _each_once(reserved).join(lengths.select("sample_id", "context_tokens"), on="sample_id", how="inner")
    queues: list[list[str]] = [[] for _ in buckets.labels]
    for sample_id, tokens in sorted(
        known.select("sample_id", "context_tokens").iter_rows(), key=lambda row: _order(row[0])
    ):
        queues[buckets.index(tokens)].append(sample_id)
    return sorted(_deal(queues, count))


def candidates(reserved: pl.DataFrame, *, count: int) -> list[str]:
    """Return the ids that `heldout_ids` may take: the first `OFFERED` times `count` of `reserved`, in its order.

    Only the texts of these are tokenised.
    """
    return sorted(_each_once(reserved)["sample_id"], key=_order)[: OFFERED * count]


def _each_once(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.sort("sample_id").unique("digest", keep="first", maintain_order=True)


def _order(sample_id: str) -> str:
    return hashlib.sha256(f"heldout:{sample_id}".encode()).hexdigest()


def _deal(queues: Sequence[list[str]], count: int) -> list[str]:
    # In turn, since data may have few long contexts. A random choice would then leave too few of them for a mean.
    longest = max(len(queue) for queue in queues)
    dealt = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return dealt[:count]


# The report's section on held-out perplexity.


_COLUMNS = {
    "bucket": "context (tokens)",
    "model": "model",
    "samples": "samples",
    "mean_nll": "mean NLL (nats per token)",
    "perplexity": "perplexity",
}


def heldout_chart(heldout: pl.DataFrame) -> PageChart:
    """Return the perplexities: over all samples, then by context length."""
    is_whole = pl.col("bucket") == "all"
    rows = pl.concat([heldout.filter(is_whole), heldout.filter(~is_whole)])
    amounts = [
        PageAmount(name=f"{bucket} {model}", value=value, reference=model == MODELS[0])
        for bucket, model, value in rows.select("bucket", "model", "perplexity").iter_rows()
    ]
    return PageChart(name="perplexity", amounts=amounts)


def heldout_sentence(heldout: pl.DataFrame) -> str:
    """Describe the 'all' rows of the table in a sentence."""
    rows = {row["model"]: row for row in heldout.filter(pl.col("bucket") == "all").iter_rows(named=True)}
    if set(rows) != {*MODELS}:
        return "The two models cannot be compared: one of them has no held-out score."
    base, tuned = (rows[model]["perplexity"] for model in MODELS)
    change = tuned / base - 1
    word = "lower than" if change < 0 else "higher than" if change > 0 else "equal to"
    size = "" if change == 0 else f"{percent(abs(change))} "
    return (
        f"Over {plural(rows['base']['samples'], 'sample')} that were not trained on, the checkpoint's perplexity of "
        f"the response, {number(tuned)}, is {size}{word} its base model's, {number(base)}."
    )


def heldout_bars(heldout: pl.DataFrame) -> Figure:
    """Draw response perplexity by context length, base beside checkpoint."""
    from gateau_dagster.plotting import BASE, CHECKPOINT, INK, label, legend, new_figure, say

    buckets = heldout["bucket"].unique(maintain_order=True).to_list()
    figure, (axis,) = new_figure(
        "Held-out samples: perplexity of the response", height=1.2 + 0.55 * max(3, len(buckets))
    )
    if not buckets:
        say(axis, "no held-out sample could be scored")
        return figure
    for offset, model, colour in zip((-0.2, 0.2), MODELS, (BASE, CHECKPOINT), strict=True):
        rows = heldout.filter(pl.col("model") == model)
        places = [buckets.index(bucket) + offset for bucket in rows["bucket"]]
        bars = axis.barh(places, rows["perplexity"], 0.38, color=colour, label=model)
        axis.bar_label(bars, [_short(value) for value in rows["perplexity"]], fontsize=9, color=INK, padding=3)
    counts = dict(heldout.select("bucket", "samples").iter_rows())
    # On the vertical axis their names have room even on a phone.
    axis.set_yticks(range(len(buckets)), [f"{bucket}\n({plural(counts[bucket], 'sample')})" for bucket in buckets])
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.margins(x=0.15)
    label(axis, x="perplexity (lower is better)", y="context (tokens)")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure


def _short(value: float) -> str:
    # An exponent would hide how large the perplexities of a small model are.
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


ALL = "all"

HELDOUT = (
    Column(name="bucket", dtype=pl.String(), description="Range of context tokens."),
    Column(name="model", dtype=pl.String(), description="base or checkpoint."),
    Column(name="samples", dtype=pl.Int32(), description="Samples in the bucket."),
    Column(
        name="mean_nll",
        dtype=pl.Float64(),
        description="Mean over samples of the mean negative log-likelihood per response token.",
    ),
    Column(
        name="perplexity",
        dtype=pl.Float64(),
        description="exp(mean_nll): the geometric mean of the samples' perplexities.",
    ),
)


class HeldoutOptions(Reserving):
    """Response perplexity on samples of documents that were not trained on, by context length."""

    samples: int = Field(
        default=64, ge=1, description="Reserved samples that are measured, taken evenly from the length buckets."
    )
    buckets: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Upper ends of the context-length buckets, in tokens.",
    )


def _scored(loaded: LoadedModel, samples: Sequence[Sample], scoring: ScoringConfig) -> Iterator[PerplexityRow | Reject]:
    from gateau_dagster.models.loaded import Meter
    from gateau_dagster.scoring.scorer import Request, score_samples

    requests = [Request(sample=sample, perplexity=True, cam=False) for sample in samples]
    for outcome in score_samples(loaded, requests, max_length=scoring.max_length, scoring=scoring, meter=Meter()):
        assert outcome.perplexity is not None, "it was asked for"
        yield outcome.perplexity


def context_lengths(tokenizer: PreTrainedTokenizerBase, samples: Sequence[Sample]) -> pl.DataFrame:
    """Return `sample_id` and `context_tokens` i32 of `samples`; the contexts are not truncated."""
    counted = [len(encode(tokenizer, each.context)) for each in samples]
    ids = [each.sample_id for each in samples]
    schema = {"sample_id": pl.String(), "context_tokens": pl.Int32()}
    return pl.DataFrame({"sample_id": ids, "context_tokens": counted}, schema=schema)


def heldout_table(nlls: pl.DataFrame, labels: Sequence[str]) -> pl.DataFrame:
    """Return HELDOUT from `group` (a label), `model` and `value` (mean NLL): ranges in order of length, then `all`.

    A range without samples has no row, because its mean is undefined.
    """
    rows = []
    for label in [*labels, ALL]:
        part = nlls if label == ALL else nlls.filter(group=label)
        for model in MODELS:
            values = part.filter(model=model)["value"].to_list()
            if values:
                mean = math.fsum(values) / len(values)
                rows.append((label, model, len(values), mean, math.exp(mean)))
    return pl.DataFrame(rows, schema=tables.schema(HELDOUT), orient="row")


class Heldout(MeasuredBenchmark):
    """Response perplexity (Eq. 1) on reserved samples."""

    name = "heldout"
    title = "Held-out samples"
    description = (
        "Perplexity of responses about documents that were not trained on, by context length: base against checkpoint."
    )
    default = True
    code_version = "3"
    options: HeldoutOptions
    unit = "NLL"
    higher = False
    by_group = False
    by_base = True
    groups = "length"
    columns = HELDOUT
    finite = ("mean_nll", "perplexity")

    def reads(self) -> dict[str, By]:
        return {"raw_long_sft": "fingerprint", SPLIT: "content"}

    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return the mean NLL of each sample's response; the group is the range of its context tokens.

        Context tokens are counted by the base model's tokenizer, before truncation.
        """
        samples, lengths = self._chosen(materials)
        buckets = Buckets.of(self.options.buckets)
        rows = []
        for done, row in enumerate(_scored(materials.model(variant), samples, self.config.scoring), start=1):
            value = row if isinstance(row, Reject) else row.mean_nll
            rows.append((row.sample_id, buckets.labels[buckets.index(lengths[row.sample_id])], value))
            materials.progress(done, len(samples), "samples", variant)
        return Measured.of(rows)

    def compare(self, measured: Mapping[str, Measured]) -> Measured:
        """Return the mean NLLs by context tokens and overall; each sample has the same weight.

        A sample that one model cannot score counts for neither, so that both are measured on the same samples. Its
        reason names the model. Raises GateauError if no sample is left.
        """
        rejected: dict[str, Reject] = {}
        for name, found in measured.items():
            for each in found.rejected:
                rejected.setdefault(each.sample_id, replace(each, reason=f"{name}: {each.reason}"))
        nlls = pl.concat(found.table.with_columns(model=pl.lit(name)) for name, found in measured.items())
        nlls = nlls.filter(~pl.col("question_id").is_in([*rejected]))
        if nlls.is_empty():
            reason = next(iter(rejected.values())).reason if rejected else "there is none"
            raise GateauError(
                "evaluation.heldout",
                f"evaluation/heldout: none of {len(rejected)} held-out samples could be scored ({reason}). "
                "Raise scoring.max_length, or remove heldout from evaluation.benchmarks.",
            )
        table = heldout_table(nlls, Buckets.of(self.options.buckets).labels)
        return Measured(table=table, rejected=[*rejected.values()])

    def section(self, table: pl.DataFrame) -> PageSection:
        sentence = heldout_sentence(table)
        figure = PageFigure(
            name="held-out perplexity",
            draw=partial(heldout_bars, table),
            alt="Held-out perplexity by context length",
            caption="How to read it: response perplexity (Eq. 1) on samples of documents that were not trained on, by "
            "length of their context; lower is better. Bars are geometric means over samples, each sample weighs the "
            "same.",
        )
        rows = PageTable(frame=table, columns=_COLUMNS)
        return PageSection(
            sentences=[sentence], figures=[figure], tables=[rows], headline=sentence, chart=heldout_chart(table)
        )

    def _chosen(self, materials: Materials) -> tuple[Sequence[Sample], Mapping[str, int]]:
        """Return the measured samples, and the base model's token counts of their contexts, among others.

        They do not depend on the selection or its method: no table of the selection is read.
        """
        if self.name not in materials.kept:
            split = materials.table(SPLIT, ["sample_id", "reserved"]).filter("reserved")
            reserved = materials.table("raw_long_sft", ["sample_id", "digest"]).join(split, on="sample_id", how="semi")
            offered = materials.samples(candidates(reserved, count=self.options.samples))
            lengths = context_lengths(materials.tokenizer(MODELS[0]), offered)
            buckets = Buckets.of(self.options.buckets)
            ids = heldout_ids(reserved, lengths, count=self.options.samples, buckets=buckets)
            materials.kept[self.name] = materials.samples(ids), dict(lengths.iter_rows())
        return materials.kept[self.name]
