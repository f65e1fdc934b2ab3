"""What judging will ask and cost, before it begins; answers that are not there yet are taken to be of full length."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.estimate.characteristics import rating_cost, shards_cost
from gateau_dagster.estimate.questions import known_questions
from gateau_dagster.evaluation.judging.cost import CountTokens, PlannedCost, check_affordable, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import (
    Wanted,
    answers_by_question,
    longest_answers,
    wanted_judgments,
)
from gateau_dagster.evaluation.judging.needed import needed_judge
from gateau_dagster.evaluation.judging.pairwise import Match, matches
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.judging.request import Asked
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from gateau_dagster.evaluation.scored import Judging
from gateau_dagster.methods.judge import SAMPLE_RATINGS
from gateau_dagster.models.known_model import known_tokenizer
from gateau_dagster.pipeline.characteristics_asset import CHARACTERISTICS
from gateau_dagster.pipeline.pairwise_assets import PAIRS
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_assets import ANSWERS, JUDGMENTS

if TYPE_CHECKING:
    from gateau_dagster.config import Config

_BYTES = 3
"""Of a token, about, in any language, where no tokenizer is here."""


@dataclass(frozen=True, kw_only=True)
class JudgedBenchmark:
    """A benchmark whose answers are judged, with its questions.

    settings: None where nothing of it is to be judged and no judge is given.
    """

    chosen: ChosenBenchmark
    questions: Sequence[Question]
    settings: JudgeConfig | None

    @classmethod
    def of(cls, state: State, name: str, materials: Materials) -> JudgedBenchmark:
        """Raises GateauError where its questions cannot be read."""
        chosen = scored_benchmarks(state.config)[name]
        assert chosen.scored.questions is not None
        questions = chosen.scored.questions(materials, chosen.options)
        return cls(chosen=chosen, questions=questions, settings=state.config.evaluation.judge)

    @property
    def judging(self) -> Judging:
        """How."""
        assert self.chosen.scored.judging is not None
        return self.chosen.scored.judging

    def wanted(self, state: State, variant: str, *, answered: bool = True) -> list[Wanted]:
        """The judgments of a variant's answers; before it has `answered`, of answers of full length.

        Raises:
            GateauError: there are some, and no judge is configured; or the answers cannot be read.
        """
        options = self.chosen.options
        if self.settings is None:
            blank = ([""] * len(each.turns) for each in self.questions)
            if any(map(self.judging.requests, self.questions, blank, repeat(options))):
                needed_judge(state.config, self.chosen.name)
            return []
        answers = state.store.read(f"{ANSWERS}/{self.chosen.name}", variant) if answered else None
        return wanted_judgments(self.questions, answers, self.judging, options, self.settings)

    def matches(self, state: State, unanswered: Collection[str] = ()) -> list[Match]:
        """The pairs that are set against each other; of variants that are `unanswered`, by answers of full length.

        Raises:
            GateauError: the answers cannot be read.
        """
        settings, pairing = self.settings, self.chosen.scored.pairing
        assert settings is not None and pairing is not None
        texts = {
            name: longest_answers(self.questions)
            if name in unanswered
            else answers_by_question(state.store.read(f"{ANSWERS}/{self.chosen.name}", name))
            for name in dict.fromkeys(name for pair in settings.pairs for name in pair)
        }
        return matches(settings.pairs, self.questions, texts, pairing, self.chosen.options, settings)


@dataclass(frozen=True, kw_only=True)
class PlannedJudging:
    """Of one benchmark, over the variants whose judgments are out of date; or of `characteristics` or `sample_ratings`.

    cost: None while its questions are not known: they may be made from tables that are not there yet, or by a model.
    """

    of: str
    variants: Sequence[str]
    cost: PlannedCost | None


def planned_judging(state: State, plan: Plan) -> list[PlannedJudging]:
    """What the judgments of a plan will take. No model is loaded, and none of the answers need be there.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    settings = state.config.evaluation.judge
    if settings is None:
        return []
    replies, count = Replies(state.store.files, settings.model), token_counter(state.config)
    found = []
    for name, chosen in scored_benchmarks(state.config).items():
        work, pairs = plan.of(f"{JUDGMENTS}/{name}"), plan.of(f"{PAIRS}/{name}")
        if (work is None and pairs is None) or chosen.scored.judging is None:
            continue
        variants = work.partitions if work is not None else []
        asked = _requests(state, plan, chosen, variants, paired=pairs is not None)
        cost = None if asked is None else planned_cost(settings, asked, replies, count)
        found.append(PlannedJudging(of=name, variants=variants, cost=cost))
    rated = plan.of(SAMPLE_RATINGS)
    if rated is not None:
        cost = shards_cost(state, settings, replies, count, rated.partitions)
        found.append(PlannedJudging(of=SAMPLE_RATINGS, variants=[], cost=cost))
    if plan.of(CHARACTERISTICS) is not None:
        cost = rating_cost(state, settings, replies, count)
        found.append(PlannedJudging(of=CHARACTERISTICS, variants=[], cost=cost))
    return found


def _requests(
    state: State, plan: Plan, chosen: ChosenBenchmark, variants: Sequence[str], *, paired: bool
) -> list[Asked] | None:
    """What the judge is asked of a benchmark's answers; None while its questions are not known."""
    questions, answers = known_questions(state, chosen), plan.of(f"{ANSWERS}/{chosen.name}")
    if questions is None:
        return None
    unanswered = {*answers.partitions} if answers is not None else set()
    benchmark = JudgedBenchmark(chosen=chosen, questions=questions, settings=state.config.evaluation.judge)
    wanted = [
        each.asked
        for variant in variants
        for each in benchmark.wanted(state, variant, answered=variant not in unanswered)
    ]
    if paired:
        wanted += [asked for each in benchmark.matches(state, unanswered) for asked in (each.first, each.second)]
    return wanted


def total_cost(planned: Iterable[PlannedJudging]) -> PlannedCost | None:
    """Of those whose cost is known; None where that is none of them."""
    known = [each.cost for each in planned if each.cost is not None]
    return reduce(add, known) if known else None


def check_budget(state: State, planned: Iterable[PlannedJudging]) -> None:
    """Raises BudgetError where all of this, and what was spent before, is more than `evaluation.judge.budget`."""
    settings, total = state.config.evaluation.judge, total_cost(planned)
    if settings is not None and total is not None:
        check_affordable(settings, Replies(state.store.files, settings.model).spent, total)


def token_counter(config: Config) -> CountTokens:
    """Counts a text's tokens by the tokenizer of the model that is trained; by its bytes where none is here."""
    name = config.training.model
    tokenizer = known_tokenizer(config, name) if name in config.models else None
    if tokenizer is None:
        return lambda text: -(-len(text.encode()) // _BYTES)
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
