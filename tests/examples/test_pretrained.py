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
from tests import tiny_models
from tests.benchmarks.questions import answer, write_questions
from tests.project import ROOT, command_environment

FOLDER = ROOT / "examples" / "pretrained"
QUESTIONS = 300


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module under a name of its own: other examples have a run.py, too."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("pretrained_example", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


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
