"""A broken plug-in through the real command: one message, exit status 1, and the tables of before."""

import hashlib
from pathlib import Path

import pytest
import yaml

from tests.cli.command import Command
from tests.kit.project import sample, write_samples

OWN = """
import sys
import polars as pl
from gateau_dagster.methods.method import Method

class Own(Method):
    name, title, source, per_sample = "own", "Own.", "here", True
    def reads(self):
        return {"raw_long_sft": ["sample_id", "context"]}
    def score(self, tables):
        raw = tables["raw_long_sft"]
        return raw.select("sample_id", score=pl.col("context").str.len_chars())
"""
LAST = 'return raw.select("sample_id", score=pl.col("context").str.len_chars())'


def tables(folder: Path) -> dict[str, str]:
    """The content of every table and page of the store."""
    files = [file for file in (folder / "store").rglob("*") if file.suffix in {".parquet", ".html"}]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture
def chosen(command: Command, tmp_path: Path) -> Path:
    """A project without a model that was selected by its own method."""
    write_samples(tmp_path / "long.jsonl", [sample(number) for number in range(8)])
    (tmp_path / "own.py").write_text(OWN)
    content = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": 1},
        "selection": {"method": "own", "plugins": ["own.py"], "fraction": 0.5},
    }
    (tmp_path / "gateau.yaml").write_text(yaml.safe_dump(content))
    status, _, err = command("run", "--until", "selected_subset")
    assert status == 0, err
    return tmp_path


def test_a_broken_method_ends_the_run_and_nothing_is_lost(command: Command, chosen: Path) -> None:
    before = tables(chosen)
    assert "store/selected_subset.parquet" in before
    for body, code in {
        "raise ValueError('no\\nscore')": "plugins.code",
        "raise KeyboardInterrupt": "plugins.code",
        LAST.replace("raw", "raw.head(4)"): "plugins.result",
    }.items():
        (chosen / "own.py").write_text(OWN.replace(LAST, body))
        status, out, err = command("run", "--until", "selected_subset")
        assert status == 1 and "defect" not in out + err, out + err
        said = " ".join((out + err).split())
        assert f"[{code}]" in said and "method own: score()" in said and "own.py" in said, said
        assert tables(chosen) == before
