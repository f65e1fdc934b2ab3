"""theta_B made from theta_A by the pipeline: trained once, scored with, fine-tuned, made again for other texts only."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.torch import load_file
from transformers import AutoConfig

from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.language import document
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.loadable import loadable_model
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.kit.project import make_project

SHARDS = 2
HOMOLOGOUS: dict[str, Any] = {
    "texts": "texts",
    "short_texts": "short.jsonl",
    "length": 256,
    "tokens": 2048,
    "tokens_per_step": 512,
    "learning_rate": 0.01,
}
LONG = {"path": "homologous:short", "homologous": HOMOLOGOUS}
SECTIONS: dict[str, Any] = {"models": {"short": {"path": "short", "context": "window"}, "long": LONG}}


def homologous_project(folder: Path, **sections: Any) -> Path:
    """12 samples in two shards; texts of 480 and of 48 words."""
    file = make_project(folder, samples=12, shards=SHARDS, **SECTIONS, **sections)
    rng = np.random.default_rng(0)
    (folder / "texts").mkdir()
    for number in range(4):
        (folder / "texts" / f"book{number}.txt").write_text(" ".join(document(rng, 60, {})))
    records = [{"text": " ".join(document(rng, 6, {}))} for _ in range(20)]
    (folder / "short.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The whole pipeline once, with a checkpoint of the model that was made."""
    evaluation = {"benchmarks": ["heldout"]}
    file = homologous_project(tmp_path_factory.mktemp("homologous"), training=True, evaluation=evaluation)
    with pipeline_on(file) as pipeline:
        pipeline.refresh()
        yield pipeline


@pytest.mark.long
def test_theta_a_is_trained_on_with_a_raised_base(project: Pipeline) -> None:
    folder = project.file.parent / "store" / "homologous_model" / "long"
    short, long = (AutoConfig.from_pretrained(each) for each in (project.file.parent / "short", folder))
    assert (short.max_position_embeddings, long.max_position_embeddings) == (64, 256)
    head = short.hidden_size // short.num_attention_heads
    ratio = long.rope_parameters["rope_theta"] / short.rope_parameters["rope_theta"]
    assert ratio == pytest.approx((256 / 64) ** (head / (head - 2)))
    found, base = (load_file(each / "model.safetensors") for each in (folder, project.file.parent / "short"))
    assert found.keys() == base.keys() and not any(found[name].equal(tensor) for name, tensor in base.items())
    mix = project.state().store.read("homologous_mix/long")
    held = dict(mix.group_by("origin").agg(pl.col("input_ids").list.len().sum()).iter_rows())
    assert held == {"long": 1229, "short": 819}
    log = json.loads((folder / "training_log.json").read_text())
    assert log["steps"][-1]["tokens"] == 2048 and log["training"]["batching"] == "packed"
    assert "homologous_model/long" not in {asset for asset, _ in project.made()}, "a second run does nothing"


@pytest.mark.long
def test_it_scores_and_is_trained_further(project: Pipeline) -> None:
    state = project.state()
    assert loadable_model(state, "long").path == str(project.file.parent / "store" / "homologous_model" / "long")
    assert state.store.read_all("cam", ["0", "1"]).height == state.store.read_all("perplexity/long", ["0", "1"]).height
    card = (project.file.parent / "store" / "checkpoint" / "README.md").read_text()
    assert "| Base model | long |" in card
    config = AutoConfig.from_pretrained(project.file.parent / "store" / "checkpoint")
    assert config.rope_parameters["rope_theta"] > 1e4
    assert set(state.store.read("evaluation/heldout")["model"]) == {"base", "checkpoint"}


@pytest.mark.long
def test_other_texts_train_again_and_the_same_under_another_name_do_not(project: Pipeline) -> None:
    texts = project.file.parent / "texts"
    before, mix = (project.stamp(f"homologous_{what}/long").content for what in ("model", "mix"))
    book = texts / "book0.txt"
    book.write_text("the baker " + book.read_text())
    events = project.made()
    trained = project.stamp("homologous_model/long").content
    assert project.stamp("homologous_mix/long").content != mix and trained != before
    for asset in ("perplexity/long", "cam"):
        assert sum(int(value_of(events[asset, str(shard)], "samples_computed") or 0) for shard in range(SHARDS)) == 12
    assert ("perplexity/short", "0") not in events and ("checkpoint", None) in events
    project.made(models={"long": {**LONG, "homologous": {**HOMOLOGOUS, "texts": ["texts/*.txt"]}}})
    assert project.stamp("homologous_model/long").content == trained


def test_the_assets_and_what_cannot_be_met_are_known_before_a_run(tmp_path: Path) -> None:
    with pipeline_on(homologous_project(tmp_path, training=True)) as pipeline:
        parents, checks = pipeline.parents(), pipeline.checks()
        assert parents["homologous_mix/long"] == {"input/long_texts", "input/short_model"}
        assert parents["homologous_model/long"] == {"homologous_mix/long", "input/short_model"}
        for asset in ("perplexity/long", "cam"):
            assert parents[asset] == {"raw_long_sft", "homologous_model/long"}
        assert parents["checkpoint"] == {"training_mix", "homologous_model/long", "input/short_model"}
        assert checks["homologous_mix/long"] | checks["homologous_model/long"] == {"up_to_date", "rejected_share"}
        state = pipeline.state()
        for asset in state.pipeline.assets:
            if asset.key in parents and asset.key != "report":
                assert parents[asset.key] == {*asset.reads, *asset.inputs}, asset.key
        planned = [work.asset for work in state.plan().work]
        assert planned.index("homologous_model/long") < planned.index("cam")
        (tmp_path / "short.jsonl").unlink()
        with pytest.raises(GateauError, match=r"models\.long\.homologous\.short_texts: 'short\.jsonl' matches no file"):
            checked_plan(pipeline.state())
