"""An experiment whose store is a bucket: models go there and come back, and what was trained is found again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.pipeline.recipes import CHECKPOINTS, TRAINED
from gateau_dagster.resources.training import TrainingResource
from gateau_dagster.training.launch import TrainingSpec
from tests.assets.harness import pipeline_on
from tests.assets.test_variants import Trainings
from tests.kit.project import change_config, make_project


class Models(Trainings):
    """Makes the model that a training begins as, by another seed."""

    def write(self, spec: TrainingSpec) -> None:
        model = AutoModelForCausalLM.from_pretrained(spec.base_model)
        with torch.no_grad():
            next(model.parameters()).mul_(1 + 0.1 * len(self.specs))
        model.save_pretrained(spec.output)
        AutoTokenizer.from_pretrained(spec.base_model).save_pretrained(spec.output)


@pytest.mark.long
def test_models_lie_in_the_bucket_and_are_measured_from_there(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Models()
    monkeypatch.setattr(TrainingResource, "run", trainings.run)
    options: dict[str, Any] = {
        "storage": {"root": f"s3://{bucket}/team"},
        "selection": {"method": "length", "fraction": 0.25},
        "variants": {"methods": ["length"], "fractions": [0.25, 0.5], "also": ["full"]},
        "evaluation": {"benchmarks": ["heldout"], "heldout": {"share": 0.2, "samples": 4, "buckets": [64]}},
    }
    file = make_project(tmp_path, samples=24, shards=1, training=True, **options)
    with pipeline_on(file) as pipeline:
        pipeline.refresh()
        state, trained = pipeline.state(), len(trainings.specs)
        assert trained == 3, "the single run is one of the variants"
        assert not state.plan() and not (tmp_path / "store").exists()
        folders = state.store.files.names(TRAINED)
        assert len(folders) == 3 and state.store.files.exists(f"{TRAINED}/{folders[0]}/model.safetensors")
        rows = {name: state.store.read(CHECKPOINTS, name)["model"][0] for name in state.config.variant_set}
        assert rows["checkpoint"] == "store:checkpoint" and rows["full"].startswith(f"store:{TRAINED}/")
        value = state.store.read("experiment").select("variant", "value")
        assert value["value"].n_unique() == value.height - 1, "only the single run and its copy are equal"

        change_config(file, variants={"fractions": [0.25]})
        pipeline.refresh()
        change_config(file, variants={"fractions": [0.25, 0.5]})
        pipeline.refresh()
        assert len(trainings.specs) == trained, "what is in the bucket is found again"
        change_config(file, variants={"fractions": [0.25, 0.75]})
        pipeline.refresh()
        assert len(trainings.specs) == trained + 1
        assert len(pipeline.state().store.files.names(TRAINED)) == 3, "the model of no variant has made room"
