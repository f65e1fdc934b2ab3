"""What answers, scores, judgments and contamination of a benchmark are made from, and what makes them stale."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import all_benchmarks, asking_benchmarks
from gateau_dagster.pipeline.declared import pipeline_of
from tests.features.evaluation.benchmarks_in_test.quiz import Quiz
from tests.features.evaluation.experiment_builders import Unmeasured
from tests.features.evaluation.quiz import quiz
from tests.pipeline.code_versions import raise_version
from tests.pipeline.configured import configured, stale, versions

__all__ = ["quiz"]
ENGINE = {"base_url": "http://one/v1", "model": "m"}
ANSWERS = {"answers/quiz", "scores/quiz"}
BOTH = {"contamination/quiz", "short_contamination/quiz"}


def asking(folder: Path, **changes: Any) -> Config:
    return configured(folder, **{"evaluation.benchmarks": ["quiz"], **changes})


def made_again(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    found = stale(versions(asking(folder, **before)), versions(asking(folder, **after)))
    return {each for each in found if each.split("/")[0] in {"answers", "scores", "evaluation"}}


def test_how_thoughts_are_graded_changes_the_scores_alone(
    tmp_path: Path, quiz: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made_again(tmp_path, {}, {"evaluation.thoughts": "keep"}) == {"scores/quiz"}
    before = versions(asking(tmp_path))
    raise_version(monkeypatch, "gateau_dagster.features.evaluation.grading.CODE_VERSION")
    found = stale(before, versions(asking(tmp_path)))
    assert "scores/quiz" in found and "answers/quiz" not in found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_url", "http://two/v1"),
        ("key", "KEY"),
        ("concurrency", 2),
        ("retries", 1),
        ("timeout", 9.0),
        ("token_limit", None),
    ],
)
def test_where_a_server_is_and_how_it_is_asked_changes_none(name: str, value: Any, tmp_path: Path, quiz: str) -> None:
    before, after = {"evaluation.engine": ENGINE}, {"evaluation.engine": {**ENGINE, name: value}}
    assert stale(versions(asking(tmp_path, **before)), versions(asking(tmp_path, **after))) == set()
    for change in ({"model": "n"}, {"temperature": None}, {"seed": 3}, {"extra_body": {"top_k": 1}}):
        assert made_again(tmp_path, before, {"evaluation.engine": {**ENGINE, **change}}) == ANSWERS


def test_other_code_answers_again(tmp_path: Path, quiz: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(asking(tmp_path))
    raise_version(monkeypatch, "gateau_dagster.features.evaluation.generation.answering.CODE_VERSION")
    assert stale(before, versions(asking(tmp_path))) == {*ANSWERS, "experiment", "untouched_experiment", "report"}


def register(monkeypatch: pytest.MonkeyPatch, *bases: type, **changes: Any) -> None:
    """Another `quiz` with these methods and class variables, of the same file: its digest is in the version."""
    known: Any = all_benchmarks()
    own = {"name": "quiz", "__module__": Quiz.__module__, **changes}
    monkeypatch.setitem(known, "quiz", type("Changed", bases or (Quiz,), own))


def test_both_parts_of_the_data_are_compared_by_themselves(tmp_path: Path, quiz: str) -> None:
    pipeline = pipeline_of(asking(tmp_path))
    long, short = (pipeline.by_key[key] for key in sorted(BOTH))
    assert pipeline.required >= BOTH
    assert (long.reads, short.reads) == ({"raw_long_sft": "fingerprint"}, {"short_chat_mix": "content"})
    assert len(pipeline.partitions(long.key)) == 2 and pipeline.partitions(short.key) == [None]
    made = {"models.further": {"path": "homologous:short", "homologous": {"texts": "t", "length": 512}}}
    on_made = pipeline_of(asking(tmp_path, **made, **{"training.model": "further"})).by_key[long.key]
    assert on_made.reads == {**long.reads, "homologous_model/further": "content"}
    without_chats = Config.model_validate(asking(tmp_path).model_dump(exclude={"short_chat"}))
    assert BOTH & {*pipeline_of(without_chats).by_key} == {long.key}


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ({"evaluation.template": "chat"}, ANSWERS),
        ({"evaluation.input_length": 100}, ANSWERS),
        ({"evaluation.engine": ENGINE}, ANSWERS),
        ({"evaluation.quiz": {"words": 9}}, ANSWERS | BOTH),
        ({"scoring.dtype": "float32"}, ANSWERS | BOTH),
        ({"training.seed": 7}, ANSWERS),
        ({"short_chat.fraction": 0.5}, {*ANSWERS, "short_contamination/quiz"}),
        ({"scoring.max_length": 512}, ANSWERS | BOTH),  # questions may go up to it
        ({"models.long.path": "a/other"}, ANSWERS | BOTH),  # or be measured in its tokens
        ({"models.short.path": "a/other"}, ANSWERS),
        ({"selection.fraction": 0.5}, ANSWERS),
    ],
)
def test_what_is_made_again_for_what(change: Mapping[str, Any], made: set[str], tmp_path: Path, quiz: str) -> None:
    found = stale(versions(asking(tmp_path)), versions(asking(tmp_path, **change)))
    assert found & (ANSWERS | BOTH) == made


def test_settings_and_code_that_change_the_questions_count(
    tmp_path: Path, quiz: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions(asking(tmp_path))
    register(monkeypatch, settings=lambda _: {"files": "digest"})
    assert stale(before, versions(asking(tmp_path))) & BOTH == BOTH
    register(monkeypatch, code_version="2")
    assert stale(before, versions(asking(tmp_path))) & BOTH == BOTH
    register(monkeypatch)
    assert stale(before, versions(asking(tmp_path))) & BOTH == set()
    with monkeypatch.context() as raised:
        raise_version(raised, "gateau_dagster.features.evaluation.contamination.TOUCHED_CODE_VERSION")
        assert stale(before, versions(asking(tmp_path))) == {"untouched_experiment", "report"}
    raise_version(monkeypatch, "gateau_dagster.features.evaluation.contamination.CODE_VERSION")
    assert stale(before, versions(asking(tmp_path))) == {*BOTH, "untouched_experiment", "report"}


def test_only_questions_from_elsewhere_are_compared(tmp_path: Path, quiz: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that are made from the data stand in them; what measures without asking has none."""
    assert {*asking_benchmarks(asking(tmp_path))} == {quiz}
    register(monkeypatch, reads=lambda _: {"raw_long_sft": "content"})
    assert asking_benchmarks(asking(tmp_path)) == {}
    register(monkeypatch, Unmeasured)
    assert asking_benchmarks(asking(tmp_path)) == {}
    assert asking_benchmarks(configured(tmp_path)) == {}


def test_the_experiment_without_touched_questions_reads_both_parts_of_the_data(tmp_path: Path, quiz: str) -> None:
    found = pipeline_of(asking(tmp_path)).by_key["untouched_experiment"]
    assert {*found.reads} == {"variant/checkpoint", "scores/quiz", *BOTH}
    changed = stale(versions(asking(tmp_path)), versions(asking(tmp_path, **{"evaluation.reference": "checkpoint"})))
    assert "untouched_experiment" in changed and not changed & BOTH
    assert "untouched_experiment" not in pipeline_of(configured(tmp_path)).by_key


def test_without_touched_questions_judging_costs_the_same(
    tmp_path: Path, quiz: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table says what judging took, as the experiment does: by the judgments, and by what they are worth now."""
    register(monkeypatch, Quiz, RatedBenchmark, requests=lambda *_: [])
    judge = {"base_url": "http://localhost/v1", "model": "m", "prices": {"prompt": 1, "reply": 2}}
    before = asking(tmp_path, **{"evaluation.judge": judge})
    assert "judgments/quiz" in pipeline_of(before).by_key["untouched_experiment"].reads
    dearer = asking(tmp_path, **{"evaluation.judge": {**judge, "prices": {"prompt": 1, "reply": 3}}})
    tables = {"experiment", "untouched_experiment"}
    assert stale(versions(before), versions(dearer)) - {"report"} == tables


FILES = {key: f"s3://bucket/{key}" for key in ("questions", "references", "prompts")}
JUDGE = {
    "base_url": "http://localhost:1/v1",
    "model": "judge",
    "pairs": [["base", "checkpoint"]],
    "characteristics": 3,
}


def judged_versions(folder: Path) -> dict[str, str]:
    asked = {"evaluation.benchmarks": ["mt_bench"], "evaluation.mt_bench": FILES, "evaluation.judge": JUDGE}
    return {asset.key: asset.code_version for asset in pipeline_of(configured(folder, **asked)).assets}


@pytest.mark.parametrize(
    ("constant", "asset"),
    [
        ("features.evaluation.declarations.PAIRS_CODE_VERSION", "pairwise/mt_bench"),
        ("features.evaluation.judging.characteristics.CODE_VERSION", "characteristics"),
    ],
)
def test_each_is_made_again_by_other_code(
    constant: str, asset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = judged_versions(tmp_path)
    raise_version(monkeypatch, f"gateau_dagster.{constant}")
    after = judged_versions(tmp_path)
    assert {key for key, version in after.items() if version != before[key]} == {asset}


def test_overlaps_are_found_after_the_model_that_counts_the_tokens_of_questions(tmp_path: Path, quiz: str) -> None:
    made = {"path": "homologous:short", "homologous": {"texts": "t", "length": 512, "tokens_per_step": 1024}}
    keys = [*pipeline_of(asking(tmp_path, **{"models.long": made, "training.model": "long"})).by_key]
    assert keys.index("homologous_model/long") < min(keys.index(each) for each in BOTH)
