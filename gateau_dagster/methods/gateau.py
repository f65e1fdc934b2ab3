"""GATEAU, its two halves alone, and the ablations of its appendix (Tables 9 and 12), from `combined_scores`.

The ablations with other models in place of the homologous pair read the perplexities of other entries of `models`;
segments and attention remain those of theta_B.
"""

from typing import ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.selection import Preset
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method, Reads, SpanMap, Spans, Tables
from gateau_dagster.methods.token_contrast import same_sight
from gateau_dagster.readable import nearest_name
from gateau_dagster.scoring.pair_tables import CAM, THETA_B
from gateau_dagster.scoring.sample_table import Row
from gateau_dagster.scoring.segments import added_by_segment
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures, PresetScores, where_known
from gateau_dagster.selection.statistics import Vector, softmax

SCORES = "combined_scores"

Unit = Literal["token", "character"]


class GateauOptions(Section):
    """The normalisation of the two terms."""

    preset: Preset | None = Field(
        default=None,
        description="Normalisation: paper, official or robust; default: selection.preset.",
        examples=["paper"],
    )


class OtherModelsOptions(GateauOptions):
    """The entries of `models` that replace the pair."""

    short: str | None = Field(
        default=None, description="Key of models in the place of theta_A: another than short.", examples=["other"]
    )
    long: str = Field(default="long", description="Key of models in the place of theta_B.")
    per: Unit = Field(default="token", description="'character' compares models whose tokenizers differ.")


class _Preset(Method):
    """A score under one of the presets, over the whole data set."""

    per_sample = False
    options: GateauOptions

    @property
    def preset(self) -> Preset:
        """Return the normalisation that the options choose."""
        return self.options.preset or self.config.selection.preset


class _Column(_Preset):
    """A column of a preset."""

    kind: ClassVar[str]

    def reads(self) -> Reads:
        return {SCORES: ["sample_id", f"{self.kind}_{self.preset}"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        return tables[SCORES].select("sample_id", score=f"{self.kind}_{self.preset}")

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Warn if theta_A sees as much as theta_B: the paper's own theta_A sees everything, ours must not."""
        return same_sight(self.config) if self.preset == "robust" and self.kind != "cas" else []

    def span_map(self) -> SpanMap | None:
        """Return the span map of the presets that read CAS.

        The far-segment gain is not a sum over segments; the map of the report's samples shows it.
        """
        if self.preset == "robust" or self.kind == "hmp":
            return None
        length = self.config.scoring.segment_length

        def spans(row: Row) -> Spans | None:
            if row["cas"] is None:
                return None
            added = added_by_segment(row["segment_perplexity"], row["segment_attention"])
            return Spans(of="context", tokens=0, first=0, length=length, added=added.tolist())

        adds = "CAS: where attention and importance meet"
        return SpanMap(table=CAM, model=THETA_B, adds=adds, spans=spans)


class Gateau(_Column):
    """Score by Eq. 6."""

    name = "gateau"
    title = "The long model finds the response much likelier than the short one does, and far segments matter for it."
    source = "GATEAU, Eq. 6"
    kind = "score"

    def check(self) -> None:
        """Check that gateau, if it is selection.method, ranks by selection.preset: the report shows the presets
        beside it.
        """
        selection = self.config.selection
        if selection.method == "gateau" and self.preset != selection.preset:
            raise GateauError(
                "methods.options",
                f"{self.place}.preset: {self.preset}, but selection.preset is {selection.preset}, which gateau uses: "
                f"set selection.preset: {self.preset} and remove the option, which is for gateau in selection.compare",
            )


class Hmg(_Column):
    """Score by HMP alone."""

    name = "hmg"
    title = "The long model finds the response much likelier than the short one does."
    source = "GATEAU, Eq. 2 (without CAM)"
    kind = "hmp"


class Cam(_Column):
    """Score by CAS alone."""

    name = "cam"
    title = "Segments of the context matter for the response, as the preset measures it."
    source = "GATEAU, Eq. 5 (without HMG)"
    kind = "cas"


class Unnormalised(Method):
    """Score by α·softmax_D(PPL_A - PPL_B) + (1-α)·softmax_D(CAS): Eq. 6, with Eq. 2 without its softmaxes."""

    name = "gateau_unnormalised"
    title = "As gateau, but with the plain difference of the two perplexities."
    source = "GATEAU, Table 9 (w/o Norm in Eq. 2)"
    per_sample = False

    def reads(self) -> Reads:
        return {SCORES: ["sample_id", "perplexity_short", "perplexity_long", "cas_paper"]}

    def score(self, tables: Tables) -> pl.DataFrame:
        table = tables[SCORES].sort("sample_id")
        hmp = table["perplexity_short"].to_numpy() - table["perplexity_long"].to_numpy()
        cas = table["cas_paper"].fill_null(float("nan")).to_numpy()
        scores = PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=where_known(softmax, cas))
        alpha = self.config.selection.alphas["paper"]
        return pl.DataFrame({"sample_id": table["sample_id"], "score": scores.score(alpha)})


class _OtherModels(_Preset):
    """Eq. 6 with other models in the place of the pair."""

    options: OtherModelsOptions

    def reads(self) -> Reads:
        # Read only the column of the preset: robust must work without attention, which cas_paper is computed from.
        return {SCORES: ["sample_id", self._far], **self._model_reads()}

    @property
    def _far(self) -> str:
        return "cas_robust" if self.preset == "robust" else "cas_paper"

    @property
    def _models(self) -> dict[str, str]:
        assert self.options.short is not None  # `check` requires it
        return {"short": self.options.short, "long": self.options.long}

    @property
    def _columns(self) -> list[str]:
        return ["mean_nll", "response_tokens" if self.options.per == "character" else "mean_probability"]

    def _model_reads(self) -> dict[str, list[str]]:
        found = {f"perplexity/{model}": ["sample_id", *self._columns] for model in self._models.values()}
        return found | ({"raw_long_sft": ["sample_id", "response"]} if self.options.per == "character" else {})

    def score(self, tables: Tables) -> pl.DataFrame:
        ids, scores = self._preset_scores(tables)
        return pl.DataFrame({"sample_id": ids, "score": scores.score(self.config.selection.alphas[self.preset])})

    def _preset_scores(self, tables: Tables) -> tuple[pl.Series, PresetScores]:
        """Return the ids, sorted, and Eqs. 2 and 6 of the samples that every table holds, with these models'
        perplexities.

        Without the column of `combined_scores` that Eq. 6 reads, its second term is null.
        """
        far, per = self._far, self.options.per
        frame = tables[SCORES].select("sample_id", pl.col(far) if far in tables[SCORES] else pl.lit(None).alias(far))
        for place, model in self._models.items():
            own = tables[f"perplexity/{model}"].select("sample_id", pl.col(*self._columns).name.suffix(f"_{place}"))
            frame = frame.join(own, on="sample_id")
        if per == "character":
            lengths = tables["raw_long_sft"].select("sample_id", characters=pl.col("response").str.len_chars())
            frame = frame.join(lengths, on="sample_id")
        frame = frame.sort("sample_id")
        figures: dict[str, Vector] = {}
        for place in self._models:
            figures[f"perplexity_{place}"], figures[f"probability_{place}"] = _figures(frame, place, per)
        term = frame[far].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        measures = Measures(**figures, cas=term, far_gain=term)  # a preset reads one of the two
        return frame["sample_id"], PRESET_FUNCTIONS[self.preset](measures)

    def check(self) -> None:
        """Check that the entries exist and that theta_A is replaced: with theta_A itself it would be gateau."""
        short, causal = self.options.short, self.config.causal_models
        if short is None:
            raise GateauError(
                "methods.options", f"{self.place}.short: {self.name} needs another theta_A: name its entry in `models`"
            )
        for model in self._models.values():
            if model not in causal:
                raise GateauError(
                    "models.missing", f"{self.place}: models has no causal {model!r}; {nearest_name(model, causal)}"
                )
        if short in {"short", self.options.long}:
            own = "theta_A itself" if short == "short" else "the model that it would be compared with"
            raise GateauError(
                "methods.options", f"{self.place}.short: {short} is {own}: add another entry to `models`, and name that"
            )


class Unextended(_OtherModels):
    """Score as gateau, with another theta_A."""

    name = "gateau_unextended"
    title = "As gateau, with a short model whose window is not extended."
    source = "GATEAU, Table 9 (w/o Extended Context Windows)"


class NonHomologous(_OtherModels):
    """Score by HMP with another theta_A; no column of segments is read, and so none of attention."""

    name = "hmg_non_homologous"
    title = "The long model finds the response much likelier than a model of another family does."
    source = "GATEAU, Table 9 (Non-Homologous Model's Guidance)"

    def reads(self) -> Reads:
        return {SCORES: ["sample_id"], **self._model_reads()}

    def score(self, tables: Tables) -> pl.DataFrame:
        ids, scores = self._preset_scores(tables)
        return pl.DataFrame({"sample_id": ids, "score": scores.hmp})

    def check(self) -> None:
        """Check that the model is none of the pair, whatever its other settings are."""
        super().check()
        models, short = self.config.models, self._models["short"]
        for own in ("short", "long"):
            if own in models and models[own].path == models[short].path:
                raise GateauError(
                    "methods.options",
                    f"{self.place}.short: models.{short} has the path of models.{own}, but this method needs a model "
                    "of another family: name one with another path",
                )


class InContext(_OtherModels):
    """Score as gateau, with two models behind demonstrations, because the alignment is in context."""

    name = "gateau_in_context"
    title = "As gateau, with models that three demonstrations have taught to answer."
    source = "GATEAU, Table 12 (w/ ICL Alignment); URIAL (Lin et al. 2024)"

    def check(self) -> None:
        super().check()
        for place, model in self._models.items():
            if not self.config.models[model].demonstrations:
                raise GateauError(
                    "models.demonstrations",
                    f"{self.place}.{place}: models.{model} has no demonstrations, and this method compares two models "
                    f"with demonstrations: add an entry to `models` with them and the path of models.{place}, "
                    "and name that",
                )


def _figures(frame: pl.DataFrame, place: str, per: Unit) -> tuple[Vector, Vector]:
    """Return exp of the mean NLL of a response token (Eq. 1), and the mean of its probability; float64 [|D|] each.

    Per character, these are exp of the mean NLL of a character, and the geometric mean of the characters'
    probabilities. The mean is geometric because nothing splits a token's probability among its characters.
    """
    nll = frame[f"mean_nll_{place}"].to_numpy()
    if per == "token":
        return np.exp(nll), frame[f"mean_probability_{place}"].to_numpy()
    nll = nll * frame[f"response_tokens_{place}"].to_numpy() / frame["characters"].to_numpy()
    return np.exp(nll), np.exp(-nll)
