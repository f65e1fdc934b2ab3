"""No command writes over a file of the input, of the store or of the configuration."""

import os
from pathlib import Path

import pytest

from gateau_dagster.pipeline.outputs import check_output
from gateau_dagster.pipeline.project import parse_project
from tests.kit.error_codes import refused

TEXT = """
storage: {root: store}
long_sft: {path: [data/long.jsonl, many, "globs/*.jsonl", "deep/**/*.jsonl"]}
models:
  long: {path: model}
  made: {path: "homologous:long", homologous: {texts: [books, "shelf/*.txt"], short_texts: short.jsonl}}
scoring: {device: cpu}
selection:
  method: {scores: mine.parquet}
  plugins: [own.py]
training: {enabled: true, deepspeed: zero.json}
evaluation: {benchmarks: [graphwalks], graphwalks: {data: questions.jsonl}}
variants: {methods: [random], also: [{name: other, path: published}]}
"""
FILES = (
    *("data/long.jsonl", "many/a.jsonl", "globs/a.jsonl", "deep/x/a.jsonl", "books/a.jsonl", "shelf/a.txt"),
    *("short.jsonl", "mine.parquet", "own.py", "zero.json", "questions.jsonl", "model/config.json", "gateau.yaml"),
    *("published/config.json", "store/selected_subset.parquet", "store/cam/0.parquet", ".gateau/dagster.yaml"),
)

OWN = """
from gateau_dagster.methods.method import Method
class Own(Method):
    name, title, source, per_sample = "own", "", "", True
    def reads(self): return {}
    def score(self, tables): return None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Everything that TEXT names; of the files, only that they exist counts."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}" if name == "zero.json" else "")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "gateau.yaml").write_text(TEXT)
    (tmp_path / "way").symlink_to(".")
    (tmp_path / "there.jsonl").symlink_to("long.jsonl")
    (tmp_path / "out").mkdir()
    return tmp_path


def look(folder: Path, file: Path | str) -> None:
    config = parse_project((folder / "gateau.yaml").read_text(), folder=folder)
    check_output(config, folder / file, str(folder / "gateau.yaml"))


@pytest.mark.parametrize("name", FILES)
def test_no_file_of_the_project_is_an_output_by_whatever_name(folder: Path, name: str) -> None:
    soft, hard = folder / "out" / "soft.jsonl", folder / "out" / "hard.jsonl"
    soft.symlink_to(folder / name)
    os.link(folder / name, hard)
    config = parse_project(TEXT, folder=folder)
    for spelling in (name, f"out/../{name}", f"way/way/{name}", f"./{name}", soft, hard):
        if spelling == hard and name.startswith(("store/", ".gateau/")):
            continue  # a rename replaces the other name only, and nothing reads it
        with refused("storage.file_in_use"):
            check_output(config, folder / spelling, str(folder / "gateau.yaml"))


@pytest.mark.parametrize(
    "name",
    [
        *("many/new.jsonl", "many/deeper/new.jsonl", "globs/new.jsonl", "deep/new.jsonl", "deep/y/z/new.jsonl"),
        *("way/globs/new.jsonl", "books/new.jsonl", "model/new.jsonl", "published/new.jsonl", "store/new.parquet"),
        *("store/cam/9.parquet", "store", ".gateau/new.jsonl", ".gateau/deeper/new.jsonl"),
    ],
)
def test_no_output_becomes_a_part_of_the_input_or_of_the_store(folder: Path, name: str) -> None:
    with refused("storage.file_in_use"):
        look(folder, name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "selected.jsonl",
            "out/selected.jsonl",
            "new/deep/selected.parquet",
            "data/new.jsonl",
            "globs/deep/new.jsonl",
        ),
        *("globs/new.parquet", "store2/selected.parquet", "Long.jsonl", "shelf/new.jsonl", "there.jsonl"),
    ],
)
def test_any_other_file_may_be_written(folder: Path, name: str) -> None:
    look(folder, name)
    (folder / "elsewhere.jsonl").write_text("an earlier export")
    look(folder, "elsewhere.jsonl")


def test_in_a_store_around_the_project_only_its_tables_are_refused(folder: Path) -> None:
    text = TEXT.replace("{root: store}", "{root: .}").replace(", many", "").replace("mine.parquet", "data/mine.jsonl")
    for name in ("selected_subset.parquet", "raw_long_sft/0.parquet", "report.html", "raw_long_sft/new.jsonl"):
        with refused("storage.file_in_use"):
            check_output(parse_project(text, folder=folder), folder / name, "")
    check_output(parse_project(text, folder=folder), folder / "selected.jsonl", "")


@pytest.mark.parametrize("name", ["selected_subset.parquet", "raw_long_sft/0.parquet", "cam/*.parquet", "cam"])
def test_a_table_of_the_own_store_is_no_input(folder: Path, name: str) -> None:
    plain = f"long_sft: {{path: store/{name}}}\nstorage: {{root: way/store}}\nselection: {{method: length}}\n"
    models = "models: {short: {path: a}, long: {path: b}}\ntraining: {enabled: false}\n"
    with refused("storage.file_in_use"):
        parse_project(f"{plain.replace('length', 'gateau')}{models}", folder=folder)
    parse_project(plain.replace("way/store", "store2"), folder=folder)
