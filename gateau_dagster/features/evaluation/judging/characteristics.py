"""Rate five characteristics of training samples by a judge, for the best and the worst samples or for all.

The criteria and the scale are those of the paper (figures 11 to 15). The wording is ours, because the paper gives its
own no licence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.features.evaluation.benchmark import JudgeRequest
from gateau_dagster.features.evaluation.judged import quoted, rating
from gateau_dagster.features.evaluation.judging.judge_answers import Judged, JudgmentRequest
from gateau_dagster.features.evaluation.judging.replies import ServerCall
from gateau_dagster.features.evaluation.method import JudgeRatings
from gateau_dagster.features.evaluation.servers import CHARACTERISTIC_NAMES, JudgeConfig
from gateau_dagster.features.evaluation.statistics.compare import TAIL, VarianceSource, half_width
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.tables import Column, schema

CODE_VERSION = "3"
LOWEST, HIGHEST = 1, 5
BEST, WORST = "best", "worst"
parse = partial(rating, low=LOWEST, high=HIGHEST)
_MEANS = (BEST, WORST, f"{BEST}_margin", f"{WORST}_margin")
_TOKENS = 512
_OPENING = "You are an impartial judge of data for training language models. Judge {what} of the sample below."
_CLOSING = "Give one whole number from 1 (worst) to 5 (best), and write it in this form: [[3]]. Rating:"
_CONTEXT, _INSTRUCTION, _RESPONSE = "context", "instruction", "response"
# Per characteristic: what is judged, the questions, and the parts of a sample that the judge sees.
_CHARACTERISTICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "coherence": (
        "the long context",
        "Does it read fluently and hang together? Does it keep to its subject, without unrelated parts?",
        (_CONTEXT,),
    ),
    "necessity": (
        "how much the long context is needed",
        "How hard would the instruction be to follow without the context? How much of the response rests on it? A "
        "context that says nothing or has nothing to do with the instruction counts against the sample.",
        (_INSTRUCTION, _CONTEXT, _RESPONSE),
    ),
    "faithfulness": (
        "how faithful the response is",
        "Which mistakes does it make, and how much do they matter? Does it do what the instruction asks? Is what it "
        "says right by the context?",
        (_INSTRUCTION, _CONTEXT, _RESPONSE),
    ),
    "helpfulness": (
        "how helpful the response is",
        "Which mistakes does it make, and how much do they matter? Does it answer directly, with what the user needs?",
        (_INSTRUCTION, _RESPONSE),
    ),
    "complexity": (
        "how demanding the instruction is",
        "Does it say all that is needed to follow it? Does it go into detail? Does it join several steps or ideas that "
        "want care? An instruction that is too easy counts against the sample.",
        (_INSTRUCTION,),
    ),
}
CHARACTERISTICS = (
    Column(name="sample_id", dtype=pl.String(), description="Id of the sample."),
    Column(name="part", dtype=pl.String(), description="best or worst, by the score of the method of selection."),
    Column(name="characteristic", dtype=pl.String(), description=f"{', '.join(_CHARACTERISTICS)}."),
    Column(
        name="rating",
        dtype=pl.Float64(),
        description="Mean over the repeats, from 1 to 5; null if no reply holds one.",
        nullable=True,
    ),
)
assert tuple(_CHARACTERISTICS) == CHARACTERISTIC_NAMES
RATINGS = tuple(replace(column, nullable=False) for column in CHARACTERISTICS if column.name != "part")


def ends_of_ranking(scores: pl.DataFrame, count: int) -> dict[str, str]:
    """Return `part` by sample id: the `count` best and worst of `sample_id`, `score`; at most half of the samples each.

    Samples without a score are left out.
    """
    known = scores.filter(pl.col("score").is_not_null())
    ranked = known.sort("score", "sample_id", descending=[True, False])["sample_id"].to_list()
    count = min(count, len(ranked) // 2)
    return {**dict.fromkeys(ranked[:count], BEST), **dict.fromkeys(ranked[len(ranked) - count :], WORST)}


def rated_characteristics(config: Config) -> list[str]:
    """Return the characteristics that method `judge` reads of every sample; empty if the method is not chosen."""
    method = chosen_methods(config).get(JudgeRatings.name)
    return [*method.options.characteristics] if isinstance(method, JudgeRatings) else []


def wanted_ratings(
    samples: Sequence[Sample], settings: JudgeConfig, named: Collection[str] = CHARACTERISTIC_NAMES
) -> list[JudgmentRequest]:
    """Return one request per sample, characteristic and repeat; `turn` is the characteristic's index among all five."""
    found = []
    for sample in samples:
        for number, name in enumerate(_CHARACTERISTICS):
            messages = [{"role": "user", "content": prompt(sample, name)}]
            request = JudgeRequest(question_id=sample.sample_id, turn=number, messages=messages, max_tokens=_TOKENS)
            for repeat in range(settings.repeats if name in named else 0):
                asked = ServerCall.of(settings, request, repeat)
                found.append(JudgmentRequest(question_id=sample.sample_id, turn=number, part=name, asked=asked))
    return found


def prompt(sample: Sample, characteristic: str) -> str:
    """Return the judge's prompt about one sample."""
    what, questions, parts = _CHARACTERISTICS[characteristic]
    shown = (f"[{part} begins]\n{getattr(sample, part)}\n[{part} ends]" for part in parts)
    return "\n\n".join([_OPENING.format(what=what), questions, *shown, _CLOSING])


def characteristics_table(parts: dict[str, str], judgments: pl.DataFrame) -> pl.DataFrame:
    """Return CHARACTERISTICS by sample and characteristic, from tables.JUDGMENTS of `wanted_ratings`."""
    part = pl.col("sample_id").replace_strict(parts, return_dtype=pl.String)
    table = _means_by_sample([*parts], judgments, CHARACTERISTIC_NAMES)
    return table.with_columns(part=part).select(schema(CHARACTERISTICS).names())


def ratings_table(
    samples: Sequence[str], judged: Judged, named: Collection[str]
) -> tuple[pl.DataFrame, Sequence[Reject]]:
    """Return RATINGS of the samples with a rating for each characteristic in `named`, and the others with reasons.

    judged: of `wanted_ratings`.
    """
    table = _means_by_sample(samples, judged.table, named)
    reasons = {each.sample_id: [each.reason] for each in judged.rejected}
    for sample, reason in _without_rating(judged.table):
        reasons.setdefault(sample, []).append(reason)
    rejected = [Reject(sample_id=name, reason="; ".join(each)) for name, each in sorted(reasons.items())]
    return table.filter(~pl.col("sample_id").is_in([*reasons])), rejected


def _without_rating(judgments: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield `question_id` and a reason, which quotes the last reply, for each turn without a rating in any repeat."""
    replies = judgments.sort("repeat").group_by("question_id", "turn", maintain_order=True)
    found = replies.agg(pl.col("score").count(), pl.col("reply").last()).filter(pl.col("score") == 0)
    for sample, turn, _, reply in found.sort("question_id", "turn").iter_rows():
        yield sample, f"{CHARACTERISTIC_NAMES[turn]}: no rating in the reply that ends with {quoted(reply)}"


def _means_by_sample(samples: Sequence[str], judgments: pl.DataFrame, named: Collection[str]) -> pl.DataFrame:
    means = {
        (sample, turn): mean
        for sample, turn, mean in judgments.group_by("question_id", "turn").agg(pl.col("score").mean()).iter_rows()
    }
    rows = [
        (sample, name, means.get((sample, number)))
        for sample in sorted(samples)
        for number, name in enumerate(_CHARACTERISTICS)
        if name in named
    ]
    return pl.DataFrame(rows, schema=schema(RATINGS), orient="row")


def mean_ratings(table: pl.DataFrame) -> pl.DataFrame:
    """Return `characteristic`, `best`, `worst`: mean ratings, in the order of the paper's figure.

    `best_margin`, `worst_margin`: half-widths of their 95 % intervals (Student's t); null below two ratings.
    """
    rows = [{"characteristic": name, **_means(table.filter(characteristic=name))} for name in _CHARACTERISTICS]
    return pl.DataFrame(rows, schema={"characteristic": pl.String(), **dict.fromkeys(_MEANS, pl.Float64())})


def _means(rated: pl.DataFrame) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(_MEANS)
    for part in (BEST, WORST):
        ratings = rated.filter(part=part)["rating"].drop_nulls().to_numpy()
        if ratings.size:
            found[part] = float(ratings.mean())
        if ratings.size > 1:
            variance = ratings.var(ddof=1, keepdims=True) / ratings.size
            spread = VarianceSource(variance=variance, freedom=np.array([ratings.size - 1.0]))
            found[f"{part}_margin"] = float(half_width([spread], TAIL)[0])
    return found
