"""The whole pipeline on a theta_B that shows no attention weights."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.errors import GateauError
from tests.assets.harness import pipeline_on
from tests.models.test_known_attention import NEXT
from tests.project import make_project
from tests.tiny_models import model_config

pytestmark = pytest.mark.long


def _of_next(folder: Path, *, seed: int, window: int) -> None:
    """A Qwen3-Next in the place of the project's Llama, over the same vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shutil.rmtree(folder)
    torch.manual_seed(seed)
    config = model_config("qwen3_next", **NEXT, vocab_size=len(tokenizer), max_position_embeddings=window)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_robust_works_and_paper_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=12, shards=3)
    _of_next(tmp_path / "short", seed=1, window=64)
    _of_next(tmp_path / "long", seed=2, window=512)
    with pipeline_on(file) as pipeline:
        (warning,) = pipeline.state().warnings
        assert "Qwen3NextForCausalLM" in warning and "shows no attention weights" in warning
        pipeline.refresh()
        scores = pipeline.state().read("combined_scores")
        assert scores["cas_paper"].null_count() == scores.height == 12
        assert scores["cas_robust"].null_count() == 0 and scores["score"].is_finite().all()
        content = yaml.safe_load(file.read_text())
        content["selection"]["preset"] = "paper"
        file.write_text(yaml.safe_dump(content))
        runs = len(pipeline.runs())
        with pytest.raises(GateauError, match=r"Qwen3NextForCausalLM.*selection\.preset robust"):
            pipeline.refresh()
        assert len(pipeline.runs()) == runs
