"""What each model lost of a benchmark, in sentences."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.evaluation.quiz import with_quiz
from tests.evaluation.scored_builders import answers


def _rejected(*names: str, reason: str) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": [*names], "reason": reason}, schema=tables.schema(tables.REJECTED))


@pytest.mark.parametrize(
    ("thoughts", "sentence", "notable"),
    [
        ("drop", "which are left out of grading; in 1 they never end, which counts as an empty answer", True),
        ("keep", "which are graded as a part of them: evaluation.thoughts is keep", True),
    ],
)
def test_answers_that_begin_with_thoughts_are_counted(
    tmp_path: Path, thoughts: Any, sentence: str, notable: bool
) -> None:
    content = {
        "storage": {"root": str(tmp_path / "store")},
        "long_sft": {"path": "long.jsonl"},
        "models": {"short": {"path": "a"}, "long": {"path": "b"}},
    }
    evaluation = EvaluationConfig(benchmarks=("quiz",), thoughts=thoughts)
    state = State(config=Config.model_validate(content).model_copy(update={"evaluation": evaluation}))
    said = {"q0": "<think>a</think>\n\nOslo", "q1": "a\n</think>\nOslo", "q2": "<think>a", "q3": "Write `</think>`."}
    state.store.write(answers(said), "answers/quiz", "base", Stamp(fingerprint="f"))
    with with_quiz():
        found = [*losses(state, {"answers/quiz"})]
    assert [(each.asset, each.sentence, each.notable) for each in found] == [
        ("answers/quiz[base]", f"3 of 4 answers begin with thoughts, {sentence}", notable)
    ]


@pytest.mark.parametrize("input_length", [None, 90])
def test_what_each_model_lost_of_a_benchmark_is_said(tmp_path: Path, input_length: int | None) -> None:
    """Of one of two: what had no answer is said with the answers, and so are prompts that lost their middle."""
    content = {
        "storage": {"root": str(tmp_path / "store")},
        "long_sft": {"path": "long.jsonl"},
        "models": {"short": {"path": "a"}, "long": {"path": "b"}},
    }
    evaluation = EvaluationConfig(benchmarks=("quiz",), input_length=input_length)
    state = State(config=Config.model_validate(content).model_copy(update={"evaluation": evaluation}))
    stamp, key = Stamp(fingerprint="f"), "quiz"
    whole = answers({f"q{n}": "yes" for n in range(8)})
    state.store.write(whole, f"answers/{key}", "base", stamp)
    part = whole.head(6).with_columns(
        answer=pl.Series(["yes"] * 5 + [" \n"]),
        prompt_tokens=pl.Series([100, 40, 40, 40, 40, 40], dtype=pl.Int32),
        cut_tokens=pl.Series([300, 0, 0, 0, 0, 0], dtype=pl.Int32),
    )
    state.store.write(part, f"answers/{key}", "checkpoint", stamp, _rejected("q6", "q7", reason="refused: 5 tokens"))
    scores = pl.DataFrame([(f"q{n}", "all", 1.0) for n in range(5)], schema=tables.schema(tables.SCORES), orient="row")
    without = pl.concat([_rejected("q5", reason="no rating"), _rejected("q6", "q7", reason="it was not answered")])
    state.store.write(scores, f"scores/{key}", "checkpoint", stamp, without)
    with with_quiz():
        found = [*losses(state, {f"answers/{key}", f"scores/{key}"})]
    limit = "scoring.max_length is 65,536" if input_length is None else "evaluation.input_length is 90"
    assert [(each.asset, each.sentence, each.notable, each.intended) for each in found] == [
        ("answers/quiz[checkpoint]", "2 of 8 questions rejected (25 %): 2 x refused: … tokens", True, False),
        (
            "answers/quiz[checkpoint]",
            f"1 of 6 prompts cut, 300 of 600 tokens (50 %) lost: {limit}",
            input_length is None,
            input_length is not None,
        ),
        ("answers/quiz[checkpoint]", "1 of 6 answers empty (16.7 %): graded as they are", True, False),
        ("scores/quiz[checkpoint]", "1 of 8 questions rejected (12.5 %): 1 x no rating", True, False),
    ]
