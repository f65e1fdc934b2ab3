"""LongBench-Chat: prompts and ratings are those of LongAlign's code, byte for byte."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.evaluation.benchmarks.longbench_chat import (
    SYSTEM,
    LongBenchChat,
    LongBenchChatOptions,
    asked,
)
from tests.features.evaluation.mt_bench_files import NO_MATERIALS
from tests.kit.error_codes import refused
from tests.kit.project import configured

from . import official

TEMPLATE = "Q {}\nR {}\n1 {} [[{}]]\n2 {} [[{}]]\n3 {} [[{}]]\nNow {}\nRating: "
CASES = [
    {"idx": 1, "prompt": "A long document.\n\nWho {is} it?", "query": "Who {is} it?", "answer": "Ann"},
    {"idx": 2, "prompt": "很长的文件。\n是谁？", "query": "是谁？", "answer": "安"},
]
SHOTS = [[{"answer": f"{case} {shot}", "score": 2 * shot + 1} for shot in range(3)] for case in ("x", "y")]


def benchmark_of(folder: Path, **options: Any) -> LongBenchChat:
    files = {"cases": "test_cases.json", "few_shots": "few_shots.json", "prompt": "prompt_fs.txt"}
    config = configured().model_copy(update={"folder": folder})
    return LongBenchChat(config, LongBenchChatOptions.model_validate({**files, **options}))


def write_files(
    folder: Path, *, cases: Any = CASES, shots: Any = SHOTS, prompt: str = TEMPLATE, **options: Any
) -> LongBenchChat:
    """Files in LongAlign's form, with other words."""
    (folder / "test_cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=2))
    (folder / "few_shots.json").write_text(json.dumps(shots))
    (folder / "prompt_fs.txt").write_text(prompt)
    return benchmark_of(folder, **options)


def test_questions_are_the_cases_and_ask_as_they_do(tmp_path: Path) -> None:
    english, chinese = write_files(tmp_path).questions(NO_MATERIALS)
    assert english.turns == (CASES[0]["prompt"],)
    assert [each.group for each in (english, chinese)] == ["English", "Chinese"]
    assert (english.generation.max_new_tokens, english.generation.temperature) == (1024, 0.0)


def test_the_judge_sees_reference_scored_answers_and_the_answer_on_one_line(tmp_path: Path) -> None:
    benchmark = write_files(tmp_path)
    (request,) = benchmark.requests(benchmark.questions(NO_MATERIALS)[0], [" It is\nAnn. \n"])
    system, user = request.messages
    assert (system["content"], request.temperature) == (SYSTEM, 0.0)
    assert user["content"] == "Q Who {is} it?\nR Ann\n1 x 0 [[1]]\n2 x 1 [[3]]\n3 x 2 [[5]]\nNow It is Ann.\nRating: "


def test_gateau_asks_with_the_words_of_its_training(tmp_path: Path) -> None:
    benchmark = write_files(tmp_path, form="gateau")
    english, chinese = benchmark.questions(NO_MATERIALS)
    assert english.turns == ("A long document.\n\n ###Instruction: Who {is} it?\n\n\n ###Response: ",)
    assert chinese.turns == ("很长的文件。\n ###Instruction: 是谁？\n\n\n ###Response: ",)
    assert asked("is it\nis it", "q", "gateau") == "is it\n ###Instruction: q\n\n\n ###Response: "


def test_the_value_is_ten_times_the_rating(tmp_path: Path) -> None:
    benchmark = write_files(tmp_path)
    judgments = pl.DataFrame([("01", 0, 7.0)], schema=["question_id", "turn", "score"], orient="row")
    found = benchmark.grade(benchmark.questions(NO_MATERIALS), pl.DataFrame(), judgments)
    assert found.table.rows() == [("01", "English", 70.0)]
    assert [each.sample_id for each in found.rejected] == ["02"]


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"cases": [{"idx": 1}]}, "cases"),
        ({"shots": SHOTS[:1]}, "cases"),
        ({"shots": [{"answer": "x"}]}, "few_shots"),
        ({"prompt": "{} {name}"}, "prompt"),
        ({"prompt": TEMPLATE.replace("Q {}", "Q {:>3000000000}")}, "prompt: .*is more than a name"),
        ({"cases": [{**CASES[0], "idx": None}]}, "cases: .*test_cases.json:1: idx is null"),
        ({"cases": [CASES[0], CASES[0]]}, "cases: .*test_cases.json:2: idx 1 is also in"),
        ({"cases": [{**CASES[0], "query": 7}]}, "cases: .*test_cases.json:1: query is a number"),
        ({"prompt": TEMPLATE + "{} {}"}, "prompt"),
        ({"prompt": TEMPLATE.replace("Now {}", "Now")}, "prompt: .*it has 8 gaps; expected 9, the last one"),
    ],
)
def test_a_file_that_is_another_one_is_named(changed: Any, place: str, tmp_path: Path) -> None:
    benchmark = write_files(tmp_path, **changed)
    with refused("evaluation.benchmark_data", rf"^evaluation\.longbench_chat\.{place}.*THUDM/LongAlign"):
        benchmark.questions(NO_MATERIALS)


def test_prompts_and_ratings_are_those_of_the_official_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own get_score over the six released runs of 50 answers: every prompt that it sends, every score it reads."""
    script = official.code("LongAlign/LongBench_Chat/eval.py")
    shots, prompt = (script.parent / name for name in ("few_shots.json", "prompt_fs.txt"))
    runs = sorted(official.code("GATEAU/logs/chat-1k-10k.json").parent.glob("chat-*.json"))
    assert len(runs) == 6
    cases = [{**case, "prompt": case["query"]} for case in json.loads(runs[0].read_text())[:50]]
    for name, content in {"few_shots.json": shots.read_bytes(), "prompt_fs.txt": prompt.read_bytes()}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "test_cases.json").write_text(json.dumps(cases))
    monkeypatch.chdir(tmp_path)
    stubs: dict[str, Any] = {"llama_flash_attn_monkey_patch": {"replace_llama_attn_with_flash_attn": lambda: None}}
    theirs = official.loaded(script, monkeypatch, **stubs)
    benchmark = benchmark_of(tmp_path)
    questions = benchmark.questions(NO_MATERIALS)
    for run in runs:
        judged = json.loads(run.read_text())[:50]
        (tmp_path / "predictions" / "m.txt").write_text("".join(f"{each['prediction'].strip()}\n" for each in judged))
        sent: list[str] = []

        def query(text: str, sent: list[str] = sent, judged: Any = judged) -> Any:
            sent.append(text)
            return {
                "usage": {"total_tokens": 1},
                "choices": [{"message": {"content": judged[len(sent) - 1]["gpt_analysis"]}}],
            }

        monkeypatch.setattr(theirs, "query_gpt4", query)
        theirs.get_score("m")
        scores = json.loads((tmp_path / "scores" / "m.json").read_text())[:50]
        assert len(sent) == 50
        for question, each, text, scored in zip(questions, judged, sent, scores, strict=True):
            (request,) = benchmark.requests(question, [each["prediction"]])
            assert request.messages == [
                {"role": "system", "content": theirs.system_prompt},
                {"role": "user", "content": text},
            ]
            assert benchmark.parse(each["gpt_analysis"]) == float(scored["score"])
