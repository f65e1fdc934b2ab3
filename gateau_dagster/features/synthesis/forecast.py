"""Estimate the requests, tokens, money and expected yield of the synthetic samples of a plan, and show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.markup import escape

from gateau_dagster.cli.display import explain_in_grey
from gateau_dagster.cli.plan import ASKED_COLUMNS, PlanPart, show_forecasts
from gateau_dagster.costs import PlannedCost, Usage
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.judge_requests import token_counter
from gateau_dagster.features.evaluation.judging.asking import (
    BudgetError,
    CountTokens,
    check_affordable,
    means,
    money_of,
    planned_cost,
)
from gateau_dagster.features.evaluation.judging.replies import Replies, ServerCall
from gateau_dagster.features.evaluation.server_client import server_key
from gateau_dagster.features.evaluation.servers import AskedConfig
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import (
    AGREEMENT,
    ASKED,
    FigureDigests,
    Outstanding,
    candidate_rows,
    is_second_answer,
    most_answers,
    outstanding,
    verdict_call,
)
from gateau_dagster.features.synthesis.checks import documents_of
from gateau_dagster.features.synthesis.config import SECTION, GeneratorConfig, SynthesisConfig, section_of
from gateau_dagster.features.synthesis.contexts import CONTEXTS
from gateau_dagster.features.synthesis.declarations import LONG, document_number, figure_digests
from gateau_dagster.features.synthesis.passages import PASSAGES_OF, PROLONG_KINDS, SourceDocument, quota
from gateau_dagster.features.synthesis.questions import answer_prompt, first_calls, later_requests, whole_documents
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.loadable import known_version
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices, WorkForecast
from gateau_dagster.readable import indented_lines, plural
from gateau_dagster.storage.local import recall, remember
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.tables import schema

_WORD = " the"
_TOKENS_OF_A_WORD = 1.3
_CHUNK = 10  # passages of a chunk that is summarised
_ANSWER_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class SynthesisYield:
    """The numbers of checked candidates, of candidates with a second answer, and of accepted candidates."""

    candidates: int = 0
    reached: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, checked: pl.DataFrame) -> SynthesisYield:
        """Return the yield of a table of checks, with columns `reason` and `accepted`."""
        reached = pl.col("accepted") | pl.col("reason").is_in([ASKED, AGREEMENT])
        return cls(
            candidates=checked.height,
            reached=checked.filter(reached).height,
            accepted=int(checked["accepted"].sum()),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedSynthesis:
    """The generation of a plan.

    candidates: number of candidates without figures in the store.
    kept: number of candidates with figures in shards that are checked again. passed, undecided: of these, the number
        that their figures accept, and the number that reach a check without a figure.
    unchosen: number of candidates with passages that are still to be chosen.
    questions: the requests for questions; those about passages in the store are exact if every reply can be used and no
        two questions are equal.
    answers: the second answers, about candidates that passed all earlier checks, and at most, if no other check
        refuses a candidate.
    expected_answers: the expected cost of second answers, by the measured yield; without one, of all candidates.
    verdicts: the comparisons of second answers by the judge, as expected and at most; None if no judge compares.
    measured: the yield of the candidates in the store; None if there are none.
    """

    candidates: int
    kept: int
    passed: int
    undecided: int
    unchosen: int
    questions: WorkForecast
    answers: WorkForecast
    expected_answers: PlannedCost
    verdicts: WorkForecast | None
    measured: SynthesisYield | None

    @property
    def expected(self) -> int | None:
        """Return the expected number of accepted candidates among those without figures; None before a measurement."""
        found = self.measured
        return None if found is None else round(self.candidates * found.accepted / found.candidates)


def measured_yield(state: State) -> SynthesisYield | None:
    """Return the yield of the candidates in the store, else that of `gateau validate --synthesis`; None without both.

    Questions of another generator, or with other generator settings, do not count.
    """
    settings = state.resolved(QUESTIONS_TABLE).settings
    written = {
        part
        for (_, part), stamp in _stamps(state, QUESTIONS_TABLE).items()
        if stamp is not None and stamp.inputs.get("settings") == settings
    }
    found = [part for (_, part), stamp in _stamps(state, CHECKS_TABLE).items() if stamp is not None and part in written]
    tables = [state.store.read(CHECKS_TABLE, part, ["reason", "accepted"]) for part in found]
    if any(table.height for table in tables):
        return SynthesisYield.of(pl.concat(tables))
    kept = recall(_measurements(state), _measured_key(state))
    return None if kept is None else SynthesisYield(**kept)


def remember_yield(state: State, found: SynthesisYield) -> None:
    """Keep a yield in the cache, if any candidate was checked."""
    if found.candidates:
        remember(_measurements(state), _measured_key(state), asdict(found))


def _measurements(state: State) -> Path:
    return state.config.work_folder / "cache" / "synthesis-yield.json"


def _measured_key(state: State) -> str:
    """Return a key of the settings that determine the yield; connection settings and the budget do not."""
    options = section_of(state.config)
    own, given = options.model_dump(mode="json", exclude={"count", "shards", "verify", "generator"}), options.generator
    generator = [given.model, given.max_tokens, given.window, given.opening, given.changed_sampling]
    return fingerprint({**own, "generator": generator, "theta_B": repr(_scorer(state))})


def _scorer(state: State) -> FigureDigests:
    # No figure is of a model that is still to be made.
    return figure_digests(state.config, state.observed, known_version(state, LONG) or "")


def _stamps(state: State, asset: str) -> Mapping[Any, Any]:
    return state.store.stamps((asset, part) for part in state.pipeline.partitions(asset))


def planned_synthesis(state: State, plan: Plan) -> PlannedSynthesis | None:
    """Return the requests to the generator in a plan; None if there are none.

    Documents are read only for questions of kind `self` that are still to be asked. Contexts are read only for shards
    with outdated checks but up-to-date contexts; their digests show which figures are kept.

    Raises:
        GateauError: a table, document or reply cannot be read.
    """
    options, asking = SECTION.of(state.config), [plan.of(asset) for asset in (QUESTIONS_TABLE, CHECKS_TABLE)]
    if options is None or not any(asking):
        return None
    parts = sorted({part for work in asking if work is not None for part in work.partitions})
    works = [plan.of(asset) for asset in (PASSAGES_TABLE, QUESTIONS_TABLE, CONTEXTS_TABLE)]
    unchosen, unasked, unbuilt = ({*work.partitions} if work is not None else {*()} for work in works)
    missing = [
        number
        for part in parts
        if part in unchosen and documents_of(state).shard(number := document_number(part)).height
    ]
    return planned_requests(
        state,
        unchosen=sum(quota(options, number) for number in missing),
        asking=[part for part in parts if part in unasked - unchosen],
        checking={part: part not in unbuilt for part in parts if part not in unasked | unchosen},
    )


def planned_requests(
    state: State,
    asked: QuestionRequests | None = None,
    *,
    unchosen: int = 0,
    asking: Iterable[str] = (),
    checking: Mapping[str, bool] | None = None,
) -> PlannedSynthesis:
    """Return the requests to the generator for some of the work.

    Args:
        state: with the section `synthesis`.
        asked: questions about passages that no table holds.
        unchosen: number of candidates without passages.
        asking: shards whose questions are asked about the passages in the store.
        checking: shards whose questions in the store are checked, and whether their contexts are built.

    Raises:
        GateauError: a table, document or reply cannot be read.
    """
    options = section_of(state.config)
    replies, count = _replies(state, options), token_counter(state.config)
    questions, checked, kept = asked or QuestionRequests(), Outstanding(), 0
    for part in asking:
        documents = partial(documents_of(state).documents, document_number(part))
        questions += question_requests(state.store.read(PASSAGES_TABLE, part).to_dicts(), documents, options, replies)
    for part, are_built in (checking or {}).items():
        rows = _candidate_rows(state, part, are_built=are_built)
        checked += outstanding(rows, options.checks, options.generator) if options.is_verified else Outstanding()
        kept += sum(row["known"] for row in rows)
    measured = measured_yield(state)
    least, most = (
        planned_cost(options.generator, each, replies, count)
        for each in (checked.certain, [*checked.certain, *checked.possible])
    )
    again = _asked_again(options, measured, questions.unasked + unchosen)
    answer, written = _answer(options, count), questions.candidates + unchosen
    most_again = _asked_again(options, None, written)
    certain, possible = (
        sum(is_second_answer(each) for each in calls if each not in replies)
        for calls in (checked.certain, checked.possible)
    )
    writing = planned_cost(options.generator, questions.wanted, replies, count, longest=questions.later)
    writing += _questions_to_come(state, count, unchosen)
    most += answer * (most_again * most_answers(options.checks))
    forecast = partial(WorkForecast, unit="requests", currency=options.generator.currency)
    return PlannedSynthesis(
        candidates=written + checked.new,
        kept=kept,
        passed=checked.passed,
        undecided=checked.undecided,
        unchosen=unchosen,
        questions=forecast(asset="questions", cost=writing, most=writing),
        answers=forecast(asset="second answers", cost=least, most=most),
        expected_answers=least + answer * (again * most_answers(options.checks)),
        verdicts=_verdicts(state, count, again + certain, most_again + certain + possible),
        measured=measured,
    )


def _asked_again(options: SynthesisConfig, measured: SynthesisYield | None, unasked: int) -> int:
    # Without a measured yield, all of them: a budget must not be exceeded because the generator is better than
    # expected.
    reached = 1.0 if measured is None else measured.reached / measured.candidates
    return round(unasked * reached) if options.is_verified else 0


def _replies(state: State, options: SynthesisConfig) -> Replies:
    return Replies(state.store.files, options.generator.model, options.generator.replies_folder)


def _candidate_rows(state: State, part: str, *, are_built: bool) -> list[dict[str, Any]]:
    """Return checks.candidate_rows of a shard; without their figures if their contexts are still to be built."""
    asked, built, before = state.store.read(QUESTIONS_TABLE, part), pl.DataFrame(schema=schema(CONTEXTS)), None
    if are_built and state.store.stamp(CHECKS_TABLE, part) is not None:
        built, before = (state.store.read(asset, part) for asset in (CONTEXTS_TABLE, CHECKS_TABLE))
    return candidate_rows(asked, built, _scorer(state), before)


@dataclass(frozen=True, kw_only=True)
class QuestionRequests:
    """The requests for the questions about some candidates.

    wanted: requests that depend on no reply, without those whose unusable reply is kept. later: a stand-in for each
    request that follows one still to be sent. unasked: number of candidates with a request still to be sent.
    """

    candidates: int = 0
    wanted: Sequence[ServerCall] = ()
    later: Sequence[ServerCall] = ()
    unasked: int = 0

    def __add__(self, other: QuestionRequests) -> QuestionRequests:
        return QuestionRequests(
            candidates=self.candidates + other.candidates,
            wanted=[*self.wanted, *other.wanted],
            later=[*self.later, *other.later],
            unasked=self.unasked + other.unasked,
        )


def question_requests(
    rows: Sequence[Mapping[str, Any]],
    documents: Callable[[], Iterator[SourceDocument]],
    options: SynthesisConfig,
    replies: Replies,
) -> QuestionRequests:
    """Return the requests for the questions about rows of PASSAGES.

    A candidate whose first requests have replies is expected to have all. Each later request is taken to be as long
    as its candidate's first one.

    Args:
        rows: rows of PASSAGES.
        documents: of the shard; read only for kind `self`.
        options: the section `synthesis`.
        replies: of the generator.
    """
    settings, wanted, later, unasked = options.generator, list[ServerCall](), list[ServerCall](), 0
    texts = whole_documents(rows, documents)
    for row in rows:
        calls = [each.asked for each in first_calls(settings, [row], texts)]
        missing = [each for each in calls if each not in replies]
        unusable = [each for each in missing if replies.is_unusable(each, means(settings))]
        wanted += [each for each in calls if each not in unusable]
        if missing and not unusable:
            later += missing[:1] * later_requests(row)
        unasked += len(missing) > len(unusable)
    return QuestionRequests(candidates=len(rows), wanted=wanted, later=later, unasked=unasked)


def _questions_to_come(state: State, count: CountTokens, number: int) -> PlannedCost:
    """Estimate the cost of `number` questions without chosen passages, from kinds, lengths and the mean document."""
    options = section_of(state.config)
    settings, replies = options.generator, _replies(state, options)
    passage = round(options.passage_words * _TOKENS_OF_A_WORD)
    mean = documents_of(state).table["characters"].mean() if number else None
    document = round(mean / len(_WORD)) if isinstance(mean, float) else 0
    texts_of = partial(iter, [SourceDocument(name="", text=_WORD * document)])
    costs: list[tuple[float, Usage]] = []
    for kind, share in (options.kinds if options.is_verified else PROLONG_KINDS).items():
        for length, part in options.lengths.items() if number else ():
            size, texts = passage, PASSAGES_OF.get(kind)
            if texts is None:  # the chunks of a summary
                size = passage * _CHUNK
                texts = max(1, round(min(length, document) / size))
            passages = [{"text": f"{place}{_WORD * size}"} for place in range(texts)]
            row = {"sample_id": "", "document": "", "kind": kind, "number": 0, "passages": passages}
            one = question_requests([row], texts_of, options, replies)
            cost = planned_cost(settings, one.wanted, None, count, longest=one.later)
            costs.append((share * part * number, cost.usage))
    names = ("requests", "prompt_tokens", "reply_tokens")
    usage = Usage(**{name: round(sum(times * getattr(one, name) for times, one in costs)) for name in names})
    return PlannedCost(kept=0, usage=usage, money=money_of(settings, usage))


def _answer(options: SynthesisConfig, count: CountTokens) -> PlannedCost:
    """Return the cost of a second answer."""
    passage = _WORD * round(options.passage_words * _TOKENS_OF_A_WORD)
    tokens = count(answer_prompt(_WORD * _ANSWER_TOKENS, [passage] * 2))
    usage = Usage(requests=1, prompt_tokens=tokens, reply_tokens=_ANSWER_TOKENS)
    return PlannedCost(kept=0, usage=usage, money=money_of(options.generator, usage))


def _verdicts(state: State, count: CountTokens, number: int, most: int) -> WorkForecast | None:
    """Forecast the comparison of `number`, at most `most` second answers by the judge; None if no judge compares."""
    options, judging = section_of(state.config), evaluation_of(state.config).judge
    if judging is None or not options.compares_by_judge:
        return None
    texts = [_WORD * _ANSWER_TOKENS] * 3
    one = planned_cost(judging, [verdict_call(judging, "", *texts).asked], None, count)
    forecast = partial(WorkForecast, unit="requests", currency=judging.currency)
    return forecast(asset="their comparison", cost=one * number, most=one * most)


def check_generator(state: State, planned: PlannedSynthesis | None) -> None:
    """Raise GateauError for a missing key of generator or judge, and BudgetError if one exceeds its budget.

    Money already spent may have been for candidates without chosen passages, so it is deducted from their cost.
    """
    options, judging = SECTION.of(state.config), evaluation_of(state.config).judge
    if options is None or planned is None:
        return
    assert planned.questions.cost is not None
    cost = planned.questions.cost + planned.expected_answers
    if planned.unchosen:
        cost = _less(options.generator, cost, _replies(state, options).spent)
    try:
        _check_server(options.generator, _replies(state, options), cost)
        if judging is not None and planned.verdicts is not None and planned.verdicts.cost is not None:
            _check_server(judging, Replies(state.store.files, judging.model), planned.verdicts.cost)
    except BudgetError as error:
        if planned.measured is not None or planned.expected_answers == planned.answers.cost:
            raise
        raise error.reworded(
            f"{error} Every new candidate counts with a second answer, because the yield is not known: "
            f"`{gateau_command('validate --synthesis')}` measures it."
        ) from error


def _less(settings: GeneratorConfig, cost: PlannedCost, spent: Usage) -> PlannedCost:
    left = {name: max(0, value - getattr(spent, name)) for name, value in asdict(cost.usage).items()}
    return PlannedCost(kept=cost.kept, usage=Usage(**left), money=money_of(settings, Usage(**left)))


def _check_server(settings: AskedConfig, replies: Replies, planned: PlannedCost) -> None:
    if planned.usage.requests:
        server_key(settings.place, settings.key, settings.base_url)
    check_affordable(settings, replies.spent, planned)


def check_plan(state: State, plan: Plan | None = None) -> None:
    """Check the servers for a plan; None: for all tables that are out of date. For errors see `check_generator`."""
    if SECTION.of(state.config) is not None:
        check_generator(state, planned_synthesis(state, checked_plan(state) if plan is None else plan))


def plan_parts(state: State, plan: Plan, assumed: AssumedDevices) -> Iterator[PlanPart]:
    """Yield the requests for synthetic samples, and their expected yield."""
    del assumed
    yield PlanPart(place=80, show=lambda out: show_plan(out, state, plan), record=lambda: plan_record(state, plan))


def show_plan(out: Console, state: State, plan: Plan) -> None:
    """Print the requests for synthetic samples and the expected yield; a warning if the generator cannot be used."""
    planned = planned_synthesis(state, plan)
    if planned is None:
        return
    rows = [planned.questions, planned.answers, *([planned.verdicts] if planned.verdicts is not None else [])]
    asked = [each for each in rows if each.most is not None and (each.most.usage.requests or each.most.kept)]
    show_forecasts(out, "to generate", ASKED_COLUMNS, asked, together=False)
    explain_in_grey(out, _yield_sentences(planned))
    if state.config.made_inputs:
        out.print(f"[dim]Afterwards long_sft reads the samples: `{gateau_command('plan')}` shows the rest then.[/dim]")
    try:
        check_generator(state, planned)
    except GateauError as error:
        out.print(f"[yellow]![/yellow] {escape(indented_lines(str(error)))}", soft_wrap=False)


def _yield_sentences(planned: PlannedSynthesis) -> Iterator[str]:
    found = planned.measured
    if planned.questions.cost is not None and planned.questions.cost.usage.requests:
        yield "The figures are approximate: every reply is assumed to be readable, and no two questions to be equal."
    if planned.unchosen:
        yield (
            f"The passages of {plural(planned.unchosen, 'candidate')} are still to be chosen, so the requests for "
            "their questions are an estimate."
        )
    if planned.kept:
        yield (
            f"{plural(planned.kept, 'candidate')} {'keeps its' if planned.kept == 1 else 'keep their'} figures: "
            f"{planned.passed:,} of them {'is' if planned.passed == 1 else 'are'} accepted, {planned.undecided:,} "
            f"{'comes' if planned.undecided == 1 else 'come'} to a check for the first time. Nobody is asked about the "
            "others."
        )
    if planned.candidates and found is None:
        yield (
            f"{planned.candidates:,} candidates. The yield is not known: `{gateau_command('validate --synthesis')}` "
            "measures it on 20 documents."
        )
    elif planned.candidates and found is not None:
        yield (
            f"{planned.candidates:,} candidates, of which about {planned.expected:,} are accepted: so were "
            f"{found.accepted:,} of {found.candidates:,} before."
        )


def plan_record(state: State, plan: Plan) -> dict[str, Any]:
    """Return the plan's generation for programs as `synthesis`; nothing if the generator is not asked."""
    planned = planned_synthesis(state, plan)
    if planned is None:
        return {}
    refused = ""
    try:
        check_generator(state, planned)
    except GateauError as error:
        refused = str(error)
    record = {
        "candidates": planned.candidates,
        "expected": planned.expected,
        "kept": planned.kept,
        "passed": planned.passed,
        "undecided": planned.undecided,
        "questions": {**planned.questions.record, "exact": not planned.unchosen},
        "answers": {**planned.answers.record, "expected": planned.expected_answers.record},
        **({"verdicts": planned.verdicts.record} if planned.verdicts is not None else {}),
        "refused": refused,
    }
    return {"synthesis": record}
