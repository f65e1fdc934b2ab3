"""What a training mix is made from, and its columns: of the single run and of every variant."""

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.storage.stamp import By
from gateau_dagster.training.longce import LONG, SHORT


def mix_reads(config: Config, chosen: str) -> dict[str, By]:
    """The assets that are read, and how each counts. `chosen`: the one with the samples that are trained on."""
    mix = config.training.mix
    # An equal selection is an equal mix, unless the mix goes by the samples' ranks or sources.
    by: By = "fingerprint" if mix.long_fraction < 1 or mix.weights else "content"
    chat: dict[str, By] = {"short_chat_mix": "content"} if config.short_chat else {}
    pair: dict[str, By] = dict.fromkeys((SHORT, LONG), "fingerprint") if weighs_responses(config) else {}
    return {chosen: by, **chat, **pair}


def weighs_responses(config: Config) -> bool:
    """Whether long samples' tokens are weighed, and there are some."""
    return config.training.loss == "longce" and not config.training.mix.without_long


def mix_columns(config: Config) -> tuple[tables.Column, ...]:
    """Of the mix."""
    return tables.WEIGHTED_MIX if config.training.loss == "longce" else tables.TRAINING_MIX
