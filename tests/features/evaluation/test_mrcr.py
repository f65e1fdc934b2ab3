"""MRCR: conversations are asked as they are, and answers graded as on the data set's card."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.generation.answering import AskedTurn
from gateau_dagster.features.evaluation.generation.prompts import messages
from tests.features.evaluation.builders import asked, chosen, values, write_jsonl
from tests.features.evaluation.engines import prompts
from tests.features.evaluation.suites import configured
from tests.features.evaluation.suites import mrcr_row as row
from tests.kit.error_codes import refused

_project = partial(configured, "mrcr")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row(needles, n_needles=needles, length=500 * needles) for needles in (2, 8)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return tmp_path


def test_a_question_is_the_last_message_after_the_others(folder: Path) -> None:
    first, second = asked(_project(folder))
    assert [first.question_id, second.question_id] == ["2 needles/4-8k/0000", "8 needles/16-32k/0001"]
    assert [first.group, second.group] == ["2 needles", "8 needles"]
    published = json.loads(row(2, length=1000)["prompt"])
    assert messages(first, first.turns, ()) == published
    text = prompts("chat").shown(AskedTurn(question=first)).text
    assert text.count("<|user|>") == 4 and text.count("<|assistant|>") == 3 and text.endswith("<|assistant|>\n")
    assert first.references == ("mArk2A poem.",) and first.facts == {"marker": "mArk2"}
    assert (first.generation.max_new_tokens, first.generation.temperature) == (4096, 0)
    length = chosen(_project(folder)).groupings["length"]
    assert [length(each.question_id) for each in (first, second)] == ["4-8k", "16-32k"]


def test_longer_conversations_than_asked_for_are_left_out(folder: Path) -> None:
    (found,) = asked(_project(folder, longest=6000, max_new_tokens=7))
    assert (found.question_id, found.generation.max_new_tokens) == ("2 needles/4-8k/0000", 7)
    with refused("evaluation.benchmark_data", r"mrcr\.data: every conversation has more than the 5 characters"):
        asked(_project(folder, longest=5))


def _slow_ratio(one: str, other: str) -> float:
    """Python's definition of difflib's ratio: the longest common run, then those to its left and to its right.

    In a second text of 200 letters or more, letters above a hundredth of it begin no run.
    """
    common = {letter for letter in {*other} if len(other) >= 200 and other.count(letter) > len(other) // 100 + 1}

    def matches(start: int, stop: int, start_other: int, stop_other: int) -> int:
        size, i, j = 0, start, start_other
        for at in range(start, stop):
            for at_other in range(start_other, stop_other):
                run = 0
                while (
                    at + run < stop
                    and at_other + run < stop_other
                    and one[at + run] == other[at_other + run]
                    and other[at_other + run] not in common
                ):
                    run += 1
                if run > size:
                    size, i, j = run, at, at_other
        while i > start and j > start_other and one[i - 1] == other[j - 1]:
            size, i, j = size + 1, i - 1, j - 1
        while i + size < stop and j + size < stop_other and one[i + size] == other[j + size]:
            size += 1
        if not size:
            return 0
        return size + matches(start, i, start_other, j) + matches(i + size, stop, j + size, stop_other)

    total = len(one) + len(other)
    return 2 * matches(0, len(one), 0, len(other)) / total if total else 1.0


def _slow_grade(response: str, answer: str, marker: str) -> float:
    """Return the card's value: 0 without the marker in front, which is else removed once from both texts."""
    if response[: len(marker)] != marker:
        return 0.0
    return _slow_ratio(response[len(marker) :], answer[len(marker) :])


def _cases() -> list[tuple[str, str, str]]:
    """Answers that we made, since no model's are at hand: right, wrong, partial, malformed, of other scripts, empty."""
    rng, cases = random.Random(0), list[tuple[str, str, str]]()
    for number in range(240):
        marker = "".join(rng.choices("aB3xY", k=rng.randint(1, 10)))
        letters = rng.choice(
            ["ab \n", "the poem of a tapir, ", "诗人在山中", "é\u0301e🙂z", "abcdefghijklmnop qrstuvwxyz\n"]
        )
        text = "".join(rng.choices(letters, k=rng.choice([0, 1, 5, 20, 40]) if number % 6 else 220))
        changed = "".join(letter for letter in text if rng.random() < 0.8)
        said = rng.choice([text, changed, text[::-1], text[: len(text) // 2], "", changed + text[:3], "Sure: " + text])
        front = rng.choice(
            [marker, marker, marker, marker, "", f" {marker}", marker * 2, marker.lower(), f'"{marker}"']
        )
        cases.append((front + said, marker + text, marker))
    return cases


def test_the_value_of_an_answer_is_the_card_s(tmp_path: Path) -> None:
    cases = _cases()
    rows = [
        row(number, answer=right, random_string_to_prepend=marker) for number, (_, right, marker) in enumerate(cases)
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    config = _project(tmp_path)
    questions = asked(config)
    said = {each.question_id: answer for each, (answer, _, _) in zip(questions, cases, strict=True)}
    wanted = [100 * _slow_grade(*case) for case in cases]
    assert len(wanted) >= 200 and {0.0, 100.0} < {*wanted}
    assert [*values(config, questions, said).values()] == pytest.approx(wanted, abs=1e-12, rel=0)


def _prompt(*roles: str) -> str:
    return row(0, roles)["prompt"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"prompt": "{"}, "prompt is no JSON"),
        ({"prompt": "[" * 100_000}, "prompt is no JSON"),
        ({"prompt": "{}"}, "prompt is no list"),
        ({"prompt": "[]"}, "prompt does not end with a message of the user"),
        ({"prompt": _prompt("user", "assistant")}, "prompt does not end with a message of the user"),
        ({"prompt": _prompt("assistant", "user")}, ""),
        ({"prompt": _prompt("user", "assistant", "assistant", "user")}, ""),
        ({"prompt": _prompt("system", "user")}, ""),
        ({"prompt": '[{"role": "user", "content": 1}]'}, ""),
        ({"random_string_to_prepend": "other"}, "answer does not begin with random_string_to_prepend"),
    ],
)
def test_a_row_of_another_form_is_named(wrong: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [row(0), row(1, **wrong)])
    with refused("evaluation.benchmark_data", rf"mrcr\.data: .*rows\.jsonl:2[:,] ({words or 'message [123]: '})"):
        asked(_project(tmp_path))
