"""Estimate what the synthetic samples of a plan take: requests, tokens, money, and the expected yield."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from gateau_dagster.config.judge import AskedConfig
from gateau_dagster.config.synthesis import SynthesisConfig
from gateau_dagster.estimate.judging import token_counter
from gateau_dagster.evaluation.judging.cost import (
    CountTokens,
    PlannedCost,
    check_affordable,
    money_of,
    planned_cost,
)
from gateau_dagster.evaluation.judging.replies import Replies, ServerCall, Usage
from gateau_dagster.evaluation.server_client import server_key
from gateau_dagster.pipeline.loadable import known_version
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.synthesis_assets import LONG, document_number, figure_digests
from gateau_dagster.storage.json_cache import recall, remember
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.synthesis.checks import (
    AGREEMENT,
    ASKED,
    Outstanding,
    candidate_rows,
    is_second_answer,
    most_answers,
    outstanding,
    verdict_call,
)
from gateau_dagster.synthesis.contexts import CONTEXTS
from gateau_dagster.synthesis.passages import PASSAGES_OF, PROLONG_KINDS, quota
from gateau_dagster.synthesis.questions import answer_prompt, call, question_prompt
from gateau_dagster.tables import schema

_WORD = " the"
_TOKENS_OF_A_WORD = 1.3
_SUMMARIES = 4  # requests of a recursive summary, about
_ANSWER_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class SynthesisYield:
    """The number of checked candidates, of those about which the generator was asked again, and of accepted ones."""

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

    candidates: those without figures in the store. kept: those with some, whose shards are checked again. passed,
    undecided: of these, how many are accepted by their figures, and how many come to a check that has none yet.
    questions: the expected cost. answers: of second answers, at most. least: of second answers, at least.
    verdicts: of comparing them by the judge, at most; None where no judge compares.
    measured: the yield of the candidates in the store, without any of them None.
    """

    candidates: int
    kept: int
    passed: int
    undecided: int
    questions: PlannedCost
    answers: PlannedCost
    least: PlannedCost
    verdicts: PlannedCost | None
    measured: SynthesisYield | None

    @property
    def cost(self) -> PlannedCost:
        """Return the whole cost of the generator, at most."""
        return self.questions + self.answers

    @property
    def expected(self) -> int | None:
        """Return the expected number of accepted candidates among those without figures; None before a measurement."""
        found = self.measured
        return None if found is None else round(self.candidates * found.accepted / found.candidates)


def measured_yield(state: State) -> SynthesisYield | None:
    """Return the yield of the candidates in the store, else that of `gateau validate --synthesis`; None without any."""
    found = [part for (_, part), stamp in _stamps(state, CHECKS_TABLE).items() if stamp is not None]
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
    """Return what changes with the settings that decide the yield."""
    options = state.config.synthesis
    assert options is not None
    return fingerprint(options.model_dump(mode="json", exclude={"count", "shards", "verify"}))


def _stamps(state: State, asset: str) -> Mapping[Any, Any]:
    return state.store.stamps((asset, part) for part in state.pipeline.partitions(asset))


def planned_synthesis(state: State, plan: Plan) -> PlannedSynthesis | None:
    """Return what the generator is asked for in a plan; None if nothing. No document is read.

    Contexts are read of shards of which the checks alone are outdated: their digests tell which figures stay.

    Raises:
        GateauError: a table cannot be read.
    """
    options, asking = state.config.synthesis, [plan.of(asset) for asset in (QUESTIONS_TABLE, CHECKS_TABLE)]
    if options is None or not any(asking):
        return None
    parts = sorted({part for work in asking if work is not None for part in work.partitions})
    outdated = {asset: _outdated(plan, asset) for asset in (PASSAGES_TABLE, QUESTIONS_TABLE, CONTEXTS_TABLE)}
    replies, count = _replies(state, options), token_counter(state.config)
    questions, to_come, checked, kept = list[ServerCall](), 0, Outstanding(), 0
    for part in parts:
        number = document_number(part)
        if part in outdated[PASSAGES_TABLE]:
            to_come += quota(options, number) if state.documents.shard(number).height else 0
        elif part in outdated[QUESTIONS_TABLE]:
            questions += question_calls(state.store.read(PASSAGES_TABLE, part).to_dicts(), options)
        else:
            rows = _candidate_rows(state, part, are_built=part not in outdated[CONTEXTS_TABLE])
            checked += outstanding(rows, options.checks, options.generator) if options.is_verified else Outstanding()
            kept += sum(row["known"] for row in rows)
    measured = measured_yield(state)
    reached = 1.0 if measured is None else measured.reached / measured.candidates
    unwritten = to_come + len(questions)
    to_answer = round(unwritten * reached) if options.is_verified else 0
    second = _answer(options, count) * (to_answer * most_answers(options.checks))
    every = [*checked.certain, *checked.possible]
    least, most = (planned_cost(options.generator, each, replies, count) + second for each in (checked.certain, every))
    return PlannedSynthesis(
        candidates=unwritten + checked.new,
        kept=kept,
        passed=checked.passed,
        undecided=checked.undecided,
        questions=planned_cost(options.generator, questions, replies, count)
        + _questions_to_come(options, count, to_come),
        answers=most,
        least=least,
        verdicts=_verdicts(
            state, count, to_answer + sum(is_second_answer(each) for each in every if each not in replies)
        ),
        measured=measured,
    )


def _outdated(plan: Plan, asset: str) -> set[str]:
    work = plan.of(asset)
    return set() if work is None else {*work.partitions}


def _replies(state: State, options: SynthesisConfig) -> Replies:
    return Replies(state.store.files, options.generator.model, options.generator.replies_folder)


def _candidate_rows(state: State, part: str, *, are_built: bool) -> list[dict[str, Any]]:
    """Return checks.candidate_rows of a shard; without their figures if their contexts are still to be built."""
    asked, built, before = state.store.read(QUESTIONS_TABLE, part), pl.DataFrame(schema=schema(CONTEXTS)), None
    if are_built and state.store.stamp(CHECKS_TABLE, part) is not None:
        built, before = (state.store.read(asset, part) for asset in (CONTEXTS_TABLE, CHECKS_TABLE))
    # No figure is of a model that is still to be made.
    scorer = figure_digests(state.config, state.observed, known_version(state, LONG) or "")
    return candidate_rows(asked, built, scorer, before)


def question_calls(rows: Sequence[Mapping[str, Any]], options: SynthesisConfig) -> list[ServerCall]:
    """Return the requests for questions. One of kind self or of a summary, which depends on others, counts by its
    passages.
    """
    found = []
    for row in rows:
        texts = [each["text"] for each in row["passages"]] or [_WORD * options.generator.window]
        kind = "summary" if row["kind"] in {"self", "prolong_summary"} else row["kind"]
        found.append(call(options.generator, row["sample_id"], question_prompt(kind, texts)).asked)
    return found


def _questions_to_come(options: SynthesisConfig, count: CountTokens, number: int) -> PlannedCost:
    """Return the cost of questions whose passages are still to be chosen, by their kinds and average lengths."""
    settings, passage = options.generator, _WORD * round(options.passage_words * _TOKENS_OF_A_WORD)
    requests, prompt, reply = 0.0, 0.0, 0.0
    for kind, share in (options.kinds if options.is_verified else PROLONG_KINDS).items():
        times, text = 1, ""
        if kind == "self":
            times, text = 2, _WORD * settings.window
        elif kind == "prolong_summary":
            times, text = _SUMMARIES, passage * 10
        text = text or question_prompt(kind, [passage] * PASSAGES_OF[kind])
        one = planned_cost(settings, [call(settings, kind, text).asked], None, count).usage * times
        requests, prompt, reply = (
            before + share * number * more
            for before, more in zip(
                (requests, prompt, reply), (one.requests, one.prompt_tokens, one.reply_tokens), strict=True
            )
        )
    usage = Usage(requests=round(requests), prompt_tokens=round(prompt), reply_tokens=round(reply))
    return PlannedCost(kept=0, usage=usage, money=money_of(settings, usage))


def _answer(options: SynthesisConfig, count: CountTokens) -> PlannedCost:
    """Return the cost of a second answer."""
    passage = _WORD * round(options.passage_words * _TOKENS_OF_A_WORD)
    tokens = count(answer_prompt(_WORD * _ANSWER_TOKENS, [passage] * 2))
    usage = Usage(requests=1, prompt_tokens=tokens, reply_tokens=_ANSWER_TOKENS)
    return PlannedCost(kept=0, usage=usage, money=money_of(options.generator, usage))


def _verdicts(state: State, count: CountTokens, number: int) -> PlannedCost | None:
    """Return the cost of comparing so many second answers by the judge; None where it compares none."""
    options, judging = state.config.synthesis, state.config.evaluation.judge
    if options is None or judging is None or not options.is_verified or options.checks.agreement != "judge":
        return None
    texts = [_WORD * _ANSWER_TOKENS] * 3
    return planned_cost(judging, [verdict_call(judging, "", *texts).asked], None, count) * number


def check_generator(state: State, planned: PlannedSynthesis | None) -> None:
    """Raise GateauError for a missing key of generator or judge, BudgetError if the budget of one is exceeded."""
    options, judging = state.config.synthesis, state.config.evaluation.judge
    if options is None or planned is None:
        return
    _check_server(options.generator, _replies(state, options), planned.cost)
    if judging is not None and planned.verdicts is not None:
        _check_server(judging, Replies(state.store.files, judging.model), planned.verdicts)


def _check_server(settings: AskedConfig, replies: Replies, planned: PlannedCost) -> None:
    if planned.usage.requests:
        server_key(settings.place, settings.key, settings.base_url)
    check_affordable(settings, replies.spent, planned)


def check_questions_affordable(state: State, parts: Sequence[str]) -> None:
    """Raise BudgetError if the questions about the passages of these shards exceed the generator's budget."""
    options = state.config.synthesis
    assert options is not None
    replies, count = _replies(state, options), token_counter(state.config)
    wanted = [
        each for part in parts for each in question_calls(state.store.read(PASSAGES_TABLE, part).to_dicts(), options)
    ]
    check_affordable(options.generator, replies.spent, planned_cost(options.generator, wanted, replies, count))
