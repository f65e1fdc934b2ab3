"""A store among its own inputs is refused before anything runs: its tables would be taken for samples."""

from pathlib import Path

import pytest

from gateau_dagster.pipeline.project import parse_project
from tests.kit.error_codes import refused

METHOD = "selection: {method: length}\n"


def text(path: str, root: str) -> str:
    return f"long_sft: {{path: '{path}'}}\nstorage: {{root: '{root}'}}\n{METHOD}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "own").mkdir(parents=True)
    (tmp_path / "long.jsonl").touch()
    (tmp_path / "link").symlink_to("data")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (".", "store"),
        ("data", "data"),
        ("data", "data/own/store"),
        ("data", "link/store"),
        ("link", "./data/store"),
        ("**/*.parquet", "store"),
        ("data/**/*", "data/store"),
        ("dat*/**/*.json", "data/store"),
        ("s3://bucket/all", "s3://bucket/all/store"),
        ("s3://bucket/all/", "s3://bucket/all"),
    ],
)
def test_a_store_among_the_input_is_refused(folder: Path, path: str, root: str) -> None:
    with refused("storage.root_in_input") as failure:
        parse_project(text(path, root), folder=folder)
    assert str(failure.value).splitlines()[1].startswith(f"  gateau.yaml:2: storage.root: {root} is inside {path!r}")


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("long.jsonl", "."),
        ("data", "store"),
        ("data", "."),
        ("data", "database"),
        (".", ".store"),
        ("*.parquet", "store"),
        ("**/*.jsonl", "store"),
        ("s3://bucket/all", "s3://bucket/all-tables"),
        ("s3://bucket/all", "store"),
    ],
)
def test_a_store_apart_is_not(folder: Path, path: str, root: str) -> None:
    assert parse_project(text(path, root), folder=folder).storage.root == root


def test_a_store_in_a_model_s_folder_would_be_another_model_each_time(folder: Path) -> None:
    models = "models: {short: {path: data/own}, long: {path: data}}\n"
    with refused("storage.root_in_input", r"data/store.*'data'.*models\.long\.path"):
        parse_project(text("long.jsonl", "data/store") + models, folder=folder)
    assert parse_project(text("long.jsonl", ".") + models, folder=folder)


def test_the_texts_of_a_homologous_model_are_input_too(folder: Path) -> None:
    models = (
        "models:\n  short: {path: data}\n"
        "  long: {path: 'homologous:short', homologous: {texts: [long.jsonl, .], length: 512}}\n"
    )
    with refused("storage.root_in_input", r"'\.'.*models\.long\.homologous"):
        parse_project(text("long.jsonl", "store") + models, folder=folder)
