"""GATEAU with other models in place of the homologous pair: the ablations of its appendix (Tables 9 and 12).

Each reads the perplexities of other entries of `models`; segments and attention remain those of theta_B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
from pydantic import Field

from gateau_dagster.errors import GateauError
from gateau_dagster.methods.gateau import SCORES, GateauOptions, preset_of
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.readable import nearest_name
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures, PresetScores
from gateau_dagster.selection.statistics import Vector

if TYPE_CHECKING:
    from gateau_dagster.config import Config

Unit = Literal["token", "character"]


class VariantOptions(GateauOptions):
    """The entries of `models` that replace the pair."""

    short: str | None = Field(default=None, description="Key of models in the place of theta_A: another than short.")
    long: str = Field(default="long", description="Key of models in the place of theta_B.")
    per: Unit = Field(default="token", description="'character' compares models whose tokenizers differ.")

    @property
    def columns(self) -> list[str]:
        """Return the columns that are read from each model's perplexity table."""
        return ["mean_nll", "response_tokens" if self.per == "character" else "mean_probability"]


def _check(name: str) -> Callable[[Config, VariantOptions], None]:
    """Return a check that the entries exist and that theta_A is replaced: with theta_A itself it would be gateau."""

    def check(config: Config, options: VariantOptions) -> None:
        place = f"selection.options.{name}"
        if options.short is None:
            raise GateauError(f"{place}.short: {name} needs another theta_A: name the entry of models that it is")
        for model in (options.short, options.long):
            if model not in config.causal_models:
                raise GateauError(
                    f"{place}: models has no causal {model!r}; {nearest_name(model, config.causal_models)}"
                )
        if options.short in {"short", options.long}:
            own = "theta_A itself" if options.short == "short" else "the model that it would be compared with"
            raise GateauError(f"{place}.short: {options.short} is {own}: add another entry to models and name that")

    return check


def _check_family(config: Config, options: VariantOptions) -> None:
    """Raise GateauError if the model is one of the pair, whatever its other settings are."""
    _check("hmg_non_homologous")(config, options)
    assert options.short is not None
    for own in ("short", "long"):
        if own in config.models and config.models[own].path == config.models[options.short].path:
            raise GateauError(
                f"selection.options.hmg_non_homologous.short: models.{options.short} has the path of models.{own}, but "
                "this method needs a model of another family: name one with another path"
            )


def _check_shown(config: Config, options: VariantOptions) -> None:
    """Raise GateauError unless both models have demonstrations, because the alignment is in context."""
    _check("gateau_in_context")(config, options)
    for place, model in (("short", options.short), ("long", options.long)):
        assert model is not None
        if not config.models[model].demonstrations:
            raise GateauError(
                f"selection.options.gateau_in_context.{place}: models.{model} has no demonstrations, and this method "
                f"compares two models behind them: add an entry to models with the path of models.{place} and with "
                "demonstrations, and name that"
            )


def _reads(config: Config, options: VariantOptions) -> Reads:
    # Read only the column of the preset: robust must work without attention, which cas_paper is computed from.
    return {SCORES: ["sample_id", _far_column(config, options)], **_reads_models(options)}


def _reads_guidance(config: Config, options: VariantOptions) -> Reads:
    """Return the columns read: none of segments, and so none of attention under any preset."""
    del config
    return {SCORES: ["sample_id"], **_reads_models(options)}


def _reads_models(options: VariantOptions) -> dict[str, list[str]]:
    columns = ["sample_id", *options.columns]
    found = {f"perplexity/{model}": columns for model in (options.short, options.long)}
    return found | ({"raw_long_sft": ["sample_id", "response"]} if options.per == "character" else {})


def _far_column(config: Config, options: VariantOptions) -> str:
    """Return the column of FG for preset robust, of CAS for the others."""
    return "cas_robust" if preset_of(config, options) == "robust" else "cas_paper"


def variant_scores(tables: Tables, config: Config, options: VariantOptions) -> tuple[pl.Series, PresetScores]:
    """Return the ids, sorted, and Eqs. 2 and 6 of the samples that every table holds, with these models' perplexities.

    Without the column of `combined_scores` that Eq. 6 reads, its second term is null.
    """
    far = _far_column(config, options)
    frame = tables[SCORES].select("sample_id", pl.col(far) if far in tables[SCORES] else pl.lit(None).alias(far))
    for place, model in (("short", options.short), ("long", options.long)):
        own = tables[f"perplexity/{model}"].select("sample_id", pl.col(*options.columns).name.suffix(f"_{place}"))
        frame = frame.join(own, on="sample_id")
    if options.per == "character":
        lengths = tables["raw_long_sft"].select("sample_id", characters=pl.col("response").str.len_chars())
        frame = frame.join(lengths, on="sample_id")
    frame = frame.sort("sample_id")
    found: dict[str, Vector] = {}
    for place in ("short", "long"):
        found[f"perplexity_{place}"], found[f"probability_{place}"] = _figures(frame, place, options.per)
    term = frame[far].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    measures = Measures(**found, cas=term, far_gain=term)  # a preset reads one of the two
    return frame["sample_id"], PRESET_FUNCTIONS[preset_of(config, options)](measures)


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


def _whole(tables: Tables, config: Config, options: VariantOptions) -> pl.DataFrame:
    ids, scores = variant_scores(tables, config, options)
    return pl.DataFrame({"sample_id": ids, "score": scores.score(config.selection.alphas[preset_of(config, options)])})


def _guidance(tables: Tables, config: Config, options: VariantOptions) -> pl.DataFrame:
    ids, scores = variant_scores(tables, config, options)
    return pl.DataFrame({"sample_id": ids, "score": scores.hmp})


def _method(
    name: str,
    score: Callable[[Tables, Config, VariantOptions], pl.DataFrame],
    title: str,
    source: str,
    check: Callable[[Config, VariantOptions], None] | None = None,
    reads: Callable[[Config, VariantOptions], Reads] = _reads,
) -> Method:
    return Method(
        name=name,
        title=title,
        source=source,
        per_sample=False,
        options=VariantOptions,
        reads=reads,
        score=score,
        check=check or _check(name),
    )


METHODS = (
    _method(
        "gateau_unextended",
        _whole,
        "As gateau, with a short model whose window is not extended.",
        "GATEAU, Table 9 (w/o Extended Context Windows)",
    ),
    _method(
        "hmg_non_homologous",
        _guidance,
        "The long model finds the response much likelier than a model of another family does.",
        "GATEAU, Table 9 (Non-Homologous Model's Guidance)",
        check=_check_family,
        reads=_reads_guidance,
    ),
    _method(
        "gateau_in_context",
        _whole,
        "As gateau, with models that three demonstrations have taught to answer.",
        "GATEAU, Table 12 (w/ ICL Alignment); URIAL (Lin et al. 2024)",
        check=_check_shown,
    ),
)
