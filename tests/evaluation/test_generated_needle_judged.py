"""LongAlign's needle by a judge: what it is told, and how its ratings are read, as in LongAlign's code."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.generated_needle import GeneratedNeedleOptions
from gateau_dagster.evaluation.generated_needle_judged import GeneratedNeedleJudged
from gateau_dagster.evaluation.registry import scored_benchmarks
from tests.error_codes import refused

from . import official
from .builders import configured, loaded
from .mt_bench_files import JUDGE
from .scored_builders import asked, digests, materials
from .test_generated_needle import write_official

CODE = """
USER_TEMPLATE = 'Asked {input}{criteria}Right {reference}\\nSaid {prediction}!'
SYSTEM_TEMPLATE = 'Judge.'
CRITERIA = {'accuracy': 'Score 1: no.'}
def get_criteria():
    cri = 'Look at:\\n'
    return cri
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_official(tmp_path / "needle")
    (tmp_path / "needle" / "eval.py").write_text(CODE)
    (tmp_path / "needle" / "config-eval.yaml").write_text(
        'prompt: {needle: "\\nIt is 7.\\n", retrieval_question: "Key?"}'
    )
    return tmp_path


def _config(folder: Path, judge: Any = JUDGE, **options: Any) -> Config:
    given = {"official": "needle", "lengths": [300], "depths": [10, 50], "answer_tokens": 9, **options}
    asked = {"benchmarks": ["generated_needle_judged"], "generated_needle_judged": given}
    config = configured(evaluation=asked if judge is None else {**asked, "judge": judge})
    return config.model_copy(update={"folder": folder})


def _judge(official: Path) -> GeneratedNeedleJudged:
    return GeneratedNeedleJudged(configured(), GeneratedNeedleOptions(official=str(official)))


def _questions(folder: Path) -> list[Question]:
    config = _config(folder)
    return asked(config, materials(config, model=lambda _: loaded()))


@pytest.mark.parametrize("content", ["prompt: {needle: 1}", "other: 1", "prompt: text", "[" * 2_000])
def test_settings_that_are_not_the_published_ones_are_refused(folder: Path, content: str) -> None:
    (folder / "needle" / "config-eval.yaml").write_text(content)
    with refused("evaluation.benchmark_data", r"evaluation\.generated_needle_judged\.official"):
        _judge(folder / "needle").judge_texts()


def test_it_asks_as_the_needle_without_a_judge(folder: Path) -> None:
    """So that whatever that one has had answered is not asked again."""
    sections = _config(folder).evaluation.sections
    both = {"generated_needle": sections["generated_needle_judged"], **sections, "judge": JUDGE}
    config = configured(evaluation={"benchmarks": ["generated_needle", "generated_needle_judged"], **both})
    config = config.model_copy(update={"folder": folder})
    given = materials(config, model=lambda _: loaded())
    assert GeneratedNeedleJudged.asks_as == "generated_needle"
    assert digests(config, "generated_needle", given) == digests(config, "generated_needle_judged", given) != {}


def test_the_judge_is_told_the_needle_and_the_answer(folder: Path) -> None:
    questions = _questions(folder)
    assert [each.group for each in questions] == ["300/10", "300/50"]
    (request,) = _judge(folder).requests(questions[0], [" {input} \n"])
    assert [each["content"] for each in request.messages] == [
        "Judge.",
        "Asked Key?Look at:\naccuracy: Score 1: no.\nRight \nIt is 7.\n\nSaid {input}!",
    ]
    assert request.temperature == 0


def test_the_judge_s_words_are_longalign_s_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = official.code("LongAlign/Needle_test")
    code: Any = official.loaded(folder / "eval.py", monkeypatch, requests={})
    system, prompt = _judge(folder).judge_texts()
    needle = "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n"
    question = "What is the best thing to do in San Francisco?"
    wanted = code.get_user_template(question, "An {answer}.", needle, code.get_criteria())
    assert prompt.replace("{prediction}", "An {answer}.") == wanted and system == code.SYSTEM_TEMPLATE


def test_the_value_is_the_mean_rating(folder: Path) -> None:
    questions = _questions(folder)
    rows = [("300/10", 0, 10.0), ("300/10", 0, 7.0), ("300/50", 0, None)]
    judgments = pl.DataFrame(rows, schema=["question_id", "turn", "score"], orient="row")
    graded = _judge(folder).grade(questions, pl.DataFrame(), judgments)
    assert graded.table.rows() == [("300/10", "300/10", 8.5)]
    assert [each.sample_id for each in graded.rejected] == ["300/50"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"official": None}, r"generated_needle_judged\.official: is required: clone"),
        ({"official": "nowhere"}, r"generated_needle_judged\.official: .*clone"),
        ({"judge": None}, r"evaluation\.judge: generated_needle_judged needs a judge"),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(GateauError, match=words):
        scored_benchmarks(_config(folder, **options))


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
def test_other_files_than_the_published_ones_are_told(gap: str, changed: str, fault: str, folder: Path) -> None:
    (folder / "needle" / "eval.py").write_text(CODE.replace(gap, changed))
    with refused("evaluation.benchmark_data", rf"official: eval\.py is not the published file .*{fault}.*clone"):
        _questions(folder)
