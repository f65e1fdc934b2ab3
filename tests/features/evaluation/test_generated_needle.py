"""LongAlign's needle: where it is placed, what is asked, what is found; beside the published code where that is."""

import asyncio
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.evaluation.benchmark import Materials, Question
from gateau_dagster.features.evaluation.benchmarks.generated_needle import (
    RESERVED,
    GeneratedNeedleJudged,
    GeneratedNeedleOptions,
    NeedleText,
    RunningText,
    holds,
    running_text,
)
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation import official
from tests.features.evaluation.builders import asked, chosen, loaded, materials, project, values
from tests.features.evaluation.suites import JUDGE_CODE, Letters, configured, folder_of, write_needle
from tests.kit.error_codes import refused
from tests.kit.project import configured as plain


def _text(text: str, tokens: int) -> RunningText:
    return running_text(Letters(), [text], tokens=tokens)  # pyright: ignore[reportArgumentType]


def test_the_needle_stands_after_the_last_full_stop_before_its_depth() -> None:
    text = _text("One. Two. Three. ", 500)
    room = 300 - RESERVED - len("NEEDLE")
    plain = ("One. Two. Three. " * 20)[:room]
    for depth in (0, 1, 10, 50, 99):
        place = plain[: int(room * depth / 100)].rfind(".") + 1
        assert text.with_needle("NEEDLE", length=300, depth=depth) == f"{plain[:place]}NEEDLE{plain[place:]}"
    assert text.with_needle("NEEDLE", length=300, depth=100) == f"{plain}NEEDLE"
    with refused("evaluation.length", r"generated_needle\.lengths.*206"):
        text.with_needle("NEEDLE", length=206, depth=50)


def test_without_text_there_is_nothing_to_hide_it_in() -> None:
    with refused("evaluation.no_text", r"generated_needle\.haystack"):
        _text("", 10)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Eat a sandwich, and sit in the park.", True),
        ("You should EAT SANDWICH and sit in park!", True),
        ("Sit in the park and eat a sandwich", False),
        ("Eat a sandwich and sit in the parking lot", False),
        ("", False),
    ],
)
def test_found_is_what_the_question_does_not_say(answer: str, found: bool) -> None:
    text = NeedleText(
        needle="\nThe thing to do here is eat a sandwich and sit in the park.\n",
        question="What is the thing to do here?",
        frame="{context} {question}",
    )
    assert text.key == ["eat", "sandwich", "and", "sit", "in", "park"]
    assert holds(answer, text.key) == found


def _own(folder: Path, **options: Any) -> tuple[Any, Materials]:
    config = project(folder, "generated_needle", lengths=[260, 300], depths=[50, 10], answer_tokens=9, **options)
    documents = pl.DataFrame({"context": ["the note . recall of . " * 40, "the . "]})
    return config, materials(config, model=lambda _: loaded(), tables_of={"raw_long_sft": documents})


def test_questions_are_cells_in_the_project_s_documents(tmp_path: Path) -> None:
    config, given = _own(tmp_path)
    assert chosen(config).reads() == {"raw_long_sft": "fingerprint"}
    found = asked(config, given)
    assert [each.group for each in found] == ["260/10", "260/50", "300/10", "300/50"]
    assert all(each.generation.max_new_tokens == 9 and each.generation.temperature == 0 for each in found)
    assert [chosen(config).cell(each.question_id) for each in found[1:3]] == [(260, 0.5), (300, 0.1)]
    assert "brass clock" in found[0].references[0] and found[0].turns[0].endswith("of the harbour museum?")
    said = {found[0].question_id: "A brass clock that runs backwards at full moon", found[1].question_id: "a clock"}
    assert values(config, found, said) == {"260/10": 100.0, "260/50": 0.0}


def test_the_published_files_say_what_is_hidden_and_asked(tmp_path: Path) -> None:
    write_needle(tmp_path)
    config, given = _own(tmp_path, official="needle")
    assert not chosen(config).reads()
    prompt = asked(config, given)[0].turns[0]
    assert prompt.startswith("Be {brief}.\nthe note") and prompt.endswith("\n\nSay: What is the key?")


@pytest.mark.parametrize(
    ("options", "code", "place"),
    [
        ({"official": "./nowhere"}, "data.missing", r"generated_needle\.official"),
        ({"haystack": "nowhere/*.txt"}, "data.missing", r"generated_needle\.haystack"),
        ({"lengths": [200, 4000]}, "evaluation.length", r"generated_needle\.lengths"),
        ({"lengths": [10**6]}, "evaluation.length", r"generated_needle\.lengths"),
    ],
)
def test_what_cannot_be_made_is_named(options: dict[str, Any], code: str, place: str, tmp_path: Path) -> None:
    with refused(code, place):
        scored_benchmarks(project(tmp_path, "generated_needle", **options))


def test_other_files_than_the_published_ones_are_told(tmp_path: Path) -> None:
    write_needle(tmp_path)
    (tmp_path / "needle" / "prompt.py").write_text("def generate_prompt():\n  return 'content'\n")
    with refused("evaluation.benchmark_data"):
        asked(*_own(tmp_path, official="needle"))


class _Published(Letters):
    """What the published code asks of its tokenizer."""

    def __call__(self, text: str, **_: Any) -> Any:
        import torch

        return type("Encoded", (), {"input_ids": torch.tensor([super().__call__(text)["input_ids"]])})


def test_prompts_are_the_published_code_s_byte_for_byte(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own code beside ours on two essays, at every depth; its libraries that are not needed are left out."""
    folder = official.code("LongAlign/Needle_test")
    stubs = {"dotenv": {"load_dotenv": lambda: None}, "tiktoken": {}, "anthropic": {"Anthropic": None}}
    code: Any = official.loaded(folder / "prompt.py", monkeypatch, **stubs)
    monkeypatch.setattr(code.AutoTokenizer, "from_pretrained", lambda *_, **__: _Published())
    config = project(
        tmp_path, "generated_needle", official=str(folder), lengths=[1000, 4000], depths=[0, 10, 46, 90, 100]
    )
    monkeypatch.setattr(Materials, "base_tokenizer", lambda _: Letters())
    found = asked(config)
    settings = chosen(config).needle()
    published = code.Prompter(
        needle=settings.needle,
        haystack_dir=str(folder / "PaulGrahamEssays"),
        retrieval_question=settings.question,
        context_lengths=[1000, 4000],
        tokenizer_type="Huggingface",
        model_name="letters",
    )
    monkeypatch.setattr(code.glob, "glob", lambda pattern: sorted(map(str, Path(pattern).parent.glob("*.txt"))))
    for question in found:
        context = asyncio.run(published.generate_context(question.facts["length"], question.facts["depth"]))
        system, user = (message["content"] for message in published.generate_prompt(context))
        assert question.turns[0] == f"{system}\n{user}"
    assert len(found) == 10


# LongAlign's needle by a judge: what it is told, and how its ratings are read, as in LongAlign's code.


judged_folder = folder_of("generated_needle_judged")


def _judge(official: Path) -> GeneratedNeedleJudged:
    return GeneratedNeedleJudged(plain(), GeneratedNeedleOptions(official=str(official)))


def _questions(judged_folder: Path) -> list[Question]:
    return asked(configured("generated_needle_judged", judged_folder, lengths=[300]))


@pytest.mark.parametrize("content", ["prompt: {needle: 1}", "other: 1", "prompt: text"])
def test_settings_that_are_not_the_published_ones_are_refused(judged_folder: Path, content: str) -> None:
    (judged_folder / "needle" / "config-eval.yaml").write_text(content)
    with refused("evaluation.benchmark_data", r"evaluation\.generated_needle_judged\.official"):
        _judge(judged_folder / "needle").judge_texts()


def test_the_judge_is_told_the_needle_and_the_answer(judged_folder: Path) -> None:
    questions = _questions(judged_folder)
    assert [each.group for each in questions] == ["300/10", "300/50"]
    (request,) = _judge(judged_folder).requests(questions[0], [" {input} \n"])
    assert [each["content"] for each in request.messages] == [
        "Judge.",
        "Asked Key?Look at:\naccuracy: Score 1: no.\nRight \nIt is 7.\n\nSaid {input}!",
    ]


def test_the_judge_s_words_are_longalign_s_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    judged_folder = official.code("LongAlign/Needle_test")
    code: Any = official.loaded(judged_folder / "eval.py", monkeypatch, requests={})
    system, prompt = _judge(judged_folder).judge_texts()
    needle = "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n"
    question = "What is the best thing to do in San Francisco?"
    wanted = code.get_user_template(question, "An {answer}.", needle, code.get_criteria())
    assert prompt.replace("{prediction}", "An {answer}.") == wanted and system == code.SYSTEM_TEMPLATE


@pytest.mark.parametrize(
    ("gap", "changed", "fault"),
    [
        ("{prediction}", "{other}", ""),
        ("{prediction}", "", ""),
        ("{prediction}", "{prediction}{prediction}", ""),
        ("{prediction}", "{prediction:>3000000000}", r"\(\{prediction:>3000000000\} is more than a name"),
        ("{input}", "{input:>3000000000}", r"\(\{input:>3000000000\} is more than a name"),
        ("{reference}", "{reference.__class__}", r"\(\{reference\.__class__\} is more than a name"),
    ],
)
def test_other_files_of_the_judge_are_told(gap: str, changed: str, fault: str, judged_folder: Path) -> None:
    (judged_folder / "needle" / "eval.py").write_text(JUDGE_CODE.replace(gap, changed))
    with refused("evaluation.benchmark_data", rf"official: eval\.py is not the published file .*{fault}.*clone"):
        _questions(judged_folder)
