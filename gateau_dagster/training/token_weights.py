"""Give response tokens that need far context a higher weight in the loss: by LongCE, or by their gain from far text.

    longce:   loss = 1/n sum_t w_t * -log P(y_t),              w_t = min(p_B(y_t) / p_A(y_t), gamma)
    far_gain: loss = sum_t w_t * -log P(y_t) / sum_t w_t,      w_t = 1 + (gamma - 1) * max(0, F_t - N_t)

Both sums, and the count n, cover all trained tokens of a step on all ranks.

LongCE is from Fang et al. 2024 (arXiv 2410.23771). Its weights are not normalised: a token of weight 1 counts as
without weights, and the other weights act like a higher learning rate. Both this and the gamma of 5 follow the authors'
program (PKU-ML/LongPPL, `finetune/finetune.py`). The program measures p_B and p_A in every step, with the model that
is trained, given the whole text and its last 4,096 tokens. Here they are those of theta_B and theta_A from the stored
tables, and do not change.

The weights of `far_gain` are defined by this project. N_t and F_t are `near_probability` and `far_probability` of the
table `cam`: theta_B's probability of a token given the best near segment or none, and given only the best far segment.
The loss is divided by the sum of the weights, so their mean is 1 in each step. Gamma moves the loss towards tokens that
far text explains, and does not change the size of a step. A gain of 1 has the weight gamma, the maximum of both losses.

Only responses of long samples have other weights than 1. Before any normalisation, the token that ends a response and
all tokens of short conversations have weight 1. So have those of a sample whose context `training.trim` cuts.
"""

# What it costs: no pass in training, since the probabilities are read from tables that scoring has stored. The
# authors' LongCE instead measures them in each step with the trained model, so its weights follow the training. Ours
# are those of fixed models. The mix grows by a float32 per token.
#
# When which loss is better:
# - `token` is the default, and the loss to beat. docs/evidence/experiment.md found no gain of `longce` beyond chance.
# - `longce` rewards whatever the longer window explains, near or far. It also raises the size of a step, so compare it
#   with a higher learning rate before its weights get the credit.
# - `far_gain` rewards only what a far segment explains, at the same size of a step. It needs the table `cam`.
# - Both refuse a trained model with another tokenizer: weights would be on other tokens. `exact` needs no scores at
#   all.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import WEIGHING
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError, gateau_command
from gateau_dagster.methods.token_contrast import LEAST_PROBABILITY, SHARED, check_same_version, token_pairs
from gateau_dagster.models.prompt import response_ids
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, perplexity_asset
from gateau_dagster.training.encode import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHORT, LONG = perplexity_asset(THETA_A), perplexity_asset(THETA_B)
_NEAR, _FAR = "near_probability", "far_probability"
_VERSION = ("sample_id", "digest")
READS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "longce": dict.fromkeys((SHORT, LONG), (*_VERSION, SHARED)),
    "far_gain": {CAM: (*_VERSION, _NEAR, _FAR)},
}
"""The columns that each loss reads, by table."""
SCORERS = {"longce": (THETA_A, THETA_B), "far_gain": (THETA_B,)}
"""The models whose probabilities each loss reads."""
Weights = npt.NDArray[np.float32]


def longce_weights(long: npt.ArrayLike, short: npt.ArrayLike, *, gamma: float) -> Weights:
    """Return min(p_B / p_A, gamma) of tokens, float32 [n], from p_B and p_A, [n] each.

    A probability of 0, to which float32 rounds values below 7e-46, is replaced by the smallest positive one. If both
    are 0, the weight is 1 (gamma if that is less).
    """
    floored = [np.maximum(np.asarray(each, dtype=np.float64), LEAST_PROBABILITY) for each in (long, short)]
    return np.minimum(floored[0] / floored[1], gamma).astype(np.float32)


def far_gain_weights(far: npt.ArrayLike, near: npt.ArrayLike, *, gamma: float) -> Weights:
    """Return 1 + (gamma - 1) max(0, F - N) of tokens, float32 [n], from F and N, [n] each; before normalisation."""
    gain = np.asarray(far, dtype=np.float64) - np.asarray(near, dtype=np.float64)
    return (1 + (gamma - 1) * np.maximum(gain, 0)).astype(np.float32)


def response_weights(
    chosen: pl.DataFrame, scored: Mapping[str, pl.DataFrame], *, loss: str, gamma: float
) -> dict[str, Weights]:
    """Return the weights of each response's tokens by sample, for samples that the models scored.

    Args:
        chosen: `sample_id` and `digest` of the training samples.
        scored: the tables of READS[loss], with the columns listed there.
        loss: longce or far_gain.
        gamma: the largest weight.

    Raises:
        GateauError: a table was computed from another version of a sample, or the models differ in its response tokens.
    """
    check_same_version({"selected_subset": chosen, **scored})
    tables = {name: table.join(chosen, on="sample_id", how="semi") for name, table in scored.items()}
    if loss == "longce":
        pairs = token_pairs(tables[SHORT], tables[LONG])
        return {name: longce_weights(long, short, gamma=gamma) for name, short, long in pairs.iter_rows()}
    gains = tables[CAM].select("sample_id", _NEAR, _FAR)
    return {name: far_gain_weights(far, near, gamma=gamma) for name, near, far in gains.iter_rows()}


@dataclass(frozen=True, kw_only=True)
class TokenWeights:
    """The token weights of sequences.

    loss: longce or far_gain. weights: see `response_weights`. tokenizer: the trained model's. scorers: the tokenizers
    of the models that the weights come from, by name. template: the template of all prompts.
    """

    loss: str
    weights: Mapping[str, Weights]
    tokenizer: PreTrainedTokenizerBase
    scorers: Mapping[str, PreTrainedTokenizerBase]
    template: Template

    def of(self, sample: Sample, encoded: Encoded) -> Weights:
        """Return the weight of every token of a long sample's sequence, float32 [n]: 1 outside its response.

        Raises:
            UnscorableSampleError: one of the models did not score the sample.
            GateauError: the scored tokens differ from the trained ones.
        """
        weights = self.weights.get(sample.sample_id)
        if weights is None:
            raise UnscorableSampleError(
                f"{' or '.join(READS[self.loss])} has no row of it, by which training.loss: {self.loss} weighs its "
                "tokens; their rejected samples have the reason"
            )
        self._check_tokens(sample, encoded, scored=len(weights))
        found = np.ones(len(encoded.input_ids), dtype=np.float32)
        if encoded.trimmed_tokens:
            return found
        begin = int(encoded.block_tokens[:-1].sum())
        found[begin : begin + len(weights)] = weights[: len(found) - begin]  # fewer if the response was truncated
        return found

    def _check_tokens(self, sample: Sample, encoded: Encoded, *, scored: int) -> None:
        ids = response_ids(self.tokenizer, sample, self.template)
        begin = int(encoded.block_tokens[:-1].sum())
        trained = encoded.input_ids[begin : begin + len(ids)].tolist()
        if trained != [*ids[: len(trained)]]:  # a tool call, or an earlier answer of a truncated conversation
            raise UnscorableSampleError(
                f"training.loss: {self.loss} weighs the tokens of the scored response, but the last answer that is "
                "learned has others: set training.loss: token"
            )
        for name, tokenizer in self.scorers.items():
            if response_ids(tokenizer, sample, self.template) != ids:
                raise GateauError(
                    WEIGHING[self.loss],
                    f"training.loss: {self.loss}: models.{name}, which scored the response of {sample.sample_id}, "
                    "tokenises it differently from the trained model. Train a model with its tokenizer "
                    "(training.model: long), or set training.loss: token",
                )
        if scored != len(ids):
            raise GateauError(
                "storage.out_of_date",
                f"training.loss: {self.loss}: {' and '.join(READS[self.loss])} contain {scored} tokens of the response "
                f"of {sample.sample_id}, which has {len(ids)}: they are from another tokenizer or template. Update "
                f"them with `{gateau_command('run')}`, or set training.loss: token",
            )
