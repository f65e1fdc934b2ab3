"""LongAttn: prefer tokens that attend strongly and evenly to text at least a quarter of the length before them.

The score uses each text's figures (scoring.long_attention): the means over the heads of one layer, each scaled to 0..1
over the data set, as the authors' program ranks:

    score = minmax(mean proportion) - uniformity · minmax(mean variance)

The authors read the first layer of Llama-3.1-70B over windows of 32,768 tokens. Here it is the first layer of any
model, over a sample's whole prompt with its response.
"""

# What it costs: the layers up to `layer` only, so by default one layer of a pass, and the rows of its attention once
# more. This makes it one of the cheapest methods that read attention. The price is that one layer's view counts for
# all.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.scoring.sample_table import Numbers, PlannedPasses, PlannedWork, Row, Running, SampleTable

if TYPE_CHECKING:
    from gateau_dagster.data.sample import Sample
    from gateau_dagster.models.flops import ModelShape
    from gateau_dagster.models.loaded import ForwardWork, LoadedModel
    from gateau_dagster.scoring.sample_table import SampleTokens
    from gateau_dagster.scoring.span_attention import Document

_SHORTEST = 4  # tokens: with fewer, nothing is far
_ADVICE = "let the model read fewer tokens, use dtype bfloat16, or a device with more memory"
_BY_HEAD = "head after head; none in a text of fewer than 4 tokens"


class LongAttnOptions(Section):
    """The model and layer whose attention is read, and the weight of its evenness."""

    model: str = Field(default="long", description="Key of `models`.")
    layer: int = Field(default=0, ge=0, description="Which of its layers with attention, from 0; no later one is run.")
    uniformity: float = Field(default=0.5, ge=0, description="Weight of the variance; no model runs again for it.")


COLUMNS = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(name="tokens", dtype=pl.Int32(), description="T, tokens of the prompt with its response."),
    tables.Column(
        name="proportion",
        dtype=pl.List(pl.Float64()),
        description=f"Attention to far tokens, as a share of all, {_BY_HEAD}.",
    ),
    tables.Column(
        name="variance",
        dtype=pl.List(pl.Float64()),
        description=f"Of the T x T weights, those of near tokens as zeros, {_BY_HEAD}.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class _FirstLayers(PlannedPasses):
    """Passes that end after a layer."""

    layer: int

    def flops(self, shape: ModelShape) -> Numbers:
        from gateau_dagster.scoring.long_attention import long_attention_flops

        return self.count * long_attention_flops(shape, self.length, self.layer)


class LongAttn(Method):
    """Score by the scaled proportion less the weighted variance."""

    name = "longattn"
    title = "Tokens of the sample attend strongly and evenly to tokens far before them."
    source = "LongAttn (Wu et al. 2025), as the authors' program ranks"
    per_sample = False
    options: LongAttnOptions

    @property
    def _table(self) -> str:
        return f"long_attention/{self.options.model}"

    def tables(self) -> Sequence[SampleTable]:
        return [
            SampleTable(
                asset=self._table,
                model=self.options.model,
                columns=COLUMNS,
                description="How much of a layer's attention goes far back in each sample, and how unevenly "
                "(LongAttn).",
                settings={"layer": self.options.layer},
                prompt="plain",
                needs_attention=True,
                score=self._rows,
                effort=partial(_effort, layer=self.options.layer),
            )
        ]

    def _rows(self, loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.models.context_attention import require_attention_interface
        from gateau_dagster.scoring.long_attention import WHAT
        from gateau_dagster.scoring.span_attention import documents_ahead, sample_documents

        require_attention_interface(loaded, WHAT)
        length, template = running.max_length, running.scoring.template
        prompts = sample_documents(loaded.tokenizer, samples, max_length=length, template=template)
        layer = self.options.layer
        with closing(documents_ahead(prompts)) as documents:
            for document in documents:
                yield document if isinstance(document, Reject) else _row(loaded, document, running.work, layer)

    def reads(self) -> Reads:
        return {self._table: ["sample_id", "proportion", "variance"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        means = tables[self._table].select("sample_id", pl.col("proportion", "variance").list.mean())
        return means.select("sample_id", score=_scaled("proportion") - self.options.uniformity * _scaled("variance"))

    def check_known_models(self) -> None:
        from gateau_dagster.models.model_config import attention_layers_of
        from gateau_dagster.models.model_facts import facts_of

        known, layer = facts_of(self.config, self.options.model).config, self.options.layer
        layers = None if known is None else attention_layers_of(known)
        if layers is not None and layer >= layers:
            raise GateauError(
                "methods.layer",
                f"{self.place}.layer: {layer}, but models.{self.options.model} has {layers} layers with attention, "
                "counted from 0",
            )

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Warn if the layer's window ends before the far tokens."""
        from gateau_dagster.models.model_config import spans_of
        from gateau_dagster.models.model_facts import facts_of

        known, layer = facts_of(self.config, self.options.model).config, self.options.layer
        spans = () if known is None else spans_of(known.get_text_config(decoder=True))
        seen = [span for span in spans if span != 0]  # `layer` counts only layers with attention
        window = seen[layer] if layer < len(seen) else None
        if window is None:
            return []
        whole = [str(number) for number, span in enumerate(seen) if span is None]
        other = f"set layer: {whole[0]}, the first that sees all of it" if whole else "take another model"
        return [
            f"{self.place}.layer: layer {layer} of models.{self.options.model} sees {window:,} tokens back, so that "
            f"nothing is far in prompts of {4 * window:,} tokens and more: {other}"
        ]


def _effort(tokens: SampleTokens, *, layer: int) -> PlannedWork:
    length = tokens.prompts(opening=False).prompt
    return PlannedWork(
        passes=[_FirstLayers(count=(length >= _SHORTEST).astype(np.float64), length=length, layer=layer)]
    )


def _row(loaded: LoadedModel, document: Document, work: ForwardWork, layer: int) -> Row | Reject:
    from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory
    from gateau_dagster.scoring.long_attention import long_attention

    ids = document.ids
    row = {"sample_id": document.name, "digest": document.digest, "tokens": len(ids)}
    if len(ids) < _SHORTEST:
        return {**row, "proportion": [], "variance": []}
    found = unless_out_of_memory(lambda: long_attention(loaded, ids, layer=layer, work=work))
    if found is None:
        reason = out_of_memory_reason(len(ids), _ADVICE)
        return Reject(sample_id=document.name, reason=reason, short_of_memory=True)
    if not (np.isfinite(found.proportion).all() and np.isfinite(found.variance).all()):
        reason = "attention is not finite: try dtype bfloat16 or float32"
        return Reject(sample_id=document.name, reason=reason)
    return {**row, "proportion": found.proportion.tolist(), "variance": found.variance.tolist()}


def _scaled(name: str) -> pl.Expr:
    # Both figures are scaled to 0..1, so that neither decides by its unit. Equal values become 0.5.
    low, high = pl.col(name).min(), pl.col(name).max()
    scaled = (pl.col(name) - low) / (high - low)
    return pl.when(pl.col(name).is_not_null()).then(pl.when(high > low).then(scaled).otherwise(0.5))
