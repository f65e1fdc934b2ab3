"""The example on a pretrained model: valid settings, a run with a tiny model and made questions, what it refuses."""

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.project import load_project
from tests.benchmarks.questions import answer, write_questions
from tests.kit import tiny_models
from tests.kit.project import ROOT, command_environment

FOLDER, HOMOLOGOUS = ROOT / "examples" / "pretrained", ROOT / "examples" / "homologous"
QUESTIONS = 300


def module_of(folder: Path) -> ModuleType:
    """Return an example's script as a module under a name of its own: each has a run.py."""
    spec = importlib.util.spec_from_file_location(f"{folder.name}_example", folder / "run.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return module_of(FOLDER)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), "--out", "my output", *options]
    return subprocess.run(
        command, cwd=folder, env=command_environment(), capture_output=True, text=True, check=False, timeout=900
    )


def test_the_settings_are_valid(example: ModuleType) -> None:
    config = Config.model_validate(example.configuration("some/model"))
    assert chosen_methods(config)
    assert {model.path for model in config.models.values()} == {"some/model"}
    assert "far_two_hop" in config.selection.ground_truth and "near" not in config.selection.ground_truth
    window = config.models["short"].window
    assert window is not None and window < example.TOKENS < config.scoring.max_length


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "./nowhere"], "./nowhere is neither a folder nor the name of a model"),
        (["--model", "a/b", "--questions", "none.jsonl"], "none.jsonl is not there"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, options: list[str], said: str) -> None:
    found = run(tmp_path, *options)
    assert found.returncode == 1 and said in found.stdout and "Traceback" not in found.stdout + found.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_ends_with_a_report_and_how_well_it_chose(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tokenizer = copy.deepcopy(tiny_models.tokenizer())
    tokenizer.add_tokens([answer(number) for number in range(1, QUESTIONS, 2)])  # or no answer is short
    config = tiny_models.model_config("llama", max_position_embeddings=4096, vocab_size=len(tokenizer))
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    write_questions(tmp_path / "nq.jsonl", QUESTIONS)
    options = ["--model", "tiny", "--questions", "nq.jsonl", "--per-kind", "1"]
    first = run(tmp_path, *options)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "AUROC" in first.stdout and "Report:" in first.stdout and "checkpoint" in first.stdout
    out = tmp_path / "my output"
    assert (out / "store" / "report.html").exists() and (out / "store" / "checkpoint" / "model.safetensors").exists()
    settings = yaml.safe_load((out / "gateau.yaml").read_text())
    assert settings["models"]["long"]["path"] == str(tmp_path / "tiny")
    again = run(tmp_path, *options)
    assert again.returncode == 0 and "Everything is up to date" in again.stdout


def test_the_settings_of_the_homologous_model_are_valid() -> None:
    example = module_of(HOMOLOGOUS)
    config = load_project(example.SETTINGS)
    options = config.models["long"].homologous
    assert config.homologous_models == ["long"] and options is not None and options.tokens is not None
    assert options.tokens * options.long_share < example.LONG_TOKENS, "no text occurs twice"
    assert options.tokens * (1 - options.long_share) < example.SHORT_TOKENS
    assert max(example.LONG_LENGTHS) == options.length


@pytest.mark.long
@pytest.mark.timeout(1800)  # two CPU minutes, on cores that may be shared
def test_theta_b_recalls_facts_at_distances_where_theta_a_is_at_chance(tmp_path: Path) -> None:
    example = module_of(HOMOLOGOUS)
    command = [sys.executable, str(HOMOLOGOUS / "run.py"), "--out", str(tmp_path)]
    first = subprocess.run(command, cwd=tmp_path, env=command_environment(), capture_output=True, text=True, check=True)
    assert "✓ homologous_model/long" in first.stdout
    found = example.recalls(tmp_path / "gateau.yaml", 100)
    assert found["theta_A"][128] >= 0.9
    for distance in (1000, 1500):
        assert found["theta_A"][distance] <= 0.3, "chance is 1/8"
        assert found["theta_B"][distance] >= 0.9
    again = subprocess.run(command, cwd=tmp_path, env=command_environment(), capture_output=True, text=True, check=True)
    assert "✓" not in again.stdout
