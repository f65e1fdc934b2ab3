"""Return the requests to a judge about tables in the store, and their cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.costs import PlannedCost
from gateau_dagster.data.sample import Sample
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.features.evaluation import ANSWERS
from gateau_dagster.features.evaluation.benchmark import Materials, Question
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.grading import graded_answers
from gateau_dagster.features.evaluation.judged import RatedBenchmark, needed_judge
from gateau_dagster.features.evaluation.judging.asking import (
    CountTokens,
    planned_cost,
)
from gateau_dagster.features.evaluation.judging.characteristics import (
    ends_of_ranking,
    rated_characteristics,
    wanted_ratings,
)
from gateau_dagster.features.evaluation.judging.judge_answers import (
    JudgmentRequest,
    Match,
    Texts,
    answers_by_question,
    matches,
    wanted_judgments,
)
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.servers import CHARACTERISTIC_NAMES, JudgeConfig
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.models.prompt import encode
from gateau_dagster.pipeline.selection_reads import ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import TokenRates, token_rates

if TYPE_CHECKING:
    from gateau_dagster.config import Config


RAW = "raw_long_sft"
_WORD = " the"
"""A common word of one token."""


def rated_samples(state: State, settings: JudgeConfig) -> tuple[dict[str, str], list[JudgmentRequest]]:
    """Return `part` by sample id, and the judge's requests for these samples, from the tables in the store.

    Raises:
        GateauError: the tables cannot be read.
    """
    assert settings.characteristics is not None
    parts = ends_of_ranking(state.read(ranking_asset(state.config), ["sample_id", "score"]), settings.characteristics)
    wanted_ids = pl.DataFrame({"sample_id": [*parts]}, schema={"sample_id": pl.String()})
    found = pl.concat([state.store.read_rows(RAW, shard, wanted_ids) for shard in state.shards], how="diagonal")
    return parts, wanted_ratings([*samples_of(found.sort("sample_id"))], settings)


def rating_cost(state: State, settings: JudgeConfig, replies: Replies | None, count: CountTokens) -> PlannedCost:
    """Return the cost for the samples of the store's ranking, whether it is up to date or not. Without a
    ranking, the same number of samples of average length is assumed.

    replies: None to assume other samples of about the same length.

    Raises:
        GateauError: the tables cannot be read.
    """
    read = [(asset, part) for asset in (RAW, ranking_asset(state.config)) for part in state.pipeline.partitions(asset)]
    if all(stamp is not None for stamp in state.store.stamps(read).values()):
        wanted = [each.asked for each in rated_samples(state, settings)[1]]
        return planned_cost(settings, wanted, replies, count)
    assert settings.characteristics is not None
    return _of_middling(state, settings, count) * (2 * min(settings.characteristics, state.index.accepted.height // 2))


def wanted_of_shard(state: State, settings: JudgeConfig, shard: str) -> list[JudgmentRequest]:
    """Return the judge's requests for every sample of a shard, from the validated samples in the store."""
    samples = [*samples_of(state.read(RAW, None, shard))]
    return wanted_ratings(samples, settings, rated_characteristics(state.config))


def shards_cost(
    state: State, settings: JudgeConfig, replies: Replies, count: CountTokens, shards: Iterable[str]
) -> PlannedCost:
    """Return the cost for every sample of these shards; samples not read yet count with average length."""
    cost, unread = planned_cost(settings, [], replies, count), 0
    for shard in shards:  # only one shard's texts are in memory
        given = state.index.accepted.filter(pl.col("shard") == int(shard)).select("sample_id", "digest")
        there = pl.DataFrame(schema=given.schema)
        if state.store.stamp(RAW, shard) is not None:
            there = given.join(state.store.read(RAW, shard, given.columns), on=given.columns, how="semi")
            samples = [*samples_of(state.store.read_rows(RAW, shard, there.select("sample_id")))]
            wanted = wanted_ratings(samples, settings, rated_characteristics(state.config))
            cost += planned_cost(settings, [each.asked for each in wanted], replies, count)
        unread += given.height - there.height
    return cost + _of_middling(state, settings, count, rated_characteristics(state.config)) * unread if unread else cost


def _of_middling(
    state: State, settings: JudgeConfig, count: CountTokens, named: Collection[str] = CHARACTERISTIC_NAMES
) -> PlannedCost:
    wanted = wanted_ratings([_middling(state)], settings, named)
    return planned_cost(settings, [each.asked for each in wanted], None, count)


def _middling(state: State) -> Sample:
    """Return a dummy sample with the average number of tokens of the input's samples."""
    model = state.config.training.model
    rates = token_rates(state, model) if model in state.config.models else TokenRates()
    whole, tail = state.index.accepted.select(pl.col("characters", "tail_characters").mean()).row(0)
    said = (tail or 0) / rates.tail
    unasked = ((whole or 0) - (tail or 0)) / rates.context
    parts = (unasked, said * (1 - rates.response), said * rates.response)
    context, instruction, response = (_WORD * round(length) for length in parts)
    return Sample(sample_id="", source="", context=context, instruction=instruction, response=response)


_BYTES = 3
"""Approximate bytes per token in any language, used if this machine has no tokenizer."""


@dataclass(frozen=True, kw_only=True)
class PlannedBenchmark:
    """A benchmark whose answers are judged, with its questions.

    settings: None if there is nothing to judge and no judge is configured.
    """

    chosen: RatedBenchmark
    questions: Sequence[Question]
    settings: JudgeConfig | None

    @classmethod
    def of(cls, state: State, name: str, materials: Materials) -> PlannedBenchmark:
        """Return the benchmark of this name. Raise GateauError if its questions cannot be read."""
        chosen = scored_benchmarks(state.config)[name]
        assert isinstance(chosen, RatedBenchmark), "another benchmark has no such asset"
        return cls(chosen=chosen, questions=chosen.questions(materials), settings=evaluation_of(state.config).judge)

    def wanted(self, state: State, variant: str) -> list[JudgmentRequest]:
        """Return the judgments of a variant's answers.

        Raises:
            GateauError: there are judgments but no judge is configured, or the answers cannot be read.
        """
        if self.settings is None:
            if any(self.chosen.requests(each, [""] * len(each.turns)) for each in self.questions):
                needed_judge(state.config, self.chosen.name)
            return []
        return self.judgments(self._texts(state, variant))

    def judgments(self, texts: Texts) -> list[JudgmentRequest]:
        """Return the judgments of these answers."""
        assert self.settings is not None
        return wanted_judgments(self.questions, texts, self.chosen, self.settings)

    def matches(self, state: State) -> list[Match]:
        """Return the pairs of answers that are compared.

        Raises:
            GateauError: the answers cannot be read.
        """
        return self.pairs({name: self._texts(state, name) for name in self.paired})

    @property
    def paired(self) -> list[str]:
        """Return the variants that are compared with others."""
        return [*dict.fromkeys(name for pair in (self.settings.pairs if self.settings else ()) for name in pair)]

    def pairs(self, texts: Mapping[str, Texts]) -> list[Match]:
        """Return the pairs of these answers, by variant."""
        assert self.settings is not None
        return matches(self.settings.pairs, self.questions, texts, self.chosen, self.settings)

    def _texts(self, state: State, variant: str) -> Texts:
        answers = state.store.read(f"{ANSWERS}/{self.chosen.name}", variant)
        return answers_by_question(graded_answers(answers, evaluation_of(state.config).thoughts))


def token_counter(config: Config) -> CountTokens:
    """Return a function that counts tokens with the trained model's tokenizer, or by bytes if it is not available."""
    name = config.training.model
    tokenizer = local_facts(config, name).tokenizer if name in config.models else None
    if tokenizer is None:
        return lambda text: -(-len(text.encode()) // _BYTES)
    return lambda text: len(encode(tokenizer, text))
