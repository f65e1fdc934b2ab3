"""LongBench-Chat: prompts and ratings are those of LongAlign's code, byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmarks.longbench_chat import (
    SYSTEM,
    LongBenchChat,
    asked,
)
from tests.features.evaluation.builders import chosen
from tests.features.evaluation.mt_bench_files import NO_MATERIALS
from tests.features.evaluation.suites import CASES, CHAT_PROMPT, SHOTS, configured, write_longbench_chat
from tests.kit.error_codes import refused

from . import official


def benchmark_of(folder: Path, **options: Any) -> LongBenchChat:
    return chosen(configured("longbench_chat", folder, **options))


def write_files(folder: Path, form: str = "longalign", **files: Any) -> LongBenchChat:
    write_longbench_chat(folder, **files)
    return benchmark_of(folder, form=form)


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


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"shots": SHOTS[:1]}, "cases"),
        ({"shots": [{"answer": "x"}]}, "few_shots"),
        ({"prompt": "{} {name}"}, "prompt"),
        ({"prompt": CHAT_PROMPT.replace("Q {}", "Q {:>3000000000}")}, "prompt: .*is more than a name"),
        ({"prompt": CHAT_PROMPT + "{} {}"}, "prompt"),
        ({"prompt": CHAT_PROMPT.replace("Now {}", "Now")}, "prompt: .*it has 8 gaps; expected 9, the last one"),
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
