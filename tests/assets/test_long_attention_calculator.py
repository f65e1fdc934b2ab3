"""LADM from end to end: its Long Attention Calculator made from a small model by long texts, and what it scores."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.features.demo.language import document
from tests.assets.harness import Pipeline, pipeline_on
from tests.kit.project import make_project, write_model
from tests.scoring.builders import eager_matrices, reference_parts, slow_cds

SHARDS, SAMPLES = 2, 6
UNTIL = "method_scores/ladm"
CALCULATOR = {
    "path": "homologous:tiny",
    "homologous": {
        "texts": "texts",
        "length": 256,
        "tokens": 2048,
        "tokens_per_step": 512,
        "learning_rate": 0.01,
        "positions": {"method": "theta", "theta": 500_000},
    },
}
SPANS = {"span_length": 8, "local_spans": 1, "earlier_stride": 1, "later_stride": 1, "first_scored": 3}
SECTIONS: dict[str, Any] = {
    "models": {"tiny": {"path": "tiny"}, "lac": CALCULATOR},
    "selection": {"method": "ladm", "options": {"ladm": {"model": "lac", **SPANS}}},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """6 samples in 2 shards, scored by a model that was trained on 4 texts of some 480 words."""
    folder = tmp_path_factory.mktemp("ladm")
    file = make_project(folder, samples=SAMPLES, shards=SHARDS, **SECTIONS)
    write_model(folder / "tiny", seed=3, window=64)
    (folder / "texts").mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        (folder / "texts" / f"book{number}.txt").write_text(" ".join(document(rng, 60, {})))
    with pipeline_on(file) as pipeline:
        pipeline.refresh(UNTIL)
        yield pipeline


def scores(pipeline: Pipeline) -> dict[str, float]:
    shards = [str(shard) for shard in range(SHARDS)]
    return dict(pipeline.state().store.read_all(UNTIL, shards).select("sample_id", "score").iter_rows())


def slow_scores(pipeline: Pipeline, folder: Path) -> dict[str, float]:
    """The model in this folder, its whole attention matrices, and LADM's equations entry by entry."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    raw = pipeline.state().store.read_all("raw_long_sft", [str(shard) for shard in range(SHARDS)])
    found = {}
    for each in samples_of(raw):
        matrices = eager_matrices(model, [*chain(*reference_parts(tokenizer, each, "gateau"))])
        found[each.sample_id] = slow_cds(matrices, length=8, m=1, n=1, d=1, d_later=1, n0=3)
    return found


@pytest.mark.long
def test_samples_are_scored_by_the_model_that_was_made(project: Pipeline) -> None:
    folder = project.file.parent
    made = folder / "store" / "homologous_model" / "lac"
    settings = AutoConfig.from_pretrained(made)
    assert (settings.rope_parameters["rope_theta"], settings.max_position_embeddings) == (500_000, 256)
    weights, base = (load_file(each / "model.safetensors") for each in (made, folder / "tiny"))
    assert not any(weights[name].equal(tensor) for name, tensor in base.items())
    found = scores(project)
    assert len(found) == SAMPLES
    assert found == pytest.approx(slow_scores(project, made), rel=1e-4)
    assert found != pytest.approx(slow_scores(project, folder / "tiny"), rel=1e-2), "not those of the small model"
    assert project.refresh(UNTIL).run_ids == []
