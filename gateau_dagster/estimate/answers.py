"""Estimate the time for a plan's answers, from answers to the same questions in this store.

Before any model has answered, the estimate uses the speed of one matrix product; see `estimator`. A prompt takes a
forward pass. Each generated token reads all weights again, once for all answers of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gateau_dagster.estimate.estimator import HALF_WIDTH, MOST, SPREAD, Estimator
from gateau_dagster.estimate.questions import known_questions
from gateau_dagster.estimate.trainings import Amount
from gateau_dagster.evaluation.benchmark import Question, QuestionBenchmark
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.evaluation_assets import ANSWERS
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State

_WITHIN = 1.5
# Tokens that are read in the time of generating one token alone: the arithmetic of a device while it reads a number.
_READ_FOR_ONE_SAID = {"cpu": 16, "cuda": 300}
_SHORTEST = 0.25
"""The least share of its tokens that an answer uses, for models whose answers end early."""


@dataclass(frozen=True, kw_only=True)
class _AnswerWork:
    """One model's answers to a benchmark. questions: how many, None: unknown; the rest as of Amount."""

    questions: int | None
    low: float | None
    high: float | None
    grounds: str

    def times(self, factor: float) -> _AnswerWork:
        """Scale the work by `factor`."""
        questions = None if self.questions is None else round(self.questions * factor)
        low, high = (None if each is None else each * factor for each in (self.low, self.high))
        return replace(self, questions=questions, low=low, high=high)


def planned_answers(state: State, plan: Plan, estimator: Estimator) -> list[Amount]:
    """Return by benchmark the models that have to answer; models with some of the answers count in full.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    found = []
    for name, chosen in scored_benchmarks(state.config).items():
        work = plan.of(f"{ANSWERS}/{name}")
        if work is None or not isinstance(chosen, QuestionBenchmark):
            continue
        models, recorded = len(work.partitions), _recorded(state, name)
        one = _expected(state, chosen, estimator) if recorded is None else recorded
        whole = one.times(models * _asked_anew(state, chosen))
        found.append(
            Amount(
                asset=work.asset,
                models=models,
                amount=whole.questions,
                unit="questions",
                seconds_low=whole.low,
                seconds_high=whole.high,
                grounds=whole.grounds,
            )
        )
    return found


def _asked_anew(state: State, chosen: QuestionBenchmark) -> float:
    """Return the share of its questions that no other benchmark asks before it, as far as both are known."""
    other = scored_benchmarks(state.config).get(chosen.asks_as)
    if not isinstance(other, QuestionBenchmark):
        return 1.0
    own, theirs = known_questions(state, chosen), known_questions(state, other)
    if not own or theirs is None:
        return 1.0
    answered = {(each.question_id, each.digest) for each in theirs}
    return sum((each.question_id, each.digest) not in answered for each in own) / len(own)


def _recorded(state: State, name: str) -> _AnswerWork | None:
    """Return the average of the models that answered. Answers of a server run concurrently; those of this process
    record their share of a batch.
    """
    asset, engine = f"{ANSWERS}/{name}", state.config.evaluation.engine
    stamps = state.store.stamps((asset, variant) for variant in state.config.variant_set)
    made = [variant for (_, variant), stamp in stamps.items() if stamp is not None]
    tables = [state.store.read(asset, variant, ["question_id", "seconds"]) for variant in made]
    if not any(table.height for table in tables):
        return None
    whole = pl.concat(tables)
    seconds = float(whole["seconds"].sum()) / len(tables) / (engine.concurrency if engine is not None else 1)
    return _AnswerWork(
        questions=whole["question_id"].n_unique(),
        low=seconds / _WITHIN,
        high=seconds * _WITHIN,
        grounds="the answers of this store",
    )


def _expected(state: State, chosen: QuestionBenchmark, estimator: Estimator) -> _AnswerWork:
    """Return the work from the tokens of the questions and the device, if both are known."""
    sizes = _sizes(state, chosen, estimator)
    seconds = None if not sizes or state.config.evaluation.engine is not None else _seconds(state, sizes, estimator)
    low, high = seconds or (None, None)
    return _AnswerWork(
        questions=None if sizes is None else len(sizes),
        low=low,
        high=high,
        grounds="not known before one model has answered"
        if seconds is None
        else "the speed of one matrix product on this device, answers of any length up to the longest",
    )


def _sizes(state: State, chosen: QuestionBenchmark, estimator: Estimator) -> Sequence[tuple[float, float]] | None:
    """Return the most tokens of prompt and answer per question; None if they are not known."""
    if (sizes := chosen.sizes()) is not None:
        return sizes
    config, questions = state.config, known_questions(state, chosen)
    if questions is None:
        return None
    letters = estimator.model(config.training.model).rates.context
    return [_size(each, letters, config.evaluation.input_length or config.scoring.max_length) for each in questions]


def _size(question: Question, letters: float, limit: int) -> tuple[float, float]:
    """Return tokens read and generated: each turn is read with the turns before it and their answers.

    letters: characters per token.
    limit: tokens per turn.
    """
    most, read, shown = question.generation.max_new_tokens, 0.0, 0.0
    for turn in question.turns:
        shown += min(len(turn) / letters, limit)
        read += shown
        shown += most
    return read, float(most * len(question.turns))


def _seconds(state: State, sizes: Sequence[tuple[float, float]], estimator: Estimator) -> tuple[float, float] | None:
    """Return the least and the most seconds that one model needs; None if the speed of model or device is unknown."""
    shape, device = estimator.model(state.config.training.model).shape, estimator.device
    if shape is None or device.product is None:
        return None
    read, said = np.array(sizes, dtype=np.float64).T
    speed = device.product * MOST * shape.hidden / (shape.hidden + HALF_WIDTH)
    reading = float(shape.pass_flops(np.maximum(read, 1.0)).sum()) / speed
    beside = np.clip(state.config.scoring.batch_tokens / (read + said), 1.0, len(sizes))
    token = (shape.token_flops + shape.head_flops(1)) / speed
    saying = float((said * np.maximum(1.0, _READ_FOR_ONE_SAID.get(device.kind, 300) / beside)).sum()) * token
    return (reading + _SHORTEST * saying) / SPREAD, (reading + saying) * SPREAD
