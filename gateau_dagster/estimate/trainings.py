"""Estimate a plan's trainings: tokens from the lengths of texts, time from trainings of this store.

Before any has run, a token takes three times its forward pass, at the speed of one matrix product; see `estimator`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateau_dagster.config import Config
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.estimate.estimator import HALF_WIDTH, MOST, SPREAD, SPREAD_OF_OTHERS, Estimator
from gateau_dagster.pipeline.data_checks import chosen_share
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, Recipe
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.storage.training_record import read_training_log


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The work of one asset.

    models: how many are trained or answer questions.
    amount: tokens or questions, as `unit` names; None: unknown.
    seconds_low, seconds_high: None if they are not known.
    grounds: their source, or why they are not known.
    """

    asset: str
    models: int
    amount: int | None
    unit: str
    seconds_low: float | None
    seconds_high: float | None
    grounds: str


_PASSES = 3  # one forward; the backward pass takes twice the work
_BYTES = 4  # per token of short conversations, with the JSON around them


def planned_trainings(state: State, plan: Plan, estimator: Estimator) -> list[Amount]:
    """Return the checkpoint and the variants that a plan trains; equal mixes, which are trained once, each count."""
    found = []
    for asset, configs in _configs(state, plan).items():
        tokens = sum(_tokens(state, config, estimator) for config in configs)
        rate, within, grounds = _rate(state, estimator)
        seconds = None if rate is None else tokens / rate
        found.append(
            Amount(
                asset=asset,
                models=len(configs),
                amount=round(tokens),
                unit="tokens",
                seconds_low=seconds and seconds / within,
                seconds_high=seconds and seconds * within,
                grounds=grounds,
            )
        )
    return found


def _configs(state: State, plan: Plan) -> dict[str, list[Config]]:
    """Return by asset each training as the configuration of a single run."""
    variants = plan.of(CHECKPOINTS)
    stale = [state.config.variant_set[name] for name in (variants.partitions if variants else ())]
    found = {
        CHECKPOINT_FOLDER: [state.config] if plan.of(CHECKPOINT_FOLDER) is not None else [],
        CHECKPOINTS: [Recipe(state.config, variant).config for variant in stale if variant.trained],
    }
    return {asset: configs for asset, configs in found.items() if configs}


def _tokens(state: State, config: Config, estimator: Estimator) -> float:
    """Return the tokens over all epochs or steps, at average sample length, each sequence cut to the training
    length.
    """
    training, accepted = config.training, state.index.accepted
    rates = estimator.model(training.model).rates
    lengths = (accepted["characters"] / rates.context).clip(upper_bound=training.max_length)
    if training.max_steps is None:
        return training.epochs * (chosen_share(config, accepted) * float(lengths.sum()) + _short_tokens(config))
    rows = training.max_steps * training.passes_per_step * training.batch_size * training.data_processes
    each = training.row_tokens if training.packs else float(lengths.mean())  # pyright: ignore[reportArgumentType]
    return float(rows * each)


def _short_tokens(config: Config) -> float:
    """Return the tokens of the short conversations, from the size of their files."""
    chat = config.located_short_chat
    if chat is None:
        return 0.0
    return chat.fraction * sum(file.size for file in resolve_files(chat.path, config.folder)) / _BYTES


def _rate(state: State, estimator: Estimator) -> tuple[float | None, float, str]:
    """Return tokens per second, the factor by which they may be wrong, and the source of both."""
    recorded = [*_recorded(state)]
    if recorded:
        tokens, seconds = map(sum, zip(*recorded, strict=True))
        return tokens / seconds, SPREAD_OF_OTHERS, f"{plural(len(recorded), 'training')} of this store"
    model, product = estimator.model(state.config.training.model), estimator.device.product
    shape, accepted = model.shape, state.index.accepted
    if shape is None or product is None or not accepted.height:
        return None, 1.0, model.unknown or "not known before something was trained on this device"
    length = (accepted["characters"] / model.rates.context).clip(1, state.config.training.max_length).to_numpy()
    attention = float(shape.attention_flops(length).sum() / length.sum())
    token = _PASSES * (shape.token_flops + shape.head_flops(1) + attention)
    speed = product * MOST * shape.hidden / (shape.hidden + HALF_WIDTH)
    return speed / token, SPREAD, "the speed of one matrix product on this device"


def _recorded(state: State) -> Iterator[tuple[float, float]]:
    """Yield tokens and seconds of each training whose model is in the store."""
    for (_, name), stamp in state.store.stamps((CHECKPOINTS, name) for name in state.config.variant_set).items():
        row = None if stamp is None else state.store.read(CHECKPOINTS, name, ["tokens", "seconds"]).row(0)
        if row is not None and row[0] and row[1]:
            yield row
    log = read_training_log(state.store)
    if log and log[-1]["tokens_per_second"] > 0:
        yield log[-1]["tokens"], log[-1]["tokens"] / log[-1]["tokens_per_second"]
