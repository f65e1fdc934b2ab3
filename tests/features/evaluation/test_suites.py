"""Hold the laws that all benchmarks of questions share. A benchmark's own test file holds the rest."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.features.evaluation.benchmark import QuestionBenchmark
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import all_benchmarks, scored_benchmarks
from tests.features.evaluation.builders import answers, asked, chosen, digests, project
from tests.features.evaluation.suites import SUITES, configured, written
from tests.kit.error_codes import refused

KNOWN = all_benchmarks()
JUDGED = [name for name in SUITES if issubclass(KNOWN[name], RatedBenchmark)]


@pytest.fixture(params=SUITES)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A benchmark, whose files are in the folder."""
    written(request.param, tmp_path, monkeypatch)
    return request.param


def test_each_benchmark_of_questions_is_among_them() -> None:
    assert {*SUITES} == {name for name, kind in KNOWN.items() if issubclass(kind, QuestionBenchmark)}


def test_questions_are_the_same_each_time_wherever_their_files_are(name: str, tmp_path: Path) -> None:
    found, benchmark = asked(configured(name, tmp_path)), chosen(configured(name, tmp_path))
    assert found and all(each.group and all(each.turns) and each.generation.max_new_tokens > 0 for each in found)
    assert all(group(each.question_id) for each in found for group in benchmark.groupings.values())
    assert benchmark.sizes() is None or len(benchmark.sizes()) == len(found)
    before, settings = digests(configured(name, tmp_path), name), benchmark.settings()
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}_moved"))
    assert digests(configured(name, moved), name) == before
    assert chosen(configured(name, moved)).settings() == settings


def test_what_a_file_holds_is_a_setting_of_its_option(name: str, tmp_path: Path) -> None:
    given = {each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*") if each.is_file()}
    benchmark = chosen(configured(name, tmp_path))
    before = benchmark.settings()
    for files in benchmark.files():
        changed = Path(files.find()[0].address)
        changed.write_bytes(changed.read_bytes() + b"\n")
        after = benchmark.settings()
        assert (files.key or files.place) in {key for key in before if before[key] != after[key]}
        before = after
    for file in sorted(given):
        changed = tmp_path / file
        changed.write_bytes(changed.read_bytes() + b"\n\n")
        after = benchmark.settings()
        assert (after == before) == (file in SUITES[name].of_others), file
        before = after


@pytest.mark.parametrize("name", [name for name in SUITES if name not in JUDGED])
def test_right_answers_are_worth_most_and_empty_ones_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(name, tmp_path, monkeypatch)
    config = configured(name, tmp_path)
    benchmark, questions = chosen(config), asked(config)
    for answer, value in ((SUITES[name].right, 100.0), (lambda _: "", 0.0)):
        graded = benchmark.grade(questions, answers({each.question_id: answer(each) for each in questions}), None)
        assert graded.table.schema == tables.schema(tables.SCORES) and not graded.rejected
        assert graded.table.select("question_id", "group").rows() == [(q.question_id, q.group) for q in questions]
        assert graded.table["value"].to_list() == pytest.approx([value] * len(questions))
    first, *others = questions
    graded = benchmark.grade(questions, answers({first.question_id: SUITES[name].right(first)}), None)
    assert graded.table["question_id"].to_list() == [first.question_id]
    assert [each.sample_id for each in graded.rejected] == [each.question_id for each in others]


@pytest.mark.parametrize("name", JUDGED)
def test_ratings_reach_from_the_floor_to_the_highest_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(name, tmp_path, monkeypatch)
    config = configured(name, tmp_path)
    benchmark, questions = chosen(config), asked(config)
    turns = [(each, turn) for each in questions for turn in range(len(each.turns))]
    schema = {"question_id": pl.String(), "turn": pl.Int32(), "score": pl.Float64()}

    def graded(highest: bool) -> Any:
        worst, best = benchmark.ratings
        scores = [5 - 2 * (each.group == "hotpotqa") if best == 5 else best for each, _ in turns]
        rows = [
            (each.question_id, turn, float(score if highest else worst))
            for (each, turn), score in zip(turns, scores, strict=True)
        ]
        return benchmark.grade(questions, answers({}), pl.DataFrame(rows, schema=schema, orient="row"))

    assert graded(True).table["value"].to_list() == pytest.approx([benchmark.bounds[1]] * len(questions))
    lowest = graded(False)
    assert lowest.table.schema == tables.schema(tables.SCORES) and not lowest.rejected
    worst = [100 / 3, 20.0] if name == "longbench_judged" else [benchmark.floor] * len(questions)
    assert lowest.table["value"].to_list() == pytest.approx(worst)
    unrated = benchmark.grade(questions, answers({}), pl.DataFrame(schema=schema))
    assert unrated.table.is_empty() and len(unrated.rejected) == len(questions)
    (request, *_) = benchmark.requests(questions[0], [f" {{x}} {turn}\n" for turn in range(len(questions[0].turns))])
    assert request.temperature == 0 and "{x} 0" in request.messages[-1]["content"]


@pytest.mark.parametrize("name", JUDGED)
def test_a_judge_is_needed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(name, tmp_path, monkeypatch)
    with refused("evaluation.needs_judge", r"evaluation\.judge"):
        scored_benchmarks(project(tmp_path, name, **SUITES[name].options))


@pytest.mark.parametrize("name", ["longbench", "generated_needle"])
def test_a_judged_benchmark_asks_as_the_one_by_a_metric(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what that one has had answered is not asked again."""
    judged = f"{name}_judged"
    written(judged, tmp_path, monkeypatch)
    config = configured(judged, tmp_path)
    shared = {key: value for key, value in SUITES[judged].options.items() if not key.endswith("_prompt")}
    assert KNOWN[judged].asks_as == name  # type: ignore[attr-defined]
    assert digests(project(tmp_path, name, **shared), name) == digests(config, judged) != {}


@pytest.mark.parametrize(
    ("name", "option", "origin"),
    [(name, option, origin) for name, suite in SUITES.items() for option, origin in suite.origins.items()],
)
def test_missing_files_are_named_with_where_they_are_from(
    name: str, option: str, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(name, tmp_path, monkeypatch)
    for value, code in ((None, "evaluation.benchmark_files"), ("nowhere.txt", "data.missing")):
        with refused(code, rf"^evaluation\.{name}\.{option}: .*{origin}"):
            scored_benchmarks(configured(name, tmp_path, **{option: value}))


# Records of another form than the published one.


def records_of(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def write_records(file: Path, records: list[Any]) -> None:
    lines = "".join(json.dumps(each) + "\n" for each in records)
    file.write_text(json.dumps(records) if file.suffix == ".json" else lines, encoding="utf-8")


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, suite in SUITES.items() for file in suite.unread])
def test_a_field_that_is_missing_or_of_another_type_is_named(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(name, tmp_path, monkeypatch)
    *others, last = records_of(tmp_path / file)
    place = rf"{Path(file).name}{'' if name == 'helmet' else rf':{len(others) + 1}'}\b"
    for key in {*last} - {*SUITES[name].unread[file]}:
        faults: list[dict[str, Any]] = [{}, {key: None}, {key: 1.5}, {key: {"a": 1}}]
        for wrong in faults[:1] if name == "helmet" else faults:
            changed = {**{each: value for each, value in last.items() if each != key}, **wrong}
            write_records(tmp_path / file, [*others, changed])
            with refused("evaluation.benchmark_data", rf"^evaluation\.{name}\.\w+: .*{place}"):
                asked(configured(name, tmp_path))


@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.ids])
def test_a_repeated_record_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(name, tmp_path, monkeypatch)
    for file in SUITES[name].unread:
        whole = records_of(tmp_path / file)
        write_records(tmp_path / file, [*whole, whole[-1]])
        with refused("evaluation.benchmark_data", rf"{Path(file).name}:{len(whole) + 1}\b.* (is also in|is repeated)"):
            asked(configured(name, tmp_path))
        write_records(tmp_path / file, whole)


@pytest.mark.parametrize(("name", "label"), [(name, each) for name, suite in SUITES.items() for each in suite.labels])
def test_an_unknown_label_is_named_with_the_known_ones(
    name: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(name, tmp_path, monkeypatch)
    (file,) = SUITES[name].unread
    whole = records_of(tmp_path / file)
    write_records(tmp_path / file, [*whole[:-1], {**whole[-1], label: "unknown"}])
    with refused("evaluation.benchmark_data", rf"{file}:{len(whole)}: {label} is 'unknown'; expected one of \w"):
        asked(configured(name, tmp_path))
