"""Which file is read, and what its paths are relative to."""

import os
import textwrap
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project, parse_project
from tests.config.test_load import GOOD
from tests.error_codes import refused


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.yaml").write_text(GOOD + "storage: {root: ./store}")
    monkeypatch.chdir(tmp_path)
    config = load_project("sub/g.yaml")
    assert config.folder == tmp_path / "sub"
    assert config.located_root == str(tmp_path / "sub" / "store")
    assert config.work_folder == tmp_path / "sub" / ".gateau" / "g"
    (tmp_path / "sub" / "g.yaml").rename(tmp_path / "sub" / "gateau.yaml")
    assert load_project(tmp_path / "sub" / "gateau.yaml").work_folder == tmp_path / "sub" / ".gateau"


@pytest.mark.parametrize("root", ["s3://bucket/prefix", "/absolute/store"])
def test_addresses_and_absolute_paths_stay_as_they_are(root: str) -> None:
    config = parse_project(GOOD + f"storage: {{root: '{root}'}}", folder=Path("/project"))
    assert config.located_root == root


def test_the_home_folder_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = parse_project(GOOD + "storage: {root: ~/store}", folder=Path("/project"))
    assert config.located_root == "/home/someone/store"


def test_the_environment_names_the_file_and_an_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("long.jsonl", f"{name}.jsonl"))
    monkeypatch.setenv("GATEAU_CONFIG", str(tmp_path / "one.yaml"))
    assert load_project().long_sft.path == "one.jsonl"
    assert load_project(tmp_path / "two.yaml").long_sft.path == "two.jsonl"
    monkeypatch.setenv("GATEAU_CONFIG", "demo")
    assert load_project().demo is not None
    assert load_project(tmp_path / "two.yaml").long_sft.path == "two.jsonl"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xe9\n")
    for file, cause in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "Is a directory"), (latin, "not UTF-8")):
        with refused("config.unreadable", cause) as failure:
            load_project(file)
        assert str(file) in str(failure.value) and "--config" in str(failure.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(GOOD)
    file.chmod(0)
    with pytest.raises(GateauError, match="Permission denied"):
        load_project(file)


def test_the_design_page_s_own_example_is_valid() -> None:
    example = textwrap.dedent("""\
        storage: {root: ./gateau_store}
        long_sft: {path: data/long*.jsonl, shards: 16}
        short_chat: {path: data/sharegpt.json, fraction: 1.0}
        models:
          short: {path: meta-llama/Llama-2-7b-hf, rope_theta: 2000000, context: full}
          long: {path: THUDM/LongAlign-7B-64k-base}
        scoring: {max_length: 65536, segment_length: 128, dtype: bfloat16, device: auto}
        selection: {method: gateau, preset: robust, alpha: 0.8, fraction: 0.1}
        training: {enabled: true}
        evaluation: {}
        """)
    config = parse_project(example, folder=Path())
    assert isinstance(config, Config) and config.models["short"].rope_theta == 2_000_000
