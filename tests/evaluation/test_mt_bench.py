"""MT-Bench: questions, temperatures and judge prompts are those of FastChat, byte for byte."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.mt_bench import BENCHMARK, MtBenchOptions, grade, questions_of, requests_of
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.registry import chosen_benchmarks

from . import official
from .builders import configured

JUDGE = {"base_url": "http://localhost/v1", "model": "judge", "key": None}
PLAIN = {"system_prompt": "Be kind.", "prompt_template": "Q {question} A {answer}"}
MULTI = {"system_prompt": "Two.\n\n", "prompt_template": "{question_1} {answer_1} {question_2} {answer_2}"}

NAMES = [f"single{kind}-v1{turn}" for kind in ("", "-math") for turn in ("", "-multi-turn")]


def write_files(folder: Path, **changed: list[Any]) -> MtBenchOptions:
    """Files in FastChat's form, with other words."""
    files: dict[str, list[Any]] = {
        "questions": [
            {"question_id": 81, "category": "writing", "turns": ["Write.", "Again {x}."]},
            {"question_id": 111, "category": "math", "turns": ["1+1?", "2+2?"], "reference": ["2", "4"]},
        ],
        "references": [{"question_id": 111, "choices": [{"index": 0, "turns": ["two", "four"]}]}],
        "prompts": [
            {"name": "single-v1", **PLAIN},
            {"name": "single-v1-multi-turn", **MULTI},
            {"name": "single-math-v1", **PLAIN, "prompt_template": "Q {question} R {ref_answer_1} A {answer}"},
            {"name": "single-math-v1-multi-turn", **MULTI, "prompt_template": "{ref_answer_2} {answer_2}"},
        ],
        **changed,
    }
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return MtBenchOptions.model_validate({name: f"{name}.jsonl" for name in files})


def materials(folder: Path) -> Materials:
    def nothing(*_: Any) -> Any:
        raise AssertionError("its questions come from its own files")

    config = configured().model_copy(update={"folder": folder})
    return Materials(config=config, reads=(), shards=nothing, samples=nothing, model=nothing)


def contents(question: Question, answers: list[str]) -> list[tuple[str, ...]]:
    options = MtBenchOptions()
    return [tuple(each["content"] for each in request.messages) for request in requests_of(question, answers, options)]


def test_questions_have_their_category_s_temperature_and_references_where_the_judge_sees_them(tmp_path: Path) -> None:
    writing, math = questions_of(materials(tmp_path), write_files(tmp_path))
    assert (writing.question_id, writing.group, writing.turns) == ("81", "writing", ("Write.", "Again {x}."))
    assert (writing.generation.temperature, math.generation.temperature) == (0.7, 0.0)
    assert writing.generation.max_new_tokens == 1024
    assert (writing.references, math.references) == ((), ("two", "four"))


def test_each_turn_has_its_prompt(tmp_path: Path) -> None:
    writing, math = questions_of(materials(tmp_path), write_files(tmp_path))
    assert contents(writing, ["{y}\n", " b "]) == [
        ("Be kind.", "Q Write. A {y}"),
        ("Two.\n\n", "Write. {y} Again {x}. b"),
    ]
    assert contents(math, ["a", "b"]) == [("Be kind.", "Q 1+1? R two A a"), ("Two.\n\n", "four b")]


def test_a_question_of_one_turn_is_judged_once(tmp_path: Path) -> None:
    one = {"question_id": 1, "category": "other", "turns": ["Why?"]}
    (found,) = questions_of(materials(tmp_path), write_files(tmp_path, questions=[one]))
    assert found.generation.temperature == 0.7 and len(contents(found, ["a"])) == 1


def test_the_value_is_ten_times_the_mean_of_the_turns_and_of_the_repeats(tmp_path: Path) -> None:
    questions = questions_of(materials(tmp_path), write_files(tmp_path))
    rows = [("81", 0, 4.0), ("81", 0, 6.0), ("81", 1, 9.0), ("81", 1, None), ("111", 0, 3.0), ("111", 1, None)]
    judgments = pl.DataFrame(rows, schema=["question_id", "turn", "score"], orient="row")
    found = grade(questions, pl.DataFrame(), judgments, MtBenchOptions())
    assert found.table.rows() == [("81", "writing", 70.0)]
    assert [(each.sample_id, each.reason) for each in found.rejected] == [
        ("111", "1 of its 2 turns have no judgment with a score")
    ]


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"questions": [{"question_id": 81, "turns": ["a"]}]}, "questions"),
        ({"questions": ["text"]}, "questions"),
        ({"references": []}, "references"),
        ({"references": [{"question_id": 1, "choices": [{"turns": ["a", "b"]}]}]}, "references"),
        ({"references": [{"question_id": 111}]}, "references"),
        ({"prompts": [{"name": "single-v1"}]}, "prompts"),
        ({"prompts": [{"name": name, **PLAIN, "prompt_template": "{other}"} for name in NAMES]}, "prompts"),
    ],
)
def test_a_file_that_is_another_one_is_named(changed: dict[str, list[Any]], place: str, tmp_path: Path) -> None:
    options = write_files(tmp_path, **changed)
    with pytest.raises(GateauError, match=rf"^evaluation\.mt_bench\.{place}: .*lm-sys/FastChat"):
        questions_of(materials(tmp_path), options)


def asking(folder: Path, **evaluation: Any) -> Config:
    given = {"benchmarks": ["mt_bench"], **evaluation}
    return configured(evaluation=given).model_copy(update={"folder": folder})


def test_what_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    options = write_files(tmp_path).model_dump(include={"questions", "references", "prompts"})
    with pytest.raises(GateauError, match=r"^evaluation\.judge: mt_bench is rated by a judge"):
        chosen_benchmarks(asking(tmp_path, mt_bench=options))
    with pytest.raises(GateauError, match=r"^evaluation\.mt_bench\.questions: is not given\. Download .*FastChat"):
        chosen_benchmarks(asking(tmp_path, judge=JUDGE))
    with pytest.raises(GateauError, match=r"^evaluation\.mt_bench\.prompts: there is no gone\.jsonl"):
        chosen_benchmarks(asking(tmp_path, judge=JUDGE, mt_bench={**options, "prompts": "gone.jsonl"}))
    assert [*chosen_benchmarks(asking(tmp_path, judge=JUDGE, mt_bench=options))] == ["mt_bench"]


def test_another_content_of_a_file_is_another_setting(tmp_path: Path) -> None:
    options = write_files(tmp_path)
    config = asking(tmp_path)
    before = BENCHMARK.settings(config, options)
    write_files(tmp_path)
    assert BENCHMARK.settings(config, options) == before
    write_files(tmp_path, references=[{}])
    changed = BENCHMARK.settings(config, options)
    assert {key for key in before if before[key] != changed[key]} == {"mt_bench references"}


ANSWERS = ["It is {so}.\n\nYes.", "ünï \\ {question} 漢字", "", "[[9]]", "a\tb"]


def test_prompts_and_ratings_are_those_of_the_official_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question, both turns: the messages byte for byte, and what is read of a reply."""
    conversation = official.loaded(official.code("FastChat/fastchat/conversation.py"), monkeypatch)
    adapter = {
        "get_conversation_template": lambda model: conversation.get_conv_template("chatgpt"),
        **dict.fromkeys(("ANTHROPIC_MODEL_LIST", "OPENAI_MODEL_LIST"), ("gpt-4",)),
    }
    stubs = {
        "openai": {},
        "anthropic": {},
        "fastchat": {},
        "fastchat__model": {},
        "fastchat__model__model_adapter": adapter,
    }
    theirs = official.loaded(official.code("FastChat/fastchat/llm_judge/common.py"), monkeypatch, **stubs)
    folder = official.data("mt_bench_questions.jsonl").parent
    names = {
        "questions": "mt_bench_questions",
        "references": "mt_bench_references",
        "prompts": "mt_bench_judge_prompts",
    }
    options = MtBenchOptions.model_validate({key: str(folder / f"{name}.jsonl") for key, name in names.items()})
    prompts = theirs.load_judge_prompts(options.prompts)
    records = theirs.load_questions(options.questions, None, None)
    references = {each["question_id"]: each for each in theirs.load_questions(options.references, None, None)}
    questions = questions_of(materials(tmp_path), options)
    assert len(questions) == len(records) == 80
    replies = iter(reply for _ in range(80) for reply in ("Rating: [[7]]", "so [3.5] [[4.5]] [[9]]", "[6]"))
    sent: list[Any] = []
    monkeypatch.setattr(
        theirs, "chat_completion_openai", lambda model, conv, **_: sent.append(conv.to_openai_api_messages()) or reply
    )
    for number, (question, record) in enumerate(zip(questions, records, strict=True)):
        answers = [ANSWERS[number % 5], ANSWERS[(number + 1) % 5]]
        seen = record["category"] in theirs.NEED_REF_CATS
        assert question.generation.temperature == theirs.temperature_config[record["category"]]
        for turn, request in enumerate(requests_of(question, answers, options)):
            name = f"single{'-math' if seen else ''}-v1{'-multi-turn' if turn else ''}"
            judge = theirs.Judge("gpt-4", prompts[name], ref_based=seen, multi_turn=bool(turn))
            given, reply = {"choices": [{"turns": answers}]}, next(replies)
            reference = references[record["question_id"]] if seen else None
            rating, _, _ = theirs.run_judge_single(record, given, judge, reference, multi_turn=bool(turn))
            assert sent.pop() == request.messages
            assert BENCHMARK.scored is not None and BENCHMARK.scored.judging is not None
            assert BENCHMARK.scored.judging.parse(reply) == rating
            assert request.turn == turn
