"""What the contamination of a benchmark's questions is made from, and for which benchmarks there is one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.registry import all_benchmarks
from gateau_dagster.pipeline.evaluation_assets import asking_benchmarks
from gateau_dagster.pipeline.pipeline import pipeline_of
from tests.evaluation.experiment_builders import Unmeasured
from tests.evaluation.quiz import Quiz, quiz
from tests.pipeline.code_versions import raise_version
from tests.pipeline.configured import configured, stale, versions

__all__ = ["quiz"]
BOTH = {"contamination/quiz", "short_contamination/quiz"}


def asking(folder: Path, **changes: Any) -> Config:
    return configured(folder, **{"evaluation.benchmarks": ["quiz"], **changes})


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
        ({"evaluation.quiz": {"texts": ["what?"]}}, BOTH),
        ({"short_chat.fraction": 0.5}, {"short_contamination/quiz"}),
        ({"scoring.max_length": 512}, BOTH),  # questions may go up to it
        ({"models.long.path": "a/other"}, BOTH),  # or be measured in its tokens
        ({"models.short.path": "a/other"}, set()),
        ({"selection.fraction": 0.5}, set()),
        ({"training.seed": 9}, set()),
    ],
)
def test_what_it_is_made_again_for(change: Mapping[str, Any], made: set[str], tmp_path: Path, quiz: str) -> None:
    assert stale(versions(asking(tmp_path)), versions(asking(tmp_path, **change))) & BOTH == made


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
        raise_version(raised, "gateau_dagster.evaluation.contamination.TOUCHED_CODE_VERSION")
        assert stale(before, versions(asking(tmp_path))) == {"untouched_experiment", "report"}
    raise_version(monkeypatch, "gateau_dagster.evaluation.contamination.CODE_VERSION")
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
