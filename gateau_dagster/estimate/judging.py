"""What judging will ask and cost, before it begins; answers that are not there yet are taken to be of full length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.judging.cost import CountTokens, PlannedCost, check_affordable, planned_cost
from gateau_dagster.evaluation.judging.judge_answers import Wanted, wanted_judgments
from gateau_dagster.evaluation.judging.needed import needed_judge
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from gateau_dagster.evaluation.scored import Judging
from gateau_dagster.models.known_model import known_tokenizer
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


@dataclass(frozen=True, kw_only=True)
class PlannedJudging:
    """Of one benchmark, over the variants whose judgments are out of date."""

    benchmark: str
    variants: Sequence[str]
    cost: PlannedCost


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
        work, answers = plan.of(f"{JUDGMENTS}/{name}"), plan.of(f"{ANSWERS}/{name}")
        if work is None or chosen.scored.judging is None:
            continue
        unanswered = {*answers.partitions} if answers is not None else set()
        benchmark = JudgedBenchmark.of(state, name, _without_models(state, name))
        wanted = [
            each.asked
            for variant in work.partitions
            for each in benchmark.wanted(state, variant, answered=variant not in unanswered)
        ]
        cost = planned_cost(settings, wanted, replies, count)
        found.append(PlannedJudging(benchmark=name, variants=work.partitions, cost=cost))
    return found


def check_budget(state: State, planned: Sequence[PlannedJudging]) -> None:
    """Raises BudgetError where all of this, and what was spent before, is more than `evaluation.judge.budget`."""
    settings = state.config.evaluation.judge
    if settings is not None and planned:
        spent = Replies(state.store.files, settings.model).spent
        check_affordable(settings, spent, reduce(add, (each.cost for each in planned)))


def token_counter(config: Config) -> CountTokens:
    """Counts a text's tokens by the tokenizer of the model that is trained; by its bytes where that is not here."""
    tokenizer = known_tokenizer(config, config.training.model)
    if tokenizer is None:
        return lambda text: -(-len(text.encode()) // _BYTES)
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _without_models(state: State, name: str) -> Materials:
    """What a benchmark's questions may read while nothing runs."""

    def shards(asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        yield state.read(asset, [*columns])

    def nothing(_: Any) -> Any:
        raise GateauError(f"evaluation.{name}: its questions are known once it runs, and what they cost with them.")

    reads = state.asset(f"{ANSWERS}/{name}").reads
    return Materials(config=state.config, reads=reads, shards=shards, samples=nothing, model=nothing)
