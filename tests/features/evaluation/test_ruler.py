"""RULER's tasks: each sample is solved by a slow reader, fills its length, and has the form of the published code's."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmark import Materials, Question
from gateau_dagster.features.evaluation.benchmarks.ruler import IN_ESSAYS, OFFLINE
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation import official
from tests.features.evaluation.builders import asked, chosen, project, values
from tests.features.evaluation.ruler_files import published_sample
from tests.features.evaluation.suites import RULER_FILES, Words, folder_of
from tests.kit.error_codes import refused

folder = folder_of("ruler")


def _found(folder: Path, task: str, *, length: int = 700, samples: int = 3, **options: Any) -> list[Question]:
    return asked(project(folder, "ruler", official="ruler", tasks=[task], lengths=[length], samples=samples, **options))


def _needle_values(question: Question) -> set[str]:
    keys = re.search(r"of (.+)\?$", question.turns[0])
    assert keys is not None
    wanted = re.split(r", and |, ", keys.group(1))
    said = re.findall(r"The (?:numbers|uuids) of ([^.]+) is (\S+)\.", question.turns[0])
    return {value for key, value in said if key in wanted}


def _followed(question: Question) -> set[str]:
    _, _, text = question.turns[0].rpartition("Track.")
    value, known = question.turns[0].rsplit(" ", 1)[1].strip("?"), set()
    for name, given in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", text):
        known |= {name} if given in {value, *known} else set()
    return known


def _listed(question: Question) -> set[str]:
    _, _, text = question.turns[0].rpartition("A list.")
    return {word for word, _ in Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |\n)", text)).most_common(10)}


def _coded(question: Question) -> set[str]:
    text = question.turns[0].removeprefix("Coded. ").removesuffix("\nWhich three?")
    return {word for word, _ in Counter(text.split()).most_common(4)} - {"..."}


SOLVED: dict[str, tuple[int, Callable[[Question], set[str]]]] = {
    "niah_single_1": (1, _needle_values),
    "niah_multikey_2": (1, _needle_values),
    "niah_multikey_3": (1, _needle_values),
    "niah_multivalue": (4, _needle_values),
    "niah_multiquery": (4, _needle_values),
    "vt": (5, _followed),
    "cwe": (10, _listed),
    "fwe": (3, _coded),
}


@pytest.mark.parametrize("task", SOLVED)
def test_a_slow_reader_finds_the_answers(task: str, folder: Path) -> None:
    found = _found(folder, task, haystack="essays")
    count, solve = SOLVED[task]
    for question in found:
        assert len(question.references) == count and solve(question) == {*question.references}
        tokens = len((question.turns[0] + question.prefill).split()) + question.generation.max_new_tokens
        assert 650 <= tokens <= 700
        assert question.group == f"{task}/700" and question.prefill.startswith(" ")
    assert len({question.turns for question in found}) == 3
    assert [each.digest for each in _found(folder, task, haystack="essays")] == [each.digest for each in found]
    assert _found(folder, task, haystack="essays", seed=1)[0].turns != found[0].turns


def test_one_value_is_asked_for_in_the_singular(folder: Path) -> None:
    single, several = _found(folder, "niah_single_1")[0], _found(folder, "niah_multivalue", haystack="essays")[0]
    assert single.turns[0].startswith("A number is here.") and single.prefill == " They is"
    assert several.turns[0].startswith("Some numbers are here.") and several.prefill == " They are"


def test_an_answer_is_worth_the_share_that_it_holds(folder: Path) -> None:
    config = project(folder, "ruler", official="ruler", tasks=["vt"], lengths=[700], samples=2)
    first, second = asked(config)
    said = {first.question_id: ", ".join(first.references[:2]).lower(), second.question_id: "none"}
    assert values(config, [first, second], said) == {first.question_id: 40.0, second.question_id: 0.0}


def test_without_essays_the_tasks_are_those_that_need_none(folder: Path) -> None:
    options = {"official": "ruler", "lengths": [700, 900], "samples": 1}
    found = asked(project(folder, "ruler", **options))
    assert {each.group for each in found} == {f"{task}/{length}" for task in OFFLINE for length in (700, 900)}
    groupings = chosen(project(folder, "ruler", **options)).groupings
    named = {heading: {of(each.question_id) for each in found} for heading, of in groupings.items()}
    assert named == {"task": {*OFFLINE}, "length": {"700", "900"}}
    with refused("evaluation.benchmark_files", r"ruler\.haystack.*niah_single_2"):
        scored_benchmarks(project(folder, "ruler", official="ruler", tasks=[IN_ESSAYS[0]]))


def test_a_length_without_room_is_named(folder: Path) -> None:
    with refused("evaluation.length", r"ruler\.lengths.*60"):
        _found(folder, "cwe", length=60)


_FORMS = (
    (r"One of the special magic (\w+) for .+ is: \S+?\.$", r"NEEDLE \1"),
    (r"(for) .+ (mentioned)", r"\1 KEY \2"),
    (r"VAR [A-Z]{5} = \d{5}$", "VAR A = 1"),
    (r"VAR [A-Z]{3} = \d{5}$", "VAR a = 1"),
    (r"VAR [A-Z]{5} = VAR [A-Z]{5}", "VAR A = VAR B"),
    (r"VAR [A-Z]{3} = VAR [A-Z]{3}", "VAR a = VAR b"),
    (r"value \d{5}", "value 1"),
    (r"( [A-Z]{3}){5}$", " NAMES"),
    (r"\d+\. .+$", "LIST"),
    (r"(?<=words\. )(\S+ )*\S+$", "CODED"),
)


def _form(text: str) -> list[str]:
    """Its lines without what is drawn at random, repeated ones once."""
    lines: list[str] = []
    for line in text.split("\n"):
        bare = line
        for pattern, form in _FORMS:
            bare = re.sub(pattern, form, bare)
        lines += [bare] if bare not in lines[-1:] else []
    return lines


def _without_order(lines: list[str]) -> list[str]:
    """The noise around them set aside: where needles stand among it is drawn."""
    return [line for line in lines if not line.startswith("The grass is green.")]


@pytest.mark.long
@pytest.mark.parametrize("task", OFFLINE)
def test_the_form_is_the_published_code_s(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own script beside ours on prompts of 1,500 words."""
    length = 1500
    theirs = published_sample(task, tmp_path, length=length, monkeypatch=monkeypatch)
    config = project(tmp_path, "ruler", official=str(official.code("RULER")), tasks=[task], lengths=[length], samples=1)
    monkeypatch.setattr(Materials, "base_tokenizer", lambda _: Words())
    (ours,) = asked(config)
    assert _without_order(_form(ours.turns[0])) == _without_order(_form(theirs["input"]))
    assert _form(ours.prefill) == _form(theirs["answer_prefix"])
    assert len(ours.references) == len(theirs["outputs"])
    assert len((ours.turns[0] + ours.prefill).split()) == pytest.approx(
        len((theirs["input"] + theirs["answer_prefix"]).split()), rel=0.05
    )
    noise = "The grass is green."
    assert ours.turns[0].count(noise) == pytest.approx(theirs["input"].count(noise), abs=3)


# RULER's questions over documents: those that answer one are among what is shown, as the published code shows them.


FILES = {"qa_1": "squad", "qa_2": "hotpotqa"}


def _over_documents(folder: Path, task: str, length: int, **options: Any) -> list[Question]:
    own = {"official": "ruler", "tasks": [task], "lengths": [length], "samples": 3, FILES[task]: f"{FILES[task]}.json"}
    return asked(project(folder, "ruler", **{**own, **options}))


def _shown(text: str) -> list[str]:
    """The names of the documents, in order; their numbers go up from 1."""
    found = re.findall(r"(?:No\.|Document) (\d+):\n(?:T\d+\n)?(\w+) says", text)
    assert [int(number) for number, _ in found] == [*range(1, len(found) + 1)]
    return [name for _, name in found]


def test_an_article_s_paragraphs_come_first(folder: Path) -> None:
    few, some, all_of_them = (_over_documents(folder, "qa_1", length) for length in (250, 600, 3000))
    for number, question in enumerate(few):
        names = _shown(question.turns[0])
        assert question.turns[0].endswith(f"Question: What does a{number} say?") and question.prefill == " It is:"
        assert question.references == (f"a{number}7", f"a{number}8")
        assert f"a{number}" in names and {name[0] for name in names} == {"a"} and len({*names}) == len(names) == 6
    names = [_shown(question.turns[0]) for question in some]
    assert all({f"a{place}" for place in range(10)} < {*each} and len(each) == 16 for each in names)
    assert len({*map(tuple, names)}) == 3 and names[0] != sorted(names[0])
    assert all(len(_shown(question.turns[0])) > len({*_shown(question.turns[0])}) == 30 for question in all_of_them)


def test_passages_of_a_question_are_among_others(folder: Path) -> None:
    for number, question in enumerate(_over_documents(folder, "qa_2", 600)):
        names = _shown(question.turns[0])
        assert {f"h{place}" for place in range(number, number + 4)} < {*names}
        assert question.references == (f"h{number}7",)


def test_without_their_files_they_are_left_out(folder: Path) -> None:
    options: dict[str, Any] = {"official": "ruler", "lengths": [700], "samples": 1}
    assert not any("qa" in each.group for each in asked(project(folder, "ruler", **options)))
    found = asked(project(folder, "ruler", **options, **RULER_FILES))
    assert {"qa_1/700", "qa_2/700"} < {each.group for each in found}


def test_one_of_the_right_answers_is_enough(folder: Path) -> None:
    config = project(folder, "ruler", official="ruler", tasks=["qa_1"], lengths=[600], samples=2, squad="squad.json")
    first, second = asked(config)
    worth = values(config, [first, second], {first.question_id: "It is A08.", second.question_id: "a0"})
    assert worth == {first.question_id: 100.0, second.question_id: 0.0}


@pytest.mark.parametrize("content", ['[{"title": 1}]', '{"data": [{"paragraphs": [{"qas": 5}]}]}', '{"data": []}'])
def test_another_file_is_named(content: str, folder: Path) -> None:
    (folder / "squad.json").write_text(content)
    with refused("evaluation.benchmark_data", r"ruler\.squad.*https://rajpurkar"):
        _over_documents(folder, "qa_1", 600)


@pytest.mark.long
@pytest.mark.parametrize("task", FILES)
def test_they_are_shown_as_by_the_published_code(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own script beside ours: the same question, as many documents, in the same words."""
    own = {"official": str(official.code("RULER")), "samples": 1}
    theirs = published_sample(task, folder, length=700, monkeypatch=monkeypatch)
    (ours,) = _over_documents(folder, task, 700, **own)
    assert ours.prefill == theirs["answer_prefix"] and [*ours.references] == theirs["outputs"]

    def parts(text: str) -> list[str]:
        opening, *shown = re.split(r"Document \d+:\n", text)
        last, _, closing = shown.pop().partition("\n\n")
        return [opening, closing, *sorted({each.rstrip("\n") for each in (*shown, last)})]

    both = [parts(text) for text in (ours.turns[0], theirs["input"])]
    assert both[0][:2] == both[1][:2] and len(both[0]) == len(both[1])
    known = json.dumps(json.loads((folder / f"{FILES[task]}.json").read_text()))
    assert all(shown.split("\n")[-1].split(".")[0] in known for shown in both[0][2:])
    assert len(_shown(ours.turns[0])) == len(_shown(theirs["input"]))
