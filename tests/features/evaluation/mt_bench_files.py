"""Files in the form of FastChat's MT-Bench, with other words, and the benchmark that reads them."""

import json
from pathlib import Path
from typing import Any

from gateau_dagster.features.evaluation.benchmark import Materials
from gateau_dagster.features.evaluation.benchmarks.mt_bench import MtBench, MtBenchOptions
from tests.kit.project import configured

PLAIN = {"system_prompt": "Be kind.", "prompt_template": "Q {question} A {answer}"}
PAIR = {"system_prompt": "Which?", "prompt_template": "{question} {answer_a} {answer_b}"}
PAIRS = {
    "system_prompt": "Then?",
    "prompt_template": "{question_2} {answer_a_1} {answer_a_2} {answer_b_1} {answer_b_2}",
}
MULTI = {"system_prompt": "Two.\n\n", "prompt_template": "{question_1} {answer_1} {question_2} {answer_2}"}
KINDS = ("single-v1", "single-math-v1", "pair-v2", "pair-math-v1")
NAMES = [f"{kind}{turn}" for kind in KINDS for turn in ("", "-multi-turn")]


def write_files(folder: Path, **changed: list[Any]) -> MtBench:
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
            *({"name": name, **PAIR} for name in ("pair-v2", "pair-math-v1")),
            *({"name": name, **PAIRS} for name in ("pair-v2-multi-turn", "pair-math-v1-multi-turn")),
        ],
        **changed,
    }
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = MtBenchOptions.model_validate({name: f"{name}.jsonl" for name in files})
    return MtBench(configured().model_copy(update={"folder": folder}), options)


def _nothing(*_: Any) -> Any:
    raise AssertionError("its questions come from its own files")


NO_MATERIALS = Materials(config=configured(), reads=(), shards=_nothing, samples=_nothing, model=_nothing)
