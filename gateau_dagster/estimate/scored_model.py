"""A model as estimates need it: shape, limit, token rates and speed, each found once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gateau_dagster.estimate.outstanding_samples import PromptTokens, sample_tokens
from gateau_dagster.estimate.token_rates import TokenRates, token_rates
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.flops import ModelShape, whole_text_flops
from gateau_dagster.models.known_model import known_model, own_window, parameter_count
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.planned_work import Numbers, PlannedWork, SampleTokens

if TYPE_CHECKING:
    from gateau_dagster.estimate.calibration import Speed
    from gateau_dagster.models.known_model import KnownModel


class ScoredModel:
    """A configured model that scores samples of a state."""

    def __init__(self, state: State, name: str) -> None:
        self._state, self.name = state, name

    @cached_property
    def known(self) -> KnownModel:
        """What is here of it."""
        return known_model(self._state.config, self.name)

    @cached_property
    def parameters(self) -> int | None:
        """How many it has, where its weights are here."""
        return parameter_count(self._state.config, self.name)

    @property
    def causal(self) -> bool:
        """Whether it generates text; others rate or embed texts as a whole."""
        return self._state.config.models[self.name].task == "causal"

    @cached_property
    def shape(self) -> ModelShape | None:
        """None when its configuration is not known, or is none of a decoder that generates text."""
        if self.known.config is None or not self.causal:
            return None
        try:
            return ModelShape.of(self.known.config)
        except (AttributeError, TypeError, ValueError):
            return None

    @cached_property
    def rates(self) -> TokenRates:
        """Characters a token."""
        return token_rates(self._state, self.name)

    @cached_property
    def limit(self) -> int:
        """Tokens of a prompt that the model is shown, as far as that is known without loading it."""
        config, section = self._state.config, self._state.config.models[self.name]
        if self.causal and section.context != "window":
            return config.scoring.max_length
        window = section.window or (self.known and own_window(config, self.name)) or config.scoring.max_length
        return min(config.scoring.max_length, window)

    @cached_property
    def speed(self) -> Speed | str:
        """Measured on the configured device at the lengths of this input; or why it is not known."""
        from gateau_dagster.estimate.calibration import Lengths, calibrated

        if self.known.config is None or self.shape is None:
            return self.unknown_shape
        tokens = self.tokens(self._state.index.accepted)
        lengths = Lengths(
            prompt=min(self.limit, _power(float(np.quantile(tokens.prompt, 0.9)))),
            response=_power(_usual(tokens.response)),
            segment=_power(_usual(tokens.segment_prompt), steps=4) if self._observed else 0,
        )
        config = self._state.config
        code = config.models[self.name].trust_remote_code
        return calibrated(self.known.config, lengths, config.scoring, work_folder=config.work_folder, remote_code=code)

    @cached_property
    def _observed(self) -> bool:
        """Whether a pass shows the attention to the context, so that lone prompts and rows have to be timed."""
        if self.name == "long":
            return True
        few = self.sample_tokens(self._state.index.accepted.head(1))
        tables = sample_tables(self._state.config).values()
        return any(table.effort(few).rows for table in tables if table.model == self.name and table.effort)

    @property
    def unknown_shape(self) -> str:
        """Why FLOPs cannot be said; empty when they can."""
        if self.causal:
            return "" if self.shape is not None else self.known.missing or "its shape is not known"
        return "" if self._whole_text is not None else self.known.missing or "its weights are not on this machine yet"

    @property
    def unknown(self) -> str:
        """Why FLOPs or time cannot be said; empty when they can."""
        if self.unknown_shape:
            return self.unknown_shape
        if not self.causal:
            return "only models that generate text are timed"
        return self.speed if isinstance(self.speed, str) else ""

    def flops(self, planned: PlannedWork) -> Numbers | None:
        """Of each sample; None when they are not known."""
        if self.causal:
            return None if self.shape is None else planned.flops(self.shape)
        if self._whole_text is None:
            return None
        weights, layers, hidden = self._whole_text
        flops = (one.count * whole_text_flops(one.length, weights, layers, hidden) for one in planned.passes)
        return np.sum([*flops], axis=0)

    @cached_property
    def _whole_text(self) -> tuple[int, int, int] | None:
        """Weights beside the embedding of words, layers and width of a model that reads a text as a whole."""
        text = None if self.known.config is None else self.known.config.get_text_config()
        if self.parameters is None or text is None:
            return None
        return self.parameters - text.vocab_size * text.hidden_size, text.num_hidden_layers, text.hidden_size

    def sample_tokens(self, samples: pl.DataFrame) -> SampleTokens:
        """The texts of these samples of the index."""
        return sample_tokens(samples, self.rates, limit=self.limit)

    def tokens(self, samples: pl.DataFrame) -> PromptTokens:
        """The prompts of these samples of the index."""
        length = self._state.config.scoring.segment_length
        return PromptTokens(samples, self.rates, limit=self.limit, segment_length=length)


def _usual(values: np.ndarray) -> float:
    """The median of what is not zero."""
    return float(np.median(values[values > 0])) if (values > 0).any() else 1.0


def _power(value: float, steps: int = 1) -> int:
    """The nearest power of two, or of its root of this many `steps`: a length that a few samples more do not change."""
    return max(2, round(2 ** (round(steps * np.log2(max(value, 2.0))) / steps)))
