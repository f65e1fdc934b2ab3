"""Prepare a model for estimates: tokens from the lengths of texts, and FLOPs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.models.flops import whole_text_flops
from gateau_dagster.models.model_facts import facts_of, own_window, parameter_count
from gateau_dagster.models.shapes import known_shape
from gateau_dagster.pipeline.model_checks import attention_unseen
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import token_rates
from gateau_dagster.scoring.sample_table import Numbers, PlannedWork, SampleTokens


class ScoredModel:
    """A configured model that scores samples of a state.

    known: the parts of the model that are on this machine.
    parameters: number of parameters, if its weights are on this machine.
    shape: the shape of a decoder that generates text, if known.
    limit: most tokens of a prompt that the model is shown.

    Raises GateauError for damaged weights.
    """

    def __init__(self, state: State, name: str) -> None:
        config, section = state.config, state.config.models[name]
        self.name, self.causal = name, section.task == "causal"
        self.known, self.parameters = facts_of(config, name), parameter_count(config, name)
        self.rates, self.limit, self.shape = token_rates(state, name), config.scoring.max_length, None
        if not self.causal or section.context == "window":
            self.limit = min(self.limit, section.window or own_window(config, name) or self.limit)
        self._shows_attention = True
        if self.causal and self.known.config is not None:
            self.shape = known_shape(self.known.config)
            self._shows_attention = attention_unseen(config, name, state.model_digests[name]) is None

    def sample_tokens(self, samples: pl.DataFrame, shared: npt.NDArray[np.bool_] | bool = False) -> SampleTokens:
        """Return the token counts of samples of the index."""
        found = self.rates.sample_tokens(samples, self.limit, shared)
        return replace(found, shows_attention=self._shows_attention, shape=self.shape)

    def flops(self, planned: PlannedWork) -> Numbers | None:
        """Return the FLOPs of each sample; None if they are not known."""
        if self.causal:
            return None if self.shape is None else planned.flops(self.shape)
        if self.known.config is None or self.parameters is None:
            return None
        text = self.known.config.get_text_config()
        weights = self.parameters - text.vocab_size * text.hidden_size  # without the word embedding
        layers, hidden = text.num_hidden_layers, text.hidden_size
        each = [one.count * whole_text_flops(one.length, weights, layers, hidden) for one in planned.passes]
        return np.sum(each, axis=0)

    @property
    def unknown(self) -> str:
        """Return why FLOPs are unknown; empty if they are known."""
        if self.known.config is None or (self.shape if self.causal else self.parameters) is not None:
            return self.known.missing
        return "its shape is not known" if self.causal else "its weights are not on this machine yet"
