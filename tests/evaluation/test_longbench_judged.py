"""LongBench by a judge: what it is told, and what its ratings are worth, as in GATEAU's code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.longbench import LENGTHS, PROMPTS
from gateau_dagster.evaluation.longbench_judged import SYSTEM, LongBenchJudged, LongBenchJudgedOptions
from gateau_dagster.evaluation.registry import scored_benchmarks
from tests.error_codes import refused

from . import official
from .builders import configured
from .mt_bench_files import JUDGE
from .scored_builders import digests, materials, write_jsonl

ROW = {"context": "c", "input": "who?", "answers": ["A {b}", "C's"], "length": 5, "all_classes": None, "_id": "7"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A question and a summary, and prompts of our own."""
    write_jsonl(tmp_path / "data" / "hotpotqa.jsonl", [ROW])
    write_jsonl(tmp_path / "data" / "qmsum.jsonl", [ROW])
    (tmp_path / PROMPTS).write_text(json.dumps(dict.fromkeys(("hotpotqa", "qmsum"), "{context} {input}")))
    (tmp_path / LENGTHS).write_text(json.dumps({"hotpotqa": 5, "qmsum": 9}))
    (tmp_path / "qa.txt").write_text("Asked {}\nRight {}\nSaid {}\nRating: ")
    (tmp_path / "sum.txt").write_text("Right {}\nSaid {}\nRating:")
    return tmp_path


def _chosen(folder: Path, judge: Mapping[str, Any] | None = JUDGE, **options: Any) -> tuple[Any, Any]:
    given = {"data": "data", "prompts": ".", "sets": ["hotpotqa", "qmsum"]}
    given |= {"question_prompt": "qa.txt", "summary_prompt": "sum.txt", **options}
    evaluation = {"benchmarks": ["longbench_judged"], "longbench_judged": given}
    config = configured(evaluation=evaluation if judge is None else {**evaluation, "judge": judge})
    config = config.model_copy(update={"folder": folder})
    (found,) = scored_benchmarks(config).values()
    return found, config


def _questions(folder: Path, **options: Any) -> list[Question]:
    found, config = _chosen(folder, **options)
    return found.questions(materials(config))


def test_it_asks_as_longbench_does(folder: Path) -> None:
    """So that whatever longbench has had answered is not asked again."""
    judged, config = _chosen(folder)
    sets = {"data": "data", "prompts": ".", "sets": ["hotpotqa", "qmsum"]}
    both = {"longbench": sets, **config.evaluation.sections, "judge": JUDGE}
    config = configured(evaluation={"benchmarks": ["longbench", "longbench_judged"], **both})
    config = config.model_copy(update={"folder": folder})
    assert judged.asks_as == "longbench"
    assert digests(config, "longbench") == digests(config, "longbench_judged") != {}


def _told(question: Question, answer: str) -> str:
    (request,) = LongBenchJudged(configured(), LongBenchJudgedOptions()).requests(question, [answer])
    system, user = (each["content"] for each in request.messages)
    assert (system, request.temperature, request.turn) == (SYSTEM, 0.0, 0)
    return user


def test_the_judge_is_told_the_right_answers_and_the_model_s_on_one_line(folder: Path) -> None:
    question, summary = _questions(folder)
    assert _told(question, " one\ntwo \n") == "Asked who?\nRight ['A {b}', \"C's\"]\nSaid one two\nRating: "
    assert _told(summary, "{}") == "Right ['A {b}', \"C's\"]\nSaid {}\nRating:"


def test_prompts_are_gateau_s_byte_for_byte(folder: Path) -> None:
    texts = [official.code(f"GATEAU/train/LongBench/prompt_for_{kind}.txt") for kind in ("qa", "sum")]
    asked = _questions(folder, question_prompt=str(texts[0]), summary_prompt=str(texts[1]))
    case = {"query": ROW["input"], "answers": ROW["answers"], "pred": "An answer."}
    templates = [text.open(encoding="utf-8").read() for text in texts]
    assert _told(asked[0], "An answer.") == templates[0].format(case["query"], case["answers"], case["pred"])
    assert _told(asked[1], "An answer.") == templates[1].format(case["answers"], case["pred"])


def test_a_rating_is_worth_its_share_of_the_highest_one(folder: Path) -> None:
    questions, found = _questions(folder), _chosen(folder)[0]
    ids = [each.question_id for each in questions]
    rated = [(ids[0], 0, 3.0), (ids[0], 1, 2.0), (ids[1], 0, 1.0)]
    columns = {"question_id": pl.String(), "repeat": pl.Int32(), "score": pl.Float64()}
    judgments = pl.DataFrame(rated, schema=columns, orient="row").with_columns(turn=pl.lit(0, dtype=pl.Int32()))
    graded = found.grade(questions, pl.DataFrame(), judgments)
    assert graded.table.schema == tables.schema(tables.SCORES)
    assert graded.table["value"].to_list() == pytest.approx([250 / 3, 20.0])
    above = judgments.with_columns(score=pl.lit(4.0))
    graded = found.grade(questions, pl.DataFrame(), above)
    assert graded.table["value"].to_list() == [80.0]
    assert [each.sample_id for each in graded.rejected] == ids[:1]


def test_what_is_all_wrong_has_the_floor() -> None:
    assert LongBenchJudged.floor == pytest.approx((8 * 100 / 3 + 4 * 20) / 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sets": ["trec"]}, r"longbench_judged\.sets: trec are not judged"),
        ({"data": None}, r"evaluation\.longbench_judged\.data: is required: download"),
        ({"question_prompt": None}, r"longbench_judged\.question_prompt: is required: get prompt_for_qa\.txt"),
        ({"summary_prompt": "none.txt"}, r"longbench_judged\.summary_prompt: .*get prompt_for_sum\.txt from https"),
        ({"judge": None}, r"evaluation\.judge: longbench_judged needs a judge"),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(GateauError, match=words):
        _chosen(folder, **options)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{} {} {}", r"its gaps are: \{\} \{\} \{\}; expected \{\} 2 times"),
        ("{} {other}", r"its gaps are: \{\} \{other\}"),
        ("Rating: ", "its gaps are: none"),
        ("{} }", "Single '}'"),
        ("{} {:>3000000000}", r"\{:>3000000000\} is more than a name"),
        ("{} {.__class__}", r"\{\.__class__\} is more than a name"),
    ],
)
def test_a_prompt_with_other_gaps_is_named(text: str, fault: str, folder: Path) -> None:
    (folder / "sum.txt").write_text(text)
    with refused(
        "evaluation.benchmark_data",
        rf"summary_prompt: sum\.txt is not the published file \({fault}.*; get",
    ):
        _questions(folder)


def test_a_question_s_prompt_whose_gap_is_more_than_a_name_is_named(folder: Path) -> None:
    (folder / PROMPTS).write_text(json.dumps({"hotpotqa": "{context:>3000000000}", "qmsum": "{input}"}))
    fault = r"longbench_judged\.prompts: dataset2prompt\.json: hotpotqa.* \(\{context:>3000000000\} is more than a name"
    with refused("evaluation.benchmark_data", fault):
        _questions(folder)
