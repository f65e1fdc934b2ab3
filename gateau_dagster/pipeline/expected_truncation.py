"""Estimate how much of the samples token limits truncate, and how much exceeds a model's positions."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from gateau_dagster.models.model_facts import known_positions
from gateau_dagster.pipeline.losses import PromptLimit, Truncation, truncation_among
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import token_rates
from gateau_dagster.readable import percentage, plural
from gateau_dagster.scoring.sample_table import Numbers


@dataclass(frozen=True, kw_only=True)
class BeyondPositions:
    """Prompts that are longer than a model's rotary embedding supports.

    Attributes:
        positions: positions of the embedding, from `rotary_positions`.
        samples: number of samples with longer prompts, out of `scored`.
        tokens: number of tokens after the last position, out of `prompt_tokens` in all prompts.
        longest: length of the longest prompt in tokens.
        cure: a change of the configuration that avoids this without a longer model.
    """

    positions: int
    samples: int
    scored: int
    tokens: int
    prompt_tokens: int
    longest: int
    cure: str

    def sentence(self, model: str) -> str:
        """Return the shares of samples and of tokens, and what to do."""
        samples, tokens = percentage(self.samples / self.scored), percentage(self.tokens / self.prompt_tokens)
        return (
            f"models.{model}: about {self.samples:,} of {plural(self.scored, 'sample')} ({samples}) are longer than "
            f"the {self.positions:,} positions that its rotary embedding is made for, and about {self.tokens:,} of "
            f"{self.prompt_tokens:,} tokens ({tokens}) are beyond them. It is not trained on such positions, and its "
            f"perplexities there say little. Take a model that is made for {self.longest:,} tokens "
            f"(`homologous:<model>` trains one), or {self.cure}"
        )


@dataclass(frozen=True, kw_only=True)
class ExpectedTruncation:
    """The part of the samples that a model will not see or cannot read.

    Attributes:
        model: the model's name in `models`.
        truncation: the truncation of its prompts.
        unscorable: number of samples with an instruction and response that are too long even without context.
        counted: whether its tokenizer was measured; otherwise a typical number of characters per token is assumed.
        beyond: prompts beyond its rotary positions; None if there are none.
    """

    model: str
    truncation: Truncation
    unscorable: int
    counted: bool
    beyond: BeyondPositions | None = None

    @property
    def lines(self) -> list[tuple[str, bool]]:
        """Return the `sentences`, each with a flag that is true for a warning."""
        found = [(sentence, self.truncation.notable) for sentence in self.sentences]
        return found if self.beyond is None else [*found, (self.beyond.sentence(self.model), True)]

    @property
    def sentences(self) -> list[str]:
        """Return sentences about the expected loss; empty if none is expected."""
        found = []
        if self.truncation.cut:
            found.append(f"models.{self.model}: {self.truncation.sentence('about ')}")
        if self.unscorable:
            samples = plural(self.unscorable, "sample")
            found.append(
                f"models.{self.model}: about {samples} will be rejected, because instruction and response alone are "
                f"longer than allowed: {self.truncation.limit}"
            )
        return found


def expected_truncation(state: State, model: str) -> ExpectedTruncation:
    """Return the expected truncation of all samples, from the texts' lengths and the model's tokenizer on some of them.

    Raises:
        GateauError: the model is missing.
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
        beyond=_beyond(state, model, prompts.prompt[fits], limit.tokens),
    )


def _beyond(state: State, model: str, lengths: Numbers, limit: int) -> BeyondPositions | None:
    """Compare the prompts' `lengths`, in tokens [samples], with a model's positions; `limit`: the longest prompt."""
    if not lengths.size or lengths.max() <= (positions := known_positions(state.config, model) or limit):
        return None
    window = state.config.models[model].context == "window"
    key = f"models.{model}.window" if window else "scoring.max_length"
    cure = f"lower {key} to {positions:,}"
    if not window and model != "long":
        cure = f"give models.{model} `context: window`, or {cure}"
    return BeyondPositions(
        positions=positions,
        samples=int((lengths > positions).sum()),
        scored=lengths.size,
        tokens=int((lengths - positions).clip(min=0).sum()),
        prompt_tokens=int(lengths.sum()),
        longest=int(lengths.max()),
        cure=cure,
    )
