"""LongBench v2: prompts and choices are those of its pred.py, accuracies those of its result.py."""

import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmarks.longbench_v2 import chosen_letter
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.results import _natural
from tests.features.evaluation.builders import asked, chosen, project, values, write_jsonl
from tests.kit.error_codes import refused

TEMPLATE = 'Read.\n<t>\n$DOC$\n</t>\n$Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\nSay "The correct answer is (x)".'


def row(number: int, **fields: Any) -> dict[str, Any]:
    choices = {f"choice_{letter}": f"{letter}{number} " for letter in "ABCD"}
    common = {"_id": f"id{number}", "domain": "d", "sub_domain": "s", "difficulty": "easy", "length": "short"}
    return {
        **common,
        "question": f" why {number}?\n",
        **choices,
        "answer": "A",
        "context": f"\ntext {number} ",
        **fields,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rows and a prompt of our own."""
    rows = [row(0), row(1, difficulty="hard", length="long", answer="D"), row(2, length="medium", context="a $Q$ b")]
    write_jsonl(tmp_path / "data.jsonl", rows)
    (tmp_path / "0shot.txt").write_text(TEMPLATE)
    return tmp_path


def _project(folder: Path, **options: Any) -> Any:
    return project(folder, "longbench_v2", **{"data": "data.jsonl", "prompt": "0shot.txt", **options})


def test_a_question_is_the_row_in_the_prompt(folder: Path) -> None:
    first, second, third = asked(_project(folder))
    assert [each.question_id for each in (first, second, third)] == [
        "easy/short/id0",
        "hard/long/id1",
        "easy/medium/id2",
    ]
    choices = "\n".join(f"({letter}) {letter}0" for letter in "ABCD")
    end = 'Say "The correct answer is (x)".'
    assert first.turns == (f"Read.\n<t>\ntext 0\n</t>\nwhy 0?\n{choices}\n{end}",)
    # pred.py fills gap after gap, so that a gap in the text is filled, too.
    assert third.turns[0].startswith("Read.\n<t>\na why 2? b\n</t>\nwhy 2?\n")
    assert (first.generation.max_new_tokens, first.generation.temperature) == (128, 0.1)
    assert [each.references for each in (first, second)] == [("A",), ("D",)]
    length = chosen(_project(folder)).groupings["length"]
    lengths = [length(each.question_id) for each in (first, third, second)]
    assert lengths == ["0-32k (short)", "32-128k (medium)", "128k+ (long)"] == sorted(lengths, key=_natural)
    assert [each.group for each in (first, second)] == ["easy", "hard"]


def test_only_the_chosen_lengths_are_asked(folder: Path) -> None:
    found = asked(_project(folder, lengths=["long", "medium"]))
    assert [each.question_id for each in found] == ["hard/long/id1", "easy/medium/id2"]
    write_jsonl(folder / "data.jsonl", [row(0)])
    with refused("evaluation.benchmark_data", r"longbench_v2\.data: no rows whose length is long or medium"):
        asked(_project(folder, lengths=["long", "medium"]))


def test_without_a_text_the_prompt_has_no_gap_for_it(folder: Path) -> None:
    (folder / "0shot.txt").write_text(TEMPLATE.replace("$DOC$", ""))
    assert "text 0" not in asked(_project(folder))[0].turns[0]


OPENINGS = ("", "Well. ", "**Answer:** ", "the correct answer is (B). ", "考え: ", "The correct answer is\n", "\n\n")
FORMS = (
    "The correct answer is ({})",
    "The correct answer is {}",
    "**The correct answer is ({})**",
    "The correct answer is **({})**.",
    "The correct answer is *{}*",
    "The correct answer is: ({})",
    "The correct answer is  ({})",
    "The correct answer is ( {} )",
    "The correct answer is ({}",
    "the correct answer is ({})",
    "Correct: {}",
    "The correct answer is ({}). The correct answer is (A).",
    "The correct answer is {}. No: the correct answer is (C). The correct answer is (C)",
    "The correct answer is（{}）",
    "{}",
)
LETTERS = ("A", "B", "C", "D", "E", "a", "", "Ａ", "A, B", "Aardvark", "insert answer here")


def _answers() -> list[str]:
    """Answers that we made, since no model's are at hand: right, wrong, malformed, of other scripts, and empty."""
    found = [opening + form.format(letter) for opening in OPENINGS for form in FORMS for letter in LETTERS]
    return ["", " ", "*", *found]


def _slow_letter(response: str) -> str | None:
    """Look at every place of the phrase: the first with a letter in brackets, else the first with a letter."""
    phrase = "The correct answer is "
    response = "".join(letter for letter in response.strip() if letter != "*")
    rests = [response[at + len(phrase) :] for at in range(len(response)) if response[at:].startswith(phrase)]
    for rest in rests:
        if rest[:1] == "(" and rest[1:2] and rest[1] in "ABCD" and rest[2:3] == ")":
            return rest[1]
    return next((rest[0] for rest in rests if rest and rest[0] in "ABCD"), None)


def test_the_choice_of_an_answer_is_the_published_one() -> None:
    said = _answers()
    assert len(said) >= 200 and {chosen_letter(each) for each in said} == {"A", "B", "C", "D", None}
    assert [chosen_letter(each) for each in said] == [_slow_letter(each) for each in said]


def test_accuracies_are_those_of_result_py(tmp_path: Path) -> None:
    """Overall and by difficulty and length, over 300 answers that we made."""
    rng = random.Random(0)
    rows = [
        row(
            number,
            difficulty=rng.choice(["easy", "hard"]),
            length=rng.choice(["short", "medium", "long"]),
            answer=rng.choice("ABCD"),
        )
        for number in range(300)
    ]
    write_jsonl(tmp_path / "data.jsonl", rows)
    (tmp_path / "0shot.txt").write_text(TEMPLATE)
    config = _project(tmp_path)
    questions = asked(config)
    said = {each.question_id: rng.choice(_answers()) for each in questions}
    found, benchmark = values(config, questions, said), chosen(config)
    assert not benchmark.by_group
    right, total = dict[str, int](), dict[str, int]()
    for each in rows:
        correct = _slow_letter(said[f"{each['difficulty']}/{each['length']}/{each['_id']}"]) == each["answer"]
        for group in ("all", each["difficulty"], each["length"]):
            right[group], total[group] = right.get(group, 0) + correct, total.get(group, 0) + 1
    groups = {"all": [*found.values()]}
    for each in questions:
        for group in (each.group, benchmark.groupings["length"](each.question_id).split("(")[-1].rstrip(")")):
            groups.setdefault(group, []).append(found[each.question_id])
    assert {*groups} == {*total} and 0 < right["all"] < 300
    for group, of_group in groups.items():
        assert fmean(of_group) == pytest.approx(100 * right[group] / total[group], abs=1e-12)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"answer": "E"}, "answer is 'E'; expected one of A, B, C, D"),
        ({"difficulty": "medium"}, "difficulty is 'medium'; expected one of easy, hard"),
        ({"length": 7}, "length is a number; expected a text"),
        ({"choice_C": None}, "choice_C is null"),
        ({"_id": "id0"}, r"_id id0 is also in data\.jsonl:1"),
    ],
)
def test_a_row_of_another_form_is_named(wrong: dict[str, Any], words: str, folder: Path) -> None:
    write_jsonl(folder / "data.jsonl", [row(0), row(1, **wrong)])
    with refused("evaluation.benchmark_data", rf"longbench_v2\.data: .*data\.jsonl:2: {words}"):
        asked(_project(folder))


def test_a_record_that_is_no_object_is_named(folder: Path) -> None:
    (folder / "data.jsonl").write_text("[1]\n")
    with refused("evaluation.benchmark_data", r"data\.jsonl:1: it is no object"):
        asked(_project(folder))


@pytest.mark.parametrize(
    "text",
    ["", "$DOC$ $Q$", TEMPLATE.replace("$C_D$", ""), TEMPLATE + "$COT$", TEMPLATE.replace("correct answer", "choice")],
)
def test_another_prompt_is_named(text: str, folder: Path) -> None:
    (folder / "0shot.txt").write_text(text)
    with refused("evaluation.benchmark_data", r"longbench_v2\.prompt: .*0shot\.txt"):
        asked(_project(folder))


@pytest.mark.parametrize(
    ("options", "code", "place"),
    [
        ({"data": None}, "evaluation.benchmark_files", r"longbench_v2\.data: .*resolve/main/data\.json"),
        ({"data": "nowhere"}, "data.missing", r"longbench_v2\.data: .*resolve/main/data\.json"),
        ({"prompt": None}, "evaluation.benchmark_files", r"longbench_v2\.prompt: .*0shot\.txt"),
        ({"prompt": "none.txt"}, "data.missing", r"longbench_v2\.prompt: .*0shot\.txt"),
    ],
)
def test_missing_files_are_named(options: dict[str, Any], code: str, place: str, folder: Path) -> None:
    with refused(code, place):
        scored_benchmarks(_project(folder, **options))
