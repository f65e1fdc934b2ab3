"""What limits of tokens will cut off, before any model runs: from the lengths of all texts."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gateau_dagster.estimate.scored_model import token_rates
from gateau_dagster.pipeline.loss import Truncation, truncation_among
from gateau_dagster.pipeline.losses import PromptLimit
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural


@dataclass(frozen=True, kw_only=True)
class ExpectedTruncation:
    """Of a model's prompts. unscorable: samples whose instruction and response alone are too long.

    counted: whether its tokenizer has told how texts become tokens, or a usual number of characters is assumed.
    """

    model: str
    truncation: Truncation
    unscorable: int
    counted: bool

    @property
    def sentences(self) -> list[str]:
        """In words; none where nothing is expected to be lost."""
        found = []
        if self.truncation.cut:
            found.append(f"models.{self.model}: {self.truncation.sentence('about ')}")
        if self.unscorable:
            samples = plural(self.unscorable, "sample")
            found.append(
                f"models.{self.model}: about {samples} will be rejected, for instruction and response alone are longer "
                f"than allowed: {self.truncation.limit}"
            )
        return found


def expected_truncation(state: State, model: str) -> ExpectedTruncation:
    """Of all samples of the input, by the texts' lengths and the model's tokenizer on some of them.

    Raises:
        GateauError: the model is not there.
    """
    limit, rates = PromptLimit.of(state.config, model), token_rates(state, model)
    tokens = rates.sample_tokens(state.index.accepted, limit.tokens)
    prompts = tokens.prompts(opening=True)
    fits = prompts.tail > 0
    kept = pl.Series(prompts.context[fits])
    return ExpectedTruncation(
        model=model,
        truncation=truncation_among(
            kept, pl.Series(tokens.context[fits]) - kept, limit=limit.why, intended=limit.intended
        ),
        unscorable=int((~fits).sum()),
        counted=rates.samples > 0,
    )
