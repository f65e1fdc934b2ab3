"""LongCE (Fang et al. 2024, arXiv 2410.23771): weigh response tokens that need far context more in the loss.

    loss = 1/n sum_t w_t * -log P(y_t),  w_t = min(p_B(y_t) / p_A(y_t), gamma)

n counts all trained tokens of a step. The weights are not normalised: a token of weight 1 counts as without weights.
That follows the authors' program (PKU-ML/LongPPL, `finetune/finetune.py`), and so does its gamma of 5.

In the program, p_B and p_A are measured in every step. They are the model's own in training, given the whole text and
its last 4,096 tokens. Here they are theta_B's and theta_A's, from the stored tables, and do not change. Only long
samples' responses have them. The token that ends a response, and all tokens of short conversations, weigh 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError, gateau_command
from gateau_dagster.methods.token_contrast import LEAST_PROBABILITY, SHARED, check_same_version, token_pairs
from gateau_dagster.models.prompt import response_ids
from gateau_dagster.training.encode import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHORT, LONG = "perplexity/short", "perplexity/long"
COLUMNS = ("sample_id", "digest", SHARED)
Weights = npt.NDArray[np.float32]


def token_weights(long: npt.ArrayLike, short: npt.ArrayLike, *, gamma: float) -> Weights:
    """Return min(p_B / p_A, gamma) of tokens, float32 [n], from p_B and p_A, [n] each.

    A probability of 0, to which float32 rounds values below 7e-46, is replaced by the smallest positive one. If both
    are 0, the weight is 1 (gamma if that is less).
    """
    floored = [np.maximum(np.asarray(each, dtype=np.float64), LEAST_PROBABILITY) for each in (long, short)]
    return np.minimum(floored[0] / floored[1], gamma).astype(np.float32)


def response_weights(chosen: pl.DataFrame, found: Mapping[str, pl.DataFrame], *, gamma: float) -> dict[str, Weights]:
    """Return the weights of each response's tokens by sample, for samples that both models scored.

    Args:
        chosen: `sample_id` and `digest` of the samples that are trained on.
        found: `COLUMNS` of the tables SHORT and LONG.
        gamma: the largest weight.

    Raises:
        GateauError: the tables come from other versions of a sample, or the models count different response tokens.
    """
    check_same_version({"selected_subset": chosen, **found})
    pairs = token_pairs(*(found[name].join(chosen, on="sample_id", how="semi") for name in (SHORT, LONG)))
    return {name: token_weights(long, short, gamma=gamma) for name, short, long in pairs.iter_rows()}


@dataclass(frozen=True, kw_only=True)
class LongCE:
    """The token weights of sequences.

    weights: see `response_weights`. tokenizer: of the model that is trained. scorers: tokenizers of the models that the
    weights come from, by name. template: of all prompts.
    """

    weights: Mapping[str, Weights]
    tokenizer: PreTrainedTokenizerBase
    scorers: Mapping[str, PreTrainedTokenizerBase]
    template: Template

    def of(self, sample: Sample, encoded: Encoded) -> Weights:
        """Return the weight of every token of a long sample's sequence, float32 [n]: 1 outside its response.

        Raises:
            UnscorableSampleError: one of the models did not score the sample.
            GateauError: the scored tokens are not the trained ones.
        """
        weights = self.weights.get(sample.sample_id)
        if weights is None:
            raise UnscorableSampleError(
                f"{SHORT} or {LONG} has no row of it, by which training.loss: longce weighs its tokens; their rejected "
                "samples have the reason"
            )
        self._check_tokens(sample, encoded, scored=len(weights))
        begin = int(encoded.block_tokens[:-1].sum())
        found = np.ones(len(encoded.input_ids), dtype=np.float32)
        found[begin : begin + len(weights)] = weights[: len(found) - begin]  # fewer if the response was truncated
        return found

    def _check_tokens(self, sample: Sample, encoded: Encoded, *, scored: int) -> None:
        ids = response_ids(self.tokenizer, sample, self.template)
        begin = int(encoded.block_tokens[:-1].sum())
        trained = encoded.input_ids[begin : begin + len(ids)].tolist()
        if trained != [*ids[: len(trained)]]:  # a tool call, or an earlier answer of a truncated conversation
            raise UnscorableSampleError(
                "training.loss: longce weighs the tokens of the scored response, but the last answer that is learned "
                "has others: set training.loss: token"
            )
        for name, tokenizer in self.scorers.items():
            if response_ids(tokenizer, sample, self.template) != ids:
                raise GateauError(
                    "training.longce",
                    f"training.loss: longce: models.{name}, which scored the response of {sample.sample_id}, tokenises "
                    "it differently from the trained model. Train a model with its tokenizer (training.model: long), "
                    "or set training.loss: token",
                )
        if scored != len(ids):
            raise GateauError(
                "storage.out_of_date",
                f"training.loss: longce: {SHORT} and {LONG} contain {scored} tokens of the response of "
                f"{sample.sample_id}, which has {len(ids)}: they are from another tokenizer or template. Update them "
                f"with `{gateau_command('run')}`, or set training.loss: token",
            )
