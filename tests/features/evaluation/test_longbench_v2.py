"""LongBench v2: prompts and choices are those of its pred.py."""

from functools import partial
from pathlib import Path

import pytest

from gateau_dagster.features.evaluation.benchmarks.longbench_v2 import chosen_letter
from gateau_dagster.features.evaluation.statistics.results import _natural
from tests.features.evaluation.builders import asked, chosen
from tests.features.evaluation.suites import V2_PROMPT, configured, folder_of, write_longbench_v2
from tests.features.evaluation.suites import longbench_v2_row as row
from tests.kit.error_codes import refused

folder, _project = folder_of("longbench_v2"), partial(configured, "longbench_v2")


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
    assert [each.group for each in (first, second)] == ["easy", "hard"] and not chosen(_project(folder)).by_group


def test_only_the_chosen_lengths_are_asked(folder: Path) -> None:
    found = asked(_project(folder, lengths=["long", "medium"]))
    assert [each.question_id for each in found] == ["hard/long/id1", "easy/medium/id2"]
    write_longbench_v2(folder, [row(0)])
    with refused("evaluation.benchmark_data", r"longbench_v2\.data: no rows whose length is long or medium"):
        asked(_project(folder, lengths=["long", "medium"]))


def test_without_a_text_the_prompt_has_no_gap_for_it(folder: Path) -> None:
    (folder / "0shot.txt").write_text(V2_PROMPT.replace("$DOC$", ""))
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


def test_a_record_that_is_no_object_is_named(folder: Path) -> None:
    (folder / "data.jsonl").write_text("[1]\n")
    with refused("evaluation.benchmark_data", r"data\.jsonl:1: it is no object"):
        asked(_project(folder))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$DOC$ $Q$",
        V2_PROMPT.replace("$C_D$", ""),
        V2_PROMPT + "$COT$",
        V2_PROMPT.replace("correct answer", "choice"),
    ],
)
def test_another_prompt_is_named(text: str, folder: Path) -> None:
    (folder / "0shot.txt").write_text(text)
    with refused("evaluation.benchmark_data", r"longbench_v2\.prompt: .*0shot\.txt"):
        asked(_project(folder))
