"""A model as estimates need it: shape, limit, token rates and speed, each found once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gateau_dagster.incremental.known_model import known_model, own_window, parameter_count
from gateau_dagster.incremental.pending import PromptTokens
from gateau_dagster.incremental.state import State
from gateau_dagster.incremental.token_rates import TokenRates, token_rates
from gateau_dagster.scoring.effort import ModelShape

if TYPE_CHECKING:
    from gateau_dagster.incremental.calibration import Speed
    from gateau_dagster.incremental.known_model import KnownModel


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

    @cached_property
    def shape(self) -> ModelShape | None:
        """None when its configuration is not known, or is none of a decoder."""
        if self.known.config is None:
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
        if section.context != "window":
            return config.scoring.max_length
        window = section.window or (self.known and own_window(config, self.name)) or config.scoring.max_length
        return min(config.scoring.max_length, window)

    @cached_property
    def speed(self) -> Speed | str:
        """Measured on the configured device at the lengths of this input; or why it is not known."""
        from gateau_dagster.incremental.calibration import Lengths, calibrated

        if self.known.config is None or self.shape is None:
            return self.known.missing or "its shape is not known"
        tokens = self.tokens(self._state.index.accepted)
        lengths = Lengths(
            prompt=min(self.limit, _power(float(np.quantile(tokens.prompt, 0.9)))),
            response=_power(_usual(tokens.response)),
            segment=_power(_usual(tokens.segment_prompt), steps=4) if self.name == "long" else 0,
        )
        config = self._state.config
        code = config.models[self.name].trust_remote_code
        return calibrated(self.known.config, lengths, config.scoring, work_folder=config.work_folder, remote_code=code)

    @property
    def unknown(self) -> str:
        """Why FLOPs or time cannot be said; empty when they can."""
        if self.shape is None:
            return self.known.missing or "its shape is not known"
        return self.speed if isinstance(self.speed, str) else ""

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
