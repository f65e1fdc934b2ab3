"""RULER's questions over documents: those that answer one are among what is shown, as the published code shows them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.evaluation.benchmark import Materials, Question
from tests.error_codes import refused

from . import official
from .ruler_files import published_sample, write_documents, write_ruler
from .scored_builders import asked, project, values
from .test_ruler import Words

FILES = {"qa_1": {"squad": "squad.json"}, "qa_2": {"hotpotqa": "hotpotqa.json"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Materials, "base_tokenizer", lambda _: Words())
    write_ruler(tmp_path / "ruler")
    write_documents(tmp_path)
    return tmp_path


def _found(folder: Path, task: str, length: int, **options: Any) -> list[Question]:
    own = {"official": "ruler", "tasks": [task], "lengths": [length], "samples": 3, **FILES[task]}
    return asked(project(folder, "ruler", **{**own, **options}))


def _shown(text: str) -> list[str]:
    """The names of the documents, in order; their numbers go up from 1."""
    found = re.findall(r"(?:No\.|Document) (\d+):\n(?:T\d+\n)?(\w+) says", text)
    assert [int(number) for number, _ in found] == [*range(1, len(found) + 1)]
    return [name for _, name in found]


def test_an_article_s_paragraphs_come_first(folder: Path) -> None:
    few, some, all_of_them = (_found(folder, "qa_1", length) for length in (250, 600, 3000))
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
    for number, question in enumerate(_found(folder, "qa_2", 600)):
        names = _shown(question.turns[0])
        assert {f"h{place}" for place in range(number, number + 4)} < {*names}
        assert question.references == (f"h{number}7",)


def test_without_their_files_they_are_left_out(folder: Path) -> None:
    options: dict[str, Any] = {"official": "ruler", "lengths": [700], "samples": 1}
    assert not any("qa" in each.group for each in asked(project(folder, "ruler", **options)))
    found = asked(project(folder, "ruler", **options, **FILES["qa_1"], **FILES["qa_2"]))
    assert {"qa_1/700", "qa_2/700"} < {each.group for each in found}


def test_one_of_the_right_answers_is_enough(folder: Path) -> None:
    config = project(folder, "ruler", official="ruler", tasks=["qa_1"], lengths=[600], samples=2, **FILES["qa_1"])
    first, second = asked(config)
    worth = values(config, [first, second], {first.question_id: "It is A08.", second.question_id: "a0"})
    assert worth == {first.question_id: 100.0, second.question_id: 0.0}


@pytest.mark.parametrize("content", ['[{"title": 1}]', '{"data": [{"paragraphs": [{"qas": 5}]}]}', '{"data": []}'])
def test_another_file_is_named(content: str, folder: Path) -> None:
    (folder / "squad.json").write_text(content)
    with refused("evaluation.benchmark_data", r"ruler\.squad.*https://rajpurkar"):
        _found(folder, "qa_1", 600)


@pytest.mark.long
@pytest.mark.parametrize("task", FILES)
def test_they_are_shown_as_by_the_published_code(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own script beside ours: the same question, as many documents, in the same words."""
    own = {"official": str(official.code("RULER")), "samples": 1}
    theirs = published_sample(task, folder, length=700, monkeypatch=monkeypatch)
    (ours,) = _found(folder, task, 700, **own)
    assert ours.prefill == theirs["answer_prefix"] and [*ours.references] == theirs["outputs"]

    def parts(text: str) -> list[str]:
        opening, *shown = re.split(r"Document \d+:\n", text)
        last, _, closing = shown.pop().partition("\n\n")
        return [opening, closing, *sorted({each.rstrip("\n") for each in (*shown, last)})]

    both = [parts(text) for text in (ours.turns[0], theirs["input"])]
    assert both[0][:2] == both[1][:2] and len(both[0]) == len(both[1])
    known = json.dumps(json.loads((folder / f"{next(iter(FILES[task]))}.json").read_text()))
    assert all(shown.split("\n")[-1].split(".")[0] in known for shown in both[0][2:])
    assert len(_shown(ours.turns[0])) == len(_shown(theirs["input"]))
