"""LongBench's questions as published, and its values: best of the right answers, by set and by range of length."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config.base import SectionError
from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.benchmarks import longbench
from gateau_dagster.features.evaluation.benchmarks.longbench import (
    LENGTHS,
    PROMPTS,
    SETS,
    SUITES,
    SYSTEM,
    LongBenchJudged,
    LongBenchJudgedOptions,
    bucket_of,
    kind_of,
)
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation import official
from tests.features.evaluation.builders import asked, chosen, values, write_jsonl
from tests.features.evaluation.suites import configured, folder_of, longbench_row, write_prompts
from tests.kit.error_codes import refused
from tests.kit.project import configured as plain

files, judged_folder = folder_of("longbench"), folder_of("longbench_judged")
WITH_JIEBA = importlib.util.find_spec("jieba") is not None


def test_a_question_is_the_row_in_the_set_s_prompt(files: Path) -> None:
    found = asked(configured("longbench", files))
    assert [each.question_id for each in found] == [
        "hotpotqa/0-4k/id0",
        "hotpotqa/4-8k/id1",
        "trec/8k+/id2",
        "lcc/0-4k/id3",
    ]
    of = chosen(configured("longbench", files)).groupings["length"]
    assert [of(each.question_id) for each in found] == ["0-4k", "4-8k", "8k+", "0-4k"]
    assert found[0].turns == ("hotpotqa\ncontext 0 {braces}\nNow: question 0",)
    assert [each.chat for each in found] == [True, True, False, False]
    assert [each.generation.max_new_tokens for each in found] == [18, 18, 14, 13]
    assert all(each.generation.temperature == 0 and not each.generation.stop for each in found)
    assert found[0].references == ("Paris", "the City of Light") and found[2].facts["classes"] == ["Food", "Date"]


def test_rows_are_those_that_are_asked_for(files: Path) -> None:
    first = asked(configured("longbench", files, rows=1, sets=["hotpotqa"]))
    assert [each.question_id for each in first] == ["hotpotqa/0-4k/id0"]
    extended = asked(configured("longbench", files, extended=True, sets=["hotpotqa"]))
    assert [each.question_id for each in extended] == ["hotpotqa/0-4k/id5"]
    elsewhere = asked(configured("longbench", files, sets=["qasper"]))
    assert [each.question_id for each in elsewhere] == ["qasper/0-4k/id9"]


def test_an_answer_is_worth_its_best_right_one_in_per_cent(files: Path) -> None:
    config = configured("longbench", files)
    questions = asked(config)
    said = ["city of light", "6 or 7", "\nFood\nDate", "`return 2`\nreturn 11\n"]
    found = values(config, questions, {each.question_id: text for each, text in zip(questions, said, strict=True)})
    assert [*found.values()] == pytest.approx([100.0, 50.0, 100.0, 94.0])


def test_the_ranges_of_length_are_the_published_ones() -> None:
    assert [bucket_of(length) for length in (3999, 4000, 7999, 8000)] == ["0-4k", "4-8k", "4-8k", "8k+"]


def test_the_suites_are_the_papers() -> None:
    assert len(SUITES["gateau"]) == 12 and len(SUITES["english"]) == 16 and len(SUITES["all"]) == len(SETS) == 21
    assert sum(SETS[name].segmented for name in SUITES["gateau"]) == 3
    kinds = [kind_of(f"{name}/0-4k/1") for name in SETS]
    assert [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)] == [
        ("single-document QA", 4), ("multi-document QA", 4), ("summarization", 4), ("few-shot learning", 4),
        ("synthetic tasks", 3), ("code completion", 2),
    ]  # fmt: skip
    assert {name for name in SETS if not SETS[name].chat} == {
        "trec",
        "triviaqa",
        "samsum",
        "lsht",
        "lcc",
        "repobench-p",
    }


def test_a_set_that_does_not_exist_is_named_with_its_place(files: Path) -> None:
    with pytest.raises(SectionError, match="hotpotqa, 2wikimqa"):
        scored_benchmarks(configured("longbench", files, sets=["hotpot"]))


def test_chinese_sets_say_what_to_install(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longbench, "find_spec", lambda _: None)
    with refused("evaluation.package", r"evaluation\.longbench\.sets"):
        scored_benchmarks(configured("longbench", files, sets="gateau"))


def test_sets_without_rows_or_prompts_are_named(files: Path) -> None:
    with refused("evaluation.benchmark_data"):
        write_prompts(files / "config", ["musique"])
        asked(configured("longbench", files, sets=["musique"]))
    with refused("evaluation.benchmark_data", r"dataset2prompt\.json"):
        asked(configured("longbench", files))
    for name, value, what in ((PROMPTS, ["{context}"], "text"), (LENGTHS, "64", "whole number")):
        write_prompts(files / "config", ["musique"])
        (files / "config" / name).write_text(json.dumps({"musique": value}))
        with refused("evaluation.benchmark_data", rf"prompts: {name} has no {what} for musique; get"):
            asked(configured("longbench", files, sets=["musique"]))
    (files / "config" / LENGTHS).unlink()
    with refused("evaluation.benchmark_data", r"dataset2maxlen\.json"):
        asked(configured("longbench", files, sets=["musique"]))


def test_prompts_are_the_published_ones_byte_for_byte(files: Path) -> None:
    config = official.data("longbench_config")
    published = json.loads((config / PROMPTS).read_bytes())
    longest = json.loads((config / LENGTHS).read_bytes())
    assert {*published} == {*SETS} == {*longest}
    for name in SETS:
        write_jsonl(files / "all" / f"{name}.jsonl", [longbench_row(1, answers=["x"])])
    sets = [name for name in SETS if WITH_JIEBA or not SETS[name].segmented]
    found = asked(configured("longbench", files, data="all", prompts=str(config), sets=sets))
    for question in found:
        prompt = published[question.group].replace("{context}", "context 1 {braces}").replace("{input}", "question 1")
        assert question.turns == (prompt,) and question.generation.max_new_tokens == longest[question.group]


# LongBench by a judge: what it is told, and what its ratings are worth, as in GATEAU's code.


def _questions(judged_folder: Path, **options: Any) -> list[Question]:
    return asked(configured("longbench_judged", judged_folder, **options))


def _told(question: Question, answer: str) -> str:
    (request,) = LongBenchJudged(plain(), LongBenchJudgedOptions()).requests(question, [answer])
    system, user = (each["content"] for each in request.messages)
    assert (system, request.temperature, request.turn) == (SYSTEM, 0.0, 0)
    return user


def test_the_judge_is_told_the_right_answers_and_the_model_s_on_one_line(judged_folder: Path) -> None:
    question, summary = _questions(judged_folder)
    assert _told(question, " one\ntwo \n") == "Asked who?\nRight ['A {b}', \"C's\"]\nSaid one two\nRating: "
    assert _told(summary, "{}") == "Right ['A {b}', \"C's\"]\nSaid {}\nRating:"


def test_prompts_are_gateau_s_byte_for_byte(judged_folder: Path) -> None:
    texts = [official.code(f"GATEAU/train/LongBench/prompt_for_{kind}.txt") for kind in ("qa", "sum")]
    question, summary = _questions(judged_folder, question_prompt=str(texts[0]), summary_prompt=str(texts[1]))
    for_question, for_summary = (text.open(encoding="utf-8").read() for text in texts)
    right = ["A {b}", "C's"]
    assert _told(question, "An answer.") == for_question.format("who?", right, "An answer.")
    assert _told(summary, "An answer.") == for_summary.format(right, "An answer.")


def test_a_rating_is_worth_its_share_of_the_highest_one(judged_folder: Path) -> None:
    questions, found = _questions(judged_folder), LongBenchJudged(plain(), LongBenchJudgedOptions())
    assert found.floor == pytest.approx((8 * 100 / 3 + 4 * 20) / 12)
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


def test_a_set_that_is_not_judged_is_named(judged_folder: Path) -> None:
    with refused("evaluation.task", r"longbench_judged\.sets"):
        scored_benchmarks(configured("longbench_judged", judged_folder, sets=["trec"]))


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
def test_a_prompt_with_other_gaps_is_named(text: str, fault: str, judged_folder: Path) -> None:
    (judged_folder / "sum.txt").write_text(text)
    with refused("evaluation.benchmark_data", rf"summary_prompt: sum\.txt is not the published file \({fault}.*; get"):
        _questions(judged_folder)


def test_a_question_s_prompt_whose_gap_is_more_than_a_name_is_named(judged_folder: Path) -> None:
    write_prompts(judged_folder / "config", ["hotpotqa", "qmsum"], "{context:>3000000000}")
    fault = r"longbench_judged\.prompts: dataset2prompt\.json: hotpotqa.* \(\{context:>3000000000\} is more than a name"
    with refused("evaluation.benchmark_data", fault):
        _questions(judged_folder)
