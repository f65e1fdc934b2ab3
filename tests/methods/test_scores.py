"""The method `scores`: a file in every form, its faults with the ids, its fingerprint, and the key's short form."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config.selection import SelectionConfig
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.input_versions import glance, input_versions
from gateau_dagster.pipeline.inputs import inputs_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.selection.wording import ranked_by
from gateau_dagster.storage.files import Files
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project

SCORES = pl.DataFrame({"sample_id": ["s00000", "s00001", "s00002", "s00003"], "score": [0.5, 2.0, -1.0, None]})


def jsonl(scores: pl.DataFrame) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in scores.to_dicts()).encode()


def write(scores: pl.DataFrame, file: Path) -> None:
    forms: dict[str, Callable[[], object]] = {
        ".parquet": lambda: scores.write_parquet(file),
        ".csv": lambda: scores.write_csv(file),
        ".jsonl": lambda: file.write_bytes(jsonl(scores)),
        ".gz": lambda: file.write_bytes(gzip.compress(jsonl(scores))),
    }
    forms[file.suffix]()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), samples=4, shards=1)


@pytest.fixture
def project(made: Path) -> Path:
    """A project that ranks by my_scores.parquet, which is there."""
    change_config(made, selection={"method": {"scores": "my_scores.parquet"}, "compare": []})
    write(SCORES, made.parent / "my_scores.parquet")
    return made


def found(file: Path) -> dict[str, Any]:
    config = load_project(file)
    raw = pl.DataFrame({"sample_id": ["s00003", "s00002", "s00001", "s00000"]})
    method = chosen_methods(config)["scores"]
    method.check_data(raw)
    return dict(method.scores({"raw_long_sft": raw}).iter_rows())


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.jsonl", "a.jsonl.gz"])
def test_every_form_of_the_file(project: Path, name: str) -> None:
    write(SCORES, project.parent / name)
    change_config(project, selection={"method": {"scores": name}})
    assert found(project) == dict(SCORES.iter_rows())


def test_numbers_as_ids_and_whole_numbers_as_scores(project: Path) -> None:
    (project.parent / "a.csv").write_text("score,sample_id,more\n3,s00001,x\n4,s00000,y\n")
    change_config(project, selection={"method": {"scores": "a.csv"}})
    assert found(project) == {"s00000": 4.0, "s00001": 3.0, "s00002": None, "s00003": None}
    (project.parent / "b.csv").write_text("sample_id,score\n17,1\n")
    change_config(project, selection={"method": {"scores": "b.csv"}})
    scores = chosen_methods(load_project(project))["scores"].scores(
        {"raw_long_sft": pl.DataFrame({"sample_id": ["17"]})}
    )
    assert scores["score"].to_list() == [1.0]
    (project.parent / "a.csv").write_bytes("\ufeffsample_id,score\n0017,1e-2\n0018,\n".encode())
    change_config(project, selection={"method": {"scores": "a.csv"}})
    (scores,) = chosen_methods(load_project(project)).values()
    raw = pl.DataFrame({"sample_id": ["0017", "0018", "17"]})
    assert scores.scores({"raw_long_sft": raw})["score"].to_list() == [0.01, None, None]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ({"sample_id": ["s00000", "s00001", "s00000"], "score": [1, 2, 3]}, "more than once: s00000"),
        ({"sample_id": ["s00000", "s00001"], "score": [1.0, float("nan")]}, "not finite, of s00001"),
        ({"sample_id": ["s00000"], "score": [float("inf")]}, "not finite, of s00000"),
        ({"sample_id": ["s00000", None], "score": [1.0, 2.0]}, "rows without a sample_id"),
        ({"id": ["s00000"], "score": [1.0]}, "no column sample_id: it has id, score"),
        ({"sample_id": ["s00000"], "score": ["high"]}, "cannot be read"),
        ({"sample_id": ["s00000"], "score": [None]}, "has no scores: all are empty"),
        ({"sample_id": [], "score": []}, "has no scores"),
        ({"sample_id": ["s00000", "x0"], "score": [None, 1.0]}, "none of the samples: its first sample_id is x0"),
        ({"sample_id": ["x1", "x2"], "score": [1.0, 2.0]}, "none of the samples: its first sample_id is x1"),
    ],
)
def test_faults_are_named_with_their_ids(project: Path, rows: dict[str, Any], named: str) -> None:
    write(pl.DataFrame(rows), project.parent / "my_scores.parquet")
    with refused("methods.scores_file", match=named):
        found(project)
    with refused("methods.scores_file"):
        checked_plan(state_of(config=load_project(project)))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        (
            "a.jsonl",
            b'{"sample_id":"s00000","score":1}\n{"sample_id":"s00001","score":1,"score":2}\n',
            "twice in line 2",
        ),
        ("a.ndjson", b'{"sample_id":"s00000","sample_id":"s00001","score":1}\n', "gives sample_id twice in line 1"),
        ("a.jsonl", b'{"sample_id":"s00000","score":1,"\\u0073core":2}\n', "gives score twice in line 1"),
        ("a.csv", b"sample_id,score,score\ns00000,1,2\n", "has two columns score"),
        ("a.csv", b'\xef\xbb\xbf"sample_id",score,sample_id\ns00000,1,2\n', "has two columns sample_id"),
    ],
)
def test_a_row_with_two_scores_is_refused(project: Path, name: str, content: bytes, named: str) -> None:
    (project.parent / name).write_bytes(content)
    change_config(project, selection={"method": {"scores": name}})
    with refused("methods.scores_file", match=named):
        checked_plan(state_of(config=load_project(project)))


def test_a_text_that_mentions_a_score_is_none(project: Path) -> None:
    line = {"sample_id": "s00000", "score": 1.5, "note": '"score": 2, \\'}
    (project.parent / "a.jsonl").write_text(json.dumps(line) + "\n")
    change_config(project, selection={"method": {"scores": "a.jsonl"}})
    assert found(project)["s00000"] == 1.5


def test_a_missing_or_foreign_file_is_named(project: Path) -> None:
    (project.parent / "my_scores.parquet").write_text("no parquet")
    with refused("methods.scores_file", match="cannot be read"):
        found(project)
    (project.parent / "my_scores.parquet").unlink()
    with refused("data.missing", match=r"selection\.options\.scores: 'my_scores\.parquet' matches no"):
        checked_plan(state_of(config=load_project(project)))
    (project.parent / "a.txt").write_text("1")
    change_config(project, selection={"method": {"scores": "a.txt"}})
    with refused("methods.scores_file", match=r"is not one of \.parquet, \.csv"):
        found(project)


def test_samples_that_only_one_side_has_are_named(project: Path) -> None:
    write(
        pl.DataFrame({"sample_id": ["s00001", "s00002", "x"], "score": [1.0, None, 2.0]}),
        project.parent / "my_scores.parquet",
    )
    absent, unknown = (
        each for each in checks_of(state_of(config=load_project(project))).warnings if "my_scores" in each
    )
    assert "no score for 3 samples, which will not be chosen: s00000, s00002, s00003" in absent
    assert "my_scores.parquet has 1 sample that the data do not have" in unknown and unknown.endswith("x")


def test_the_content_counts_and_is_observed(project: Path) -> None:
    def versions() -> tuple[str, str, str]:
        state = state_of(config=load_project(project))
        (given,) = [each for each in inputs_of(state.config) if each.key == "input/scores_file"]
        assert state.asset("method_scores/scores").inputs == (given.key,)
        (version,) = input_versions(state, given).values()
        settings = state.resolved("method_scores/scores").settings
        return version.version, settings["content of its file"], glance(state.config)

    first = versions()
    assert first[0] == first[1]
    write(SCORES.with_columns(pl.col("score") + 1), project.parent / "my_scores.parquet")
    second = versions()
    assert all(one != two for one, two in zip(first, second, strict=True))
    write(SCORES, project.parent / "my_scores.parquet")
    assert versions()[:2] == first[:2], "the same content is the same version"


def test_a_file_on_s3(project: Path, bucket: str) -> None:
    Files(f"s3://{bucket}").write("team/a.jsonl", jsonl(SCORES))
    change_config(project, selection={"method": {"scores": f"s3://{bucket}/team/a.jsonl"}})
    assert found(project) == dict(SCORES.iter_rows())
    state = state_of(config=load_project(project))
    before = state.observed.files
    Files(f"s3://{bucket}").write("team/a.jsonl", jsonl(SCORES.head(3)))
    assert state_of(config=state.config).observed.files != before


def test_the_short_form_is_the_method_with_its_option() -> None:
    short = SelectionConfig.model_validate({"method": {"scores": "a.csv"}, "options": {"random": {"seed": 2}}})
    long = {"method": "scores", "options": {"random": {"seed": 2}, "scores": {"path": "a.csv"}}}
    assert short == SelectionConfig.model_validate(long)
    assert ranked_by(short) == "Method scores: a.csv"
