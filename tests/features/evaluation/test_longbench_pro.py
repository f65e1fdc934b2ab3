"""LongBench Pro: questions are asked as published, answers graded by the metric of their task."""

import json
import math
import random
import re
import subprocess
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmarks.longbench_pro import METRICS, TASKS
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation import official
from tests.features.evaluation.builders import asked, chosen, values
from tests.features.evaluation.suites import configured
from tests.features.evaluation.suites import longbench_pro_row as row
from tests.features.evaluation.suites import write_longbench_pro as write
from tests.kit.error_codes import refused
from tests.kit.project import ROOT

METRIC_OF = {
    "NDCG": ("T1.1", "T1.2"),
    "Pairwise_Accuracy": ("T2.1", "T2.2", "T6.3"),
    "Accuracy": ("T3.1", "T3.2", "T11.1", "T11.2"),
    "F1_Score": ("T5.1", "T5.2", "T6.2", "T7.1", "T7.2", "T7.3", "T9.1", "T9.2"),
    "SubEM": ("T6.1", "T8.1", "T8.2", "T8.3", "T10.1", "T10.2"),
}
NAME = {task: metric for metric, tasks in METRIC_OF.items() for task in tasks}


_project = partial(configured, "longbench_pro")


def test_questions_are_rows_by_their_labels(tmp_path: Path) -> None:
    write(tmp_path)
    first, second = asked(_project(tmp_path))
    assert first.question_id == "T3.1/Full/8k/Hard/English/id0" and first.group == "T3. Kind"
    assert second.question_id == "T10.2/Partial/256k/Easy/Chinese/id1"
    assert first.turns == ("text 0\n\n\n\nWhich 0?",) and first.references == ("Answer 0",)
    assert (first.generation.max_new_tokens, first.generation.temperature) == (1024, 0)
    groupings = chosen(_project(tmp_path)).groupings
    assert [of(second.question_id) for of in groupings.values()] == ["Partial", "256k", "Easy", "Chinese"]
    assert next(iter(groupings)) == "context requirement"
    (only,) = asked(_project(tmp_path, thinking=True, lengths=["256k"]))
    assert only.turns[0].endswith("Think: which 1?") and only.generation.max_new_tokens == 8192
    assert [each.question_id[:5] for each in asked(_project(tmp_path, tasks=["T10"], max_new_tokens=5))] == ["T10.2"]
    with refused("evaluation.benchmark_data", r"longbench_pro\.data: no rows of T3 with 64k tokens"):
        asked(_project(tmp_path, tasks=["T3"], lengths=["64k"]))


def test_summaries_are_refused_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path)
    assert {task.partition(".")[0] for task in METRICS} == {*TASKS} == {f"T{n}" for n in range(1, 12)} - {"T4"}
    for tasks, words in ((["T4"], "T4 is graded by Qwen3-Embedding-8B"), (["T12"], "must be some of T1, T2")):
        with refused("evaluation.task", words):
            scored_benchmarks(_project(tmp_path, tasks=tasks))


# The metrics, beside their definitions written out and, where it is at hand, beside the authors' code.


def _slow_lines(prediction: str) -> list[str]:
    text = prediction.strip()
    for marker in ("[Answer]", "[答案]"):
        if marker in text:
            text = text[text.rindex(marker) + len(marker) :]
            break
    return [" ".join(line.split()) for line in text.strip().lower().split("\n")]


def _slow(metric: str, answers: list[str], prediction: str) -> float:
    if not prediction.strip():
        return 0.0
    right, said = [" ".join(each.lower().split()) for each in answers], _slow_lines(prediction)
    if metric == "Accuracy":
        return 1.0 if right[0] == said[0] else 0.0
    if metric == "SubEM":
        return len([each for each in right if each in said]) / len(right)
    if metric == "F1_Score":
        shared = len(set(right) & set(said))
        precision, recall = shared / len(set(said)), shared / len(set(right))
        return 2 * precision * recall / (precision + recall) if shared else 0.0
    last = {line: place for place, line in enumerate(said)}
    if metric == "Pairwise_Accuracy":
        pairs = len([*combinations(said, 2)])
        good = [1 for a, b in combinations(right, 2) if a in last and b in last and last[a] < last[b]]
        return len(good) / pairs if pairs and len(right) > 1 and len(good) <= pairs else 0.0
    gains = {line: len(right) - place for place, line in enumerate(right)}
    ranked = [gains.get(line, 0) for line in sorted(last, key=last.__getitem__)][: len(right)]
    ideal = sorted(gains.values(), reverse=True)[: len(right)]
    gain, best = (sum(g / math.log2(rank + 2) for rank, g in enumerate(each)) for each in (ranked, ideal))
    return gain / best


def _cases() -> list[tuple[str, list[str], str]]:
    """Return task, right answers and an answer that we made: right, partial, repeated, marked in many ways, empty."""
    rng, cases = random.Random(0), list[tuple[str, list[str], str]]()
    pool = ["Doc 1", "doc  2", "甲 乙", "é", "63.49%", "a", "b", "c"]
    opens = ("[Answer]\n", "[答案]\n", "", "[Answer]\nx\n[Answer] ", "Thus [答案] a\n[Answer]\n", "[answer]\n")
    for number in range(1500):
        right = rng.choices(pool, k=rng.randrange(1, 6)) if number % 4 == 0 else rng.sample(pool, rng.randrange(1, 6))
        said = rng.choice([right, right[::-1], right[:1], rng.choices(pool, k=rng.randrange(8)), [*right, *right, "z"]])
        said = [each.upper() if rng.random() < 0.2 else f" {each}\t" if rng.random() < 0.2 else each for each in said]
        text = rng.choice(opens) + rng.choice(["\n", "\n", "\n", "\n\n", "\r\n"]).join(said)
        cases.append((rng.choice(sorted(METRICS)), right, rng.choice([text, text, text + "\n", "Hm.\n" + text, " "])))
    return cases


def _graded(folder: Path) -> tuple[list[tuple[str, list[str], str]], list[float]]:
    """Return the cases, and the value of each answer."""
    cases = _cases()
    write(folder, *(row(number, task, answer=right) for number, (task, right, _) in enumerate(cases)))
    config = _project(folder)
    questions = asked(config)
    said = {each.question_id: answer for each, (_, _, answer) in zip(questions, cases, strict=True)}
    return cases, [*values(config, questions, said).values()]


def test_values_are_those_of_the_definitions(tmp_path: Path) -> None:
    cases, found = _graded(tmp_path)
    assert {NAME[task] for task in METRICS} == {*METRIC_OF} and {0.0, 100.0} < {*found}
    wanted = [100 * _slow(NAME[task], right, said) for task, right, said in cases]
    assert found == pytest.approx(wanted, abs=1e-12, rel=0)


def test_values_are_those_of_the_published_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytrec_eval")
    code: Any = official.loaded(official.code("LongBench-Pro/modules/utils.py"), monkeypatch, rouge={"Rouge": None})
    cases, found = _graded(tmp_path)
    wanted = [
        100 * value if (value := getattr(code, NAME[task])(right, said.strip())) <= 1 and said.strip() else 0.0
        for task, right, said in cases
    ]
    assert found == pytest.approx(wanted, abs=1e-12, rel=0)


def test_the_documented_command_makes_samples_labelled_by_the_experts(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/selection.md").read_text(encoding="utf-8")
    found = re.search(r'^python -c "(import polars.*?)"$', page, re.DOTALL | re.MULTILINE)
    assert found is not None
    write(tmp_path, row(0, answer=["a", "b"]), row(1, contextual_requirement="Partial"))
    subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, check=True)
    first, second = map(json.loads, (tmp_path / "long.jsonl").read_text(encoding="utf-8").splitlines())
    assert first == {
        "id": "id0",
        "source": "Full",
        "context": " text 0",
        "instruction": "Which 0? ",
        "response": "a\nb",
    }
    assert (second["source"], second["response"]) == ("Partial", "Answer 1")
