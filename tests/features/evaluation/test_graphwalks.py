"""GraphWalks: prompts are asked as they are, and answers graded as on the data set's card."""

import random
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.features.evaluation.benchmarks.graphwalks import character_range
from gateau_dagster.features.evaluation.statistics.results import _natural
from tests.features.evaluation.builders import asked, chosen, values, write_jsonl
from tests.features.evaluation.suites import configured
from tests.features.evaluation.suites import graphwalks_row as row
from tests.kit.error_codes import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows as published, in two parquet files."""
    (tmp_path / "data").mkdir()
    rows = [row(0), row(1, problem_type="parents", answer_nodes=[], prompt="x" * 4000)]
    pl.DataFrame(rows, schema_overrides={"answer_nodes": pl.List(pl.String())}).write_parquet(
        tmp_path / "data" / "graphwalks_128k_and_shorter.parquet"
    )
    pl.DataFrame([row(2, prompt="y" * 9000)]).write_parquet(tmp_path / "data" / "graphwalks_256k_to_1mil.parquet")
    return tmp_path


_project = partial(configured, "graphwalks")


def test_a_prompt_is_asked_as_it_is(folder: Path) -> None:
    found = asked(_project(folder, data="data"))
    assert [each.question_id for each in found] == ["bfs/0-4k/0000", "parents/4-8k/0001", "bfs/8-16k/0002"]
    assert [each.turns for each in found] == [("a -> b {0}\n",), ("x" * 4000,), ("y" * 9000,)]
    assert [each.references for each in found] == [("a", "b"), (), ("a", "b")]
    assert [each.group for each in found] == ["bfs", "parents", "bfs"]
    assert all((each.generation.max_new_tokens, each.generation.temperature) == (4096, 0) for each in found)
    length = chosen(_project(folder, data="data")).groupings["length"]
    assert [length(each.question_id) for each in found] == ["0-4k", "4-8k", "8-16k"]


def test_longer_prompts_than_asked_for_are_left_out_and_others_keep_their_ids(folder: Path) -> None:
    found = asked(_project(folder, data="data", longest=4000, max_new_tokens=7))
    assert [each.question_id for each in found] == ["bfs/0-4k/0000", "parents/4-8k/0001"]
    assert found[0].generation.max_new_tokens == 7
    with refused("evaluation.benchmark_data", r"graphwalks\.data: every prompt has more than the 5 characters"):
        asked(_project(folder, data="data", longest=5))


def test_ranges_of_length_double_and_are_shown_in_their_order() -> None:
    found = [character_range(length) for length in (0, 3999, 4000, 7999, 8000, 1_023_999, 1_750_000)]
    assert found == ["0-4k", "0-4k", "4-8k", "4-8k", "8-16k", "512-1024k", "1024-2048k"]
    assert found == sorted(found, key=_natural)


def _slow_f1(response: str, right: list[str]) -> float:
    """Return the card's value: a last line in the asked form, precision and recall of the sets, 1 if both are empty."""
    line = response.rsplit("\n", maxsplit=1)[-1]
    if line.find("Final Answer:") < 0 or "[" not in line:
        return 0.0
    opening, closing = line.index("["), len(line) - 1 - line[::-1].find("]")
    if "]" not in line or closing < opening:
        return 0.0
    inside = line[opening : closing + 1]
    while inside and inside[0] in "[]":
        inside = inside[1:]
    while inside and inside[-1] in "[]":
        inside = inside[:-1]
    found: list[str] = []
    for item in inside.split(","):
        if item.strip() and item.strip() not in found:
            found.append(item.strip())
    true = [node for place, node in enumerate(right) if node not in right[:place]]
    if not found and not true:
        return 1.0
    both = sum(node in true for node in found)
    recall = both / len(true) if true else 0.0
    precision = both / len(found) if found else 0.0
    return 2 * (recall * precision) / (recall + precision) if recall + precision > 0 else 0.0


FORMS = (
    "Final Answer: [{}]",
    "Final Answer:[{}]",
    "First, b. [x]\n\nFinal Answer: [{}]",
    "**Final Answer: [{}]**",
    "[a] Final Answer: [{}] [b]",
    "Final Answer: [[{}]]",
    "Final Answer: [{}",
    "Final Answer: {}]",
    "Final Answer: ]{}[",
    "Final Answer: {}",
    "Final answer: [{}]",
    "Final Answer: [{}]\n",
    "Final Answer: [{}]\r\nFinal Answer: none",
    "Final Answer：[{}]",
    "[{}]\u2028Final Answer: [a]",
    "{}",
)


def _cases() -> list[tuple[str, list[str]]]:
    """Answers that we made, since no model's are at hand: right, partial, wrong, malformed, of other scripts, empty."""
    rng = random.Random(0)
    nodes, cases = ["a", "b", "0f3c", "节点", "é", "n 1"], [("", ["a"]), ("", []), ("\n", []), ("Final Answer: []", [])]
    for _ in range(600):
        right = rng.sample(nodes, rng.randint(0, 4)) + rng.choices(nodes, k=rng.choice([0, 0, 1]))
        said = rng.choice([right, rng.choices([*nodes, "z", "", " "], k=rng.randint(0, 6)), []])
        joined = rng.choice([", ", ",", " ,\t", "\xa0, "]).join(rng.sample(said, len(said)))
        cases.append((rng.choice(FORMS).replace("{}", joined), right))
    return cases


def test_the_value_of_an_answer_is_the_card_s(tmp_path: Path) -> None:
    cases = _cases()
    write_jsonl(tmp_path / "rows.jsonl", [row(number, answer_nodes=right) for number, (_, right) in enumerate(cases)])
    config = _project(tmp_path)
    questions = asked(config)
    said = {each.question_id: answer for each, (answer, _) in zip(questions, cases, strict=True)}
    wanted = [100 * _slow_f1(answer, right) for answer, right in cases]
    assert len(wanted) >= 200 and {0.0, 100.0} < {*wanted}
    assert [*values(config, questions, said).values()] == pytest.approx(wanted, abs=1e-12, rel=0)
