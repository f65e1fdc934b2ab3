"""Estimate the requests and cost of a plan's judging; missing answers are assumed to have full length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from operator import add

from gateau_dagster.config.variants import CHECKPOINT
from gateau_dagster.costs import PlannedCost
from gateau_dagster.features.evaluation import ANSWERS, CHARACTERISTICS, JUDGMENTS, PAIRS
from gateau_dagster.features.evaluation.benchmark import Question, QuestionBenchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.generation.answering import answer_scorer
from gateau_dagster.features.evaluation.grading import graded_answers
from gateau_dagster.features.evaluation.judge_requests import PlannedBenchmark, rating_cost, shards_cost, token_counter
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.asking import BudgetError, check_affordable, planned_cost
from gateau_dagster.features.evaluation.judging.judge_answers import Texts, answers_by_question, longest_answers
from gateau_dagster.features.evaluation.judging.replies import Replies, ServerCall
from gateau_dagster.features.evaluation.method import SAMPLE_RATINGS
from gateau_dagster.features.evaluation.questions import known_questions
from gateau_dagster.features.evaluation.registry import scored_benchmarks, shared_answers
from gateau_dagster.features.evaluation.server_client import server_key
from gateau_dagster.pipeline.plan import AFTER, Plan
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS
from gateau_dagster.pipeline.selection_reads import ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import WorkForecast


def planned_judging(state: State, plan: Plan) -> list[WorkForecast]:
    """Return the judging of a plan by benchmark, and of `characteristics` and `sample_ratings`; no model is loaded.

    `cost` assumes that answers, samples and rankings that may stay the same do so and keep their judgments. All others
    are new, and answers have full length. `most` assumes that nothing stays the same. Both are None while the questions
    are not known, since they may depend on missing tables or on a model.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    settings = evaluation_of(state.config).judge
    if settings is None:
        return []
    replies, count = Replies(state.store.files, settings.model), token_counter(state.config)
    forecast, found = partial(WorkForecast, unit="requests", currency=settings.currency), list[WorkForecast]()
    for name, chosen in scored_benchmarks(state.config).items():
        work, pairs = plan.of(f"{JUDGMENTS}/{name}"), plan.of(f"{PAIRS}/{name}")
        if (work is None and pairs is None) or not isinstance(chosen, RatedBenchmark):
            continue
        variants, questions = work.partitions if work is not None else [], known_questions(state, chosen)
        cost, most = None, None
        if questions is not None:
            benchmark = PlannedBenchmark(chosen=chosen, questions=questions, settings=settings)
            cost, most = (
                planned_cost(settings, held, replies, count, longest=to_come)
                for held, to_come in (
                    _asked(state, plan, benchmark, variants, paired=pairs is not None, as_before=as_before)
                    for as_before in (True, False)
                )
            )
        found.append(forecast(asset=name, variants=variants, cost=cost, most=most))
    rated = plan.of(SAMPLE_RATINGS)
    if rated is not None:
        cost = shards_cost(state, settings, replies, count, rated.partitions)
        found.append(forecast(asset=SAMPLE_RATINGS, cost=cost, most=cost))
    if plan.of(CHARACTERISTICS) is not None:
        cost = most = rating_cost(state, settings, replies, count)
        if plan.of(ranking_asset(state.config)) is not None:
            most = rating_cost(state, settings, None, count)
        found.append(forecast(asset=CHARACTERISTICS, cost=cost, most=most))
    return found


def _asked(
    state: State, plan: Plan, benchmark: PlannedBenchmark, variants: Sequence[str], *, paired: bool, as_before: bool
) -> tuple[list[ServerCall], list[ServerCall]]:
    """Return the judge's requests for the existing answers and for future ones, which have full length."""
    chosen, questions, longest = benchmark.chosen, benchmark.questions, longest_answers(benchmark.questions)
    held: dict[str, Texts] = {}
    texts: dict[str, Texts] = {}
    for name in dict.fromkeys([*variants, *(benchmark.paired if paired else ())]):
        held[name] = held_answers(state, plan, chosen, questions, name, as_before=as_before)
        stale = is_stale(plan, f"{ANSWERS}/{chosen.name}", name)
        texts[name] = {**longest, **held[name]} if stale else held[name]
    known, to_come = list[ServerCall](), list[ServerCall]()
    for name in variants:
        for each in benchmark.judgments(texts[name]):
            (known if each.question_id in held[name] else to_come).append(each.asked)
    for match in benchmark.pairs(texts) if paired else ():
        both = all(match.question_id in held[name] for name in (match.one, match.other))
        (known if both else to_come).extend((match.first, match.second))
    return known, to_come


def check_servers(state: State, plan: Plan, judging: Sequence[WorkForecast]) -> None:
    """Raise GateauError for a missing key, and BudgetError if the judge's budget is exceeded.

    judging: the judging of the same plan.
    """
    engine, judge = evaluation_of(state.config).engine, evaluation_of(state.config).judge
    asked = (work for work in plan.work if work.asset.startswith(f"{ANSWERS}/") and not work.conditional)
    if engine is not None and any(asked):
        server_key("evaluation.engine", engine.key, engine.base_url)
    # True if any request has, or may have, no kept reply.
    if judge is not None and any(each.cost is None or each.cost.usage.requests for each in judging):
        server_key("evaluation.judge", judge.key, judge.base_url)
    check_budget(state, judging)


def is_stale(plan: Plan, asset: str, variant: str) -> bool:
    """Return whether a variant's table is on the plan."""
    work = plan.of(asset)
    return work is not None and variant in work.reasons


def held_answers(
    state: State,
    plan: Plan,
    chosen: QuestionBenchmark,
    questions: Sequence[Question],
    variant: str,
    *,
    as_before: bool,
) -> Texts:
    """Return the graded part of a variant's kept answers, for answers that stay valid for these questions.

    as_before: whether to assume that a model stays the same if it is only rebuilt when its training data change. If
        False, answers that may be replaced are left out.

    Raises:
        GateauError: the answers cannot be read.
    """
    asset, thoughts = f"{ANSWERS}/{chosen.name}", evaluation_of(state.config).thoughts
    if not is_stale(plan, asset, variant):
        return answers_by_question(graded_answers(state.store.read(asset, variant), thoughts))
    scorer = _scorer(state, plan, variant, as_before=as_before)
    given: dict[str, dict[int, str]] = {}
    digests = {each.question_id: each.digest for each in questions}
    tables = ((each, variant) for each in (asset, *shared_answers(state.config, chosen.name)))
    for (each, _), stamp in state.store.stamps(tables).items():
        if stamp is None or stamp.scorer != scorer:
            continue
        table = state.store.read(each, variant, ["question_id", "turn", "digest", "answer"])
        for name, turn, digest, answer in graded_answers(table, thoughts).iter_rows():
            if digests.get(name) == digest:
                given.setdefault(name, {})[turn] = answer
    turns = {each.question_id: len(each.turns) for each in questions}
    return {name: texts for name, texts in given.items() if len(texts) == turns[name]}


def _scorer(state: State, plan: Plan, variant: str, *, as_before: bool) -> str:
    """Return the key of the model that will answer, if it is known; else a text that matches no existing answer."""
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


def total_cost(costs: Iterable[PlannedCost | None]) -> PlannedCost | None:
    """Return the sum of the known costs; None if none is known."""
    known = [each for each in costs if each is not None]
    return reduce(add, known) if known else None


def check_budget(state: State, planned: Iterable[WorkForecast]) -> None:
    """Raise BudgetError if expected and earlier cost together exceed `evaluation.judge.budget`."""
    _check(state, [each.cost for each in planned])


def passing_budget(state: State, planned: Iterable[WorkForecast]) -> str:
    """Return a warning if the worst case exceeds the budget; else an empty text."""
    try:
        _check(state, [each.most for each in planned])
    except BudgetError as error:
        return f"{error} That is the most: judging looks again once the answers are there, before it sends anything."
    return ""


def _check(state: State, costs: Iterable[PlannedCost | None]) -> None:
    settings, total = evaluation_of(state.config).judge, total_cost(costs)
    if settings is not None and total is not None:
        check_affordable(settings, Replies(state.store.files, settings.model).spent, total)
