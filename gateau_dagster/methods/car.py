"""Clustering and Ranking (CaR): rate the quality of instruction and response by a reward model.

The other half of CaR, which adds the best samples of every cluster to the best of all, is `selection.rule: diverse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method, Reads, Tables, check_model
from gateau_dagster.models.reward_head import check_architecture, label_index
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.data.sample import Reject, Sample
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.scoring.planned_work import PlannedWork, SampleTokens

_PLACE = "selection.options.car.model"
TEXT_TOKENS = tables.Column(
    name="tokens", dtype=pl.Int32(), description="Tokens of instruction and response that the model saw."
)
TEXT_TRUNCATED = tables.Column(
    name="truncated_tokens", dtype=pl.Int32(), description="Tokens cut off the text's end to fit the model's window."
)
QUALITY = (
    tables.SAMPLE_ID,
    tables.DIGEST,
    tables.Column(name="quality", dtype=pl.Float64(), description="What the reward model gives; higher is better."),
    TEXT_TOKENS,
    TEXT_TRUNCATED,
)


class CarOptions(Section):
    """The reward model and its input and output."""

    model: str = Field(default="reward", description="The model of task reward.")
    label: str | int | None = Field(
        default=None,
        description="Which output is the quality, by name or number, of a model with several: the logarithm of its "
        "probability counts then.",
    )
    as_pair: bool = Field(
        default=False,
        description="Instruction and response as the tokenizer's two segments, as some reward models are trained, "
        "not as one text with a line's end between them.",
    )


def quality_table(options: CarOptions) -> SampleTable:
    """Return the table `quality/<model>`."""

    def score(loaded: LoadedModel, samples: Iterable[Sample], running: Running) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.text_models import quality_rows

        return quality_rows(loaded, samples, running, label=options.label, as_pair=options.as_pair)

    return SampleTable(
        asset=f"quality/{options.model}",
        model=options.model,
        columns=QUALITY,
        description="How good the reward model finds instruction and response; it does not see the context.",
        settings={"label": options.label, "as_pair": options.as_pair},
        score=score,
        prompt="none",
        effort=whole_text_effort,
        code_version="2",
    )


def whole_text_effort(tokens: SampleTokens) -> PlannedWork:
    """Return the pass over instruction and response as one text, cut to the model's window."""
    from gateau_dagster.scoring.planned_work import PlannedWork, packed_documents

    length = (tokens.instruction + tokens.response + tokens.special).clip(max=tokens.limit)
    return PlannedWork(passes=[packed_documents(length * (tokens.response > 0), read=None)], reads_context=False)


def _reads(config: Config, options: CarOptions) -> Reads:
    del config
    return {f"quality/{options.model}": ["sample_id", "quality"]}


def _score(found: Tables, config: Config, options: CarOptions) -> pl.DataFrame:
    del config
    return found[f"quality/{options.model}"].select("sample_id", score="quality")


def _tables(config: Config, options: CarOptions) -> tuple[SampleTable, ...]:
    del config
    return (quality_table(options),)


def _check(config: Config, options: CarOptions) -> None:
    check_model(config, options.model, "reward", place=_PLACE)


def _check_known_models(config: Config, options: CarOptions) -> None:
    """Check that the reward model has a head that gives one number per text."""
    from gateau_dagster.models.known_model import known_model

    model, known = config.models[options.model], known_model(config, options.model).config
    if known is None:
        return  # neither on this machine nor downloadable: loading reports why
    try:
        if not model.trust_remote_code:  # remote code may use any name for its head
            check_architecture(known.architectures or [], name=model.path)
        label_index(known.id2label or {}, options.label, name=model.path)
    except GateauError as error:
        raise GateauError(f"{_PLACE}: {error}") from error


METHOD = Method(
    name="car",
    title="A reward model finds instruction and response good.",
    source="Ge et al. 2024, Clustering and Ranking",
    per_sample=True,
    options=CarOptions,
    reads=_reads,
    score=_score,
    tables=_tables,
    check=_check,
    check_known_models=_check_known_models,
)
