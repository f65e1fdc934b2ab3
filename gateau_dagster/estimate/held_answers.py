"""Find the answers that stay valid after a plan: a judge that has graded them is not asked again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from gateau_dagster.config.variants import CHECKPOINT
from gateau_dagster.evaluation.generation.settings import answer_scorer
from gateau_dagster.evaluation.grading import graded_answers
from gateau_dagster.evaluation.judging.judge_answers import Texts, answers_by_question
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.registry import ChosenBenchmark
from gateau_dagster.pipeline.plan import AFTER, Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.training_assets import CHECKPOINT_FOLDER
from gateau_dagster.pipeline.variant_assets import ANSWERS, CHECKPOINTS, shared_answers

_COLUMNS = ["question_id", "turn", "digest", "answer"]


def is_stale(plan: Plan, asset: str, variant: str) -> bool:
    """Return whether a variant's table is on the plan."""
    work = plan.of(asset)
    return work is not None and variant in work.reasons


def held_answers(
    state: State,
    plan: Plan,
    chosen: ChosenBenchmark,
    questions: Sequence[Question],
    variant: str,
    *,
    as_before: bool,
) -> Texts:
    """Return the graded part of a variant's kept answers that will still be its answers to these questions.

    as_before: whether to assume that a model stays the same if it is only rebuilt when its training data change. If
        False, answers that may be replaced are left out.

    Raises:
        GateauError: the answers cannot be read.
    """
    asset, thoughts = f"{ANSWERS}/{chosen.name}", state.config.evaluation.thoughts
    if not is_stale(plan, asset, variant):
        return answers_by_question(graded_answers(state.store.read(asset, variant), thoughts))
    scorer = _scorer(state, plan, variant, as_before=as_before)
    given: dict[str, dict[int, str]] = {}
    digests = {each.question_id: each.digest for each in questions}
    for table in _made_by(state, [asset, *shared_answers(state.config, chosen)], variant, scorer):
        for name, turn, digest, answer in graded_answers(table, thoughts).iter_rows():
            if digests.get(name) == digest:
                given.setdefault(name, {})[turn] = answer
    turns = {each.question_id: len(each.turns) for each in questions}
    return {name: texts for name, texts in given.items() if len(texts) == turns[name]}


def _made_by(state: State, assets: Sequence[str], variant: str, scorer: str) -> Iterator[pl.DataFrame]:
    for (asset, _), stamp in state.store.stamps((each, variant) for each in assets).items():
        if stamp is not None and stamp.scorer == scorer:
            yield state.store.read(asset, variant, _COLUMNS)


def _scorer(state: State, plan: Plan, variant: str, *, as_before: bool) -> str:
    """Return what will answer, if it is known; else a text that matches no existing answer."""
    model, stamp = state.config.variant_set[variant], state.stamp(CHECKPOINTS, variant)
    reasons = [_reason(plan, CHECKPOINTS, variant)]
    if model.kind == CHECKPOINT:  # it waits for the single run, whatever that waits for
        reasons.append(_reason(plan, CHECKPOINT_FOLDER, None))
    if stamp is None or any(reason and not (as_before and reason.startswith(AFTER)) for reason in reasons):
        return "not known yet"
    return answer_scorer(
        state.config, stamp.content, trained_here=model.other is None, frame=state.variant_frame(variant)
    )


def _reason(plan: Plan, asset: str, part: str | None) -> str:
    work = plan.of(asset)
    return "" if work is None else work.reasons.get(part, "")
