"""Estimate a plan's training runs and answers, from those in this store.

Without recorded runs, times follow from the speed of one matrix product; see `estimator`. A trained token takes three
times its forward pass. A prompt takes one forward pass. Each generated token reads all weights again, once per batch of
answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.features.estimates.estimator import SPREAD, SPREAD_OF_OTHERS, Estimator
from gateau_dagster.features.evaluation import ANSWERS
from gateau_dagster.features.evaluation.benchmark import Question, QuestionBenchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.questions import known_questions
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.data_checks import chosen_share
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.planned_training import mixed_lengths, training_recipes
from gateau_dagster.pipeline.recipes import CHECKPOINTS, Recipe
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import WorkForecast
from gateau_dagster.readable import plural
from gateau_dagster.storage.documents import read_training_log

Seconds = tuple[float, float] | None  # the bounds of a time, if it is known


def planned_amounts(state: State, plan: Plan, estimator: Estimator) -> list[WorkForecast]:
    """Return the training runs of a plan, then its answers by benchmark.

    Equal mixes are trained once, but each is counted. Models that have some of the answers are counted in full.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    return [*_trainings(state, plan, estimator), *_answers(state, plan, estimator)]


_PASSES = 3  # one forward; the backward pass takes twice the work
_BYTES = 4  # per token of short conversations, with the JSON around them


def _trainings(state: State, plan: Plan, estimator: Estimator) -> Iterator[WorkForecast]:
    for asset, recipes in training_recipes(state, plan).items():
        tokens = sum(_tokens(state, plan, recipe, estimator) for recipe in recipes)
        rate, within, grounds = _rate(state, estimator)
        seconds = None if rate is None else tokens / rate
        yield WorkForecast(
            asset=asset,
            models=len(recipes),
            amount=round(tokens),
            unit="tokens",
            low=seconds and seconds / within,
            high=seconds and seconds * within,
            devices=recipes[0].config.training.processes,
            grounds=grounds,
        )


def _tokens(state: State, plan: Plan, recipe: Recipe, estimator: Estimator) -> float:
    """Return the number of trained tokens over all epochs or steps.

    It is counted from the mix. If the mix is out of date, every sample has the average length, cut to the training
    length. No context is trimmed then, because the samples to trim are not known.
    """
    config, training, accepted = recipe.config, recipe.config.training, state.index.accepted
    mixed = mixed_lengths(state, plan, recipe)
    rates = estimator.model(training.model).rates
    lengths = (accepted["characters"] / rates.context).clip(upper_bound=training.max_length)
    if training.max_steps is None and mixed is not None:
        return training.epochs * float(mixed.sum())
    if training.max_steps is None:
        return training.epochs * (chosen_share(config, accepted) * float(lengths.sum()) + _short_tokens(config))
    lengths = lengths if mixed is None else mixed
    rows = training.max_steps * training.passes_per_step * training.batch_size * training.data_processes
    each = training.row_tokens if training.packs else float(lengths.mean())  # pyright: ignore[reportArgumentType]
    return float(rows * each)


def _short_tokens(config: Config) -> float:
    """Return the number of tokens of the short conversations, from the size of their files."""
    chat = config.located_short_chat
    if chat is None:
        return 0.0
    return chat.fraction * sum(file.size for file in resolve_files(chat.path, config.folder)) / _BYTES


def _rate(state: State, estimator: Estimator) -> tuple[float | None, float, str]:
    """Return the tokens per second, the factor by which this may be wrong, and the source of both."""
    recorded = [] if estimator.assumed.name else [*_recorded_trainings(state)]
    if recorded:
        tokens, seconds = map(sum, zip(*recorded, strict=True))
        return tokens / seconds, SPREAD_OF_OTHERS, f"{plural(len(recorded), 'training')} of this store"
    model, accepted = estimator.model(state.config.training.model), state.index.accepted
    shape, speed = model.shape, estimator.speed(state.config.training.model)
    if shape is None or speed is None or not accepted.height:
        return None, 1.0, model.unknown or "not known before something was trained on this device"
    length = (accepted["characters"] / model.rates.context).clip(1, state.config.training.max_length).to_numpy()
    attention = float(shape.attention_flops(length).sum() / length.sum())
    token = _PASSES * (shape.token_flops + shape.head_flops(1) + attention)
    processes = state.config.training.processes
    return processes * speed / token, SPREAD, estimator.grounds


def _recorded_trainings(state: State) -> Iterator[tuple[float, float]]:
    """Yield the tokens and the seconds of each training run with a model in the store."""
    for table in state.read_made(CHECKPOINTS, ["tokens", "seconds"]).values():
        tokens, seconds = table.row(0)
        if tokens and seconds:
            yield tokens, seconds
    log = read_training_log(state.store)
    if log and log[-1]["tokens_per_second"] > 0:
        yield log[-1]["tokens"], log[-1]["tokens"] / log[-1]["tokens_per_second"]


_WITHIN = 1.5
# Prompt tokens that a device reads in the time in which it generates a single token.
_READ_FOR_ONE_SAID = {"cpu": 16, "cuda": 300}
_SHORTEST = 0.25
"""The smallest share of its token limit that an answer uses, for models that end their answers early."""


def _answers(state: State, plan: Plan, estimator: Estimator) -> Iterator[WorkForecast]:
    for name, chosen in scored_benchmarks(state.config).items():
        work = plan.of(f"{ANSWERS}/{name}")
        if work is None or not isinstance(chosen, QuestionBenchmark):
            continue
        recorded = None if estimator.assumed.name else _recorded_answers(state, name)
        questions, seconds, grounds = recorded or _expected_answers(state, chosen, estimator)
        factor = len(work.partitions) * _asked_anew(state, chosen)
        low, high = (None, None) if seconds is None else (each * factor for each in seconds)
        yield WorkForecast(
            asset=work.asset,
            models=len(work.partitions),
            amount=None if questions is None else round(questions * factor),
            unit="questions",
            low=low,
            high=high,
            grounds=grounds,
        )


def _asked_anew(state: State, chosen: QuestionBenchmark) -> float:
    """Return the share of a benchmark's questions that no earlier benchmark asks, as far as both are known."""
    other = scored_benchmarks(state.config).get(chosen.asks_as)
    if not isinstance(other, QuestionBenchmark):
        return 1.0
    own, theirs = known_questions(state, chosen), known_questions(state, other)
    if not own or theirs is None:
        return 1.0
    answered = {(each.question_id, each.digest) for each in theirs}
    return sum((each.question_id, each.digest) not in answered for each in own) / len(own)


def _recorded_answers(state: State, name: str) -> tuple[int, Seconds, str] | None:
    """Return the number of questions, the seconds and their source: the average over the models that answered.

    A server answers concurrently; answers of this process record their share of a batch.
    """
    engine = evaluation_of(state.config).engine
    tables = [*state.read_made(f"{ANSWERS}/{name}", ["question_id", "seconds"]).values()]
    if not any(table.height for table in tables):
        return None
    whole = pl.concat(tables)
    seconds = float(whole["seconds"].sum()) / len(tables) / (engine.concurrency if engine is not None else 1)
    return whole["question_id"].n_unique(), (seconds / _WITHIN, seconds * _WITHIN), "the answers of this store"


def _expected_answers(state: State, chosen: QuestionBenchmark, estimator: Estimator) -> tuple[int | None, Seconds, str]:
    """Return the same figures from the questions' tokens and the device's speed, if both are known."""
    sizes = _sizes(state, chosen, estimator)
    seconds = None if not sizes or evaluation_of(state.config).engine is not None else _seconds(state, sizes, estimator)
    grounds = f"{estimator.grounds}, answers of any length up to the longest"
    count = None if sizes is None else len(sizes)
    return count, seconds, "not known before one model has answered" if seconds is None else grounds


def _sizes(state: State, chosen: QuestionBenchmark, estimator: Estimator) -> Sequence[tuple[float, float]] | None:
    """Return the most tokens of prompt and answer per question; None if they are not known."""
    if (sizes := chosen.sizes()) is not None:
        return sizes
    config, questions = state.config, known_questions(state, chosen)
    if questions is None:
        return None
    letters = estimator.model(config.training.model).rates.context
    return [_size(each, letters, evaluation_of(config).input_length or config.scoring.max_length) for each in questions]


def _size(question: Question, letters: float, limit: int) -> tuple[float, float]:
    """Return the tokens read and generated; each turn is read with the earlier turns and their answers.

    letters: characters per token.
    limit: most tokens per turn.
    """
    most, read = question.generation.max_new_tokens, 0.0
    shown = sum(len(text) for _, text in question.earlier) / letters
    for turn in question.turns:
        shown += min(len(turn) / letters, limit)
        read += shown
        shown += most
    return read, float(most * len(question.turns))


def _seconds(state: State, sizes: Sequence[tuple[float, float]], estimator: Estimator) -> Seconds:
    """Return the bounds of one model's time in seconds; None if the speed of the model or the device is unknown."""
    name, device = state.config.training.model, estimator.device
    shape, speed = estimator.model(name).shape, estimator.speed(name)
    if shape is None or speed is None:
        return None
    read, said = np.array(sizes, dtype=np.float64).T
    reading = float(shape.pass_flops(np.maximum(read, 1.0)).sum()) / speed
    beside = np.clip(state.config.scoring.batch_tokens / (read + said), 1.0, len(sizes))
    token = (shape.token_flops + shape.head_flops(1)) / speed
    saying = float((said * np.maximum(1.0, _READ_FOR_ONE_SAID.get(device.kind, 300) / beside)).sum()) * token
    return (reading + _SHORTEST * saying) / SPREAD, (reading + saying) * SPREAD
