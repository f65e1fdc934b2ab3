"""The whole pipeline on a theta_B that shows no attention weights."""

from pathlib import Path

import pytest
import yaml

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.checks import checks_of
from tests.assets.harness import pipeline_on
from tests.kit.project import make_project
from tests.kit.tiny_models import replace_model
from tests.models.test_model_facts import NEXT

LADM = {"ladm": {"span_length": 8, "first_scored": 6}}
pytestmark = pytest.mark.long


def test_robust_works_and_paper_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=12, shards=3)
    replace_model(tmp_path / "short", "qwen3_next", seed=1, window=32, **NEXT)
    replace_model(tmp_path / "long", "qwen3_next", seed=2, window=512, **NEXT)
    with pipeline_on(file) as pipeline:
        (warning,) = checks_of(pipeline.state()).warnings
        assert "Qwen3NextForCausalLM" in warning and "gives no attention weights" in warning
        pipeline.refresh()
        scores = pipeline.state().read("combined_scores")
        assert scores["cas_paper"].null_count() == scores.height == 12
        assert scores["cas_robust"].null_count() == 0 and scores["score"].is_finite().all()
        content, runs = yaml.safe_load(file.read_text()), len(pipeline.runs())
        for wants in ({"preset": "paper"}, {"compare": ["longattn"]}, {"compare": ["ladm"], "options": LADM}):
            file.write_text(yaml.safe_dump({**content, "selection": {**content["selection"], **wants}}))
            with pytest.raises(GateauError, match=r"Qwen3NextForCausalLM.*selection\.preset robust"):
                pipeline.refresh()
        assert len(pipeline.runs()) == runs
