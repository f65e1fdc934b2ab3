"""A model that the pipeline trains before it scores: made once, used by IFD, made again only for other samples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.features.estimates.estimator import Estimator
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.pipeline.checks import checked_plan
from tests.assets.harness import Made, Pipeline, pipeline_on, value_of
from tests.kit.project import change_config, make_project, sample, write_samples

SHARDS, SAMPLES, CLUSTERS = 3, 18, 4
UNTIL = "method_scores/ifd"
CHERRY = {
    "path": "pre_experienced:long",
    "pre_experience": {"clusters": CLUSTERS, "per_cluster": 1, "batch": 2, "learning_rate": 0.01},
}
SECTIONS: dict[str, Any] = {
    "models": {"cherry": CHERRY},
    "selection": {"method": "ifd", "options": {"ifd": {"model": "cherry", "above_one": "keep"}}},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """18 samples in 3 shards, scored by a model that was trained on 4 of them."""
    file = make_project(tmp_path_factory.mktemp("made"), samples=SAMPLES, shards=SHARDS, **SECTIONS)
    with pipeline_on(file) as pipeline:
        pipeline.refresh(UNTIL)
        yield pipeline


def table(pipeline: Pipeline, asset: str) -> pl.DataFrame:
    return pipeline.state().store.read_all(asset, [str(shard) for shard in range(SHARDS)]).sort("sample_id")


def chosen(pipeline: Pipeline) -> list[str]:
    return sorted(pipeline.state().store.read("pre_experience_mix/cherry")["sample_id"])


def write(pipeline: Pipeline, *, context: str = "", response: str = "") -> None:
    """The samples, with a longer context or response in the one that is named."""
    records = [sample(number) for number in range(SAMPLES)]
    for record in records:
        record["context"] += " so" if record["id"] == context else ""
        record["response"] += " so" if record["id"] == response else ""
    write_samples(pipeline.file.parent / "long.jsonl", records)


def computed(events: Made, asset: str) -> int:
    return sum(int(value_of(event, "samples_computed") or 0) for key, event in events.items() if key[0] == asset)


def content(pipeline: Pipeline) -> str:
    return pipeline.stamp("pre_experienced/cherry").content


@pytest.mark.long
def test_a_model_is_trained_on_one_sample_of_each_cluster(project: Pipeline) -> None:
    store = project.file.parent / "store"
    assert len(chosen(project)) == CLUSTERS
    found, base = load_file(store / "pre_experienced" / "cherry" / "model.safetensors"), project.file.parent / "long"
    assert not all(found[name].equal(tensor) for name, tensor in load_file(base / "model.safetensors").items())
    assert value_of(project.latest("pre_experienced/cherry"), "steps") == CLUSTERS // 2


@pytest.mark.long
def test_it_scores_what_ifd_reads(project: Pipeline) -> None:
    folder = project.file.parent / "store" / "pre_experienced" / "cherry"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    scored = table(project, "perplexity/cherry")
    samples = project.state().store.read_all("raw_long_sft", map(str, range(SHARDS))).sort("sample_id")
    wanted = []
    for each in samples_of(samples):
        prompt = build_prompt(tokenizer, each, max_length=512, template="gateau")
        ids = torch.tensor([[*prompt.prefix, *prompt.context, *prompt.suffix, *prompt.response]])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        wanted.append(float(losses[-len(prompt.response) :].mean()))
    assert scored["mean_nll"].to_list() == pytest.approx(wanted, rel=1e-5)
    alone = table(project, "response_alone/cherry")["mean_nll"].to_list()
    ifd = [given / single for given, single in zip(wanted, alone, strict=True)]
    assert table(project, "method_scores/ifd")["score"].to_list() == pytest.approx(ifd, rel=1e-5)


def untouched(pipeline: Pipeline) -> str:
    """A sample that the model was not trained on."""
    return next(f"s{number:05d}" for number in range(SAMPLES) if f"s{number:05d}" not in chosen(pipeline))


@pytest.mark.long
def test_a_sample_that_it_was_not_trained_on_keeps_it(project: Pipeline) -> None:
    assert project.refresh(UNTIL).run_ids == []
    before, ids = content(project), chosen(project)
    write(project, context=untouched(project))
    events = project.made(UNTIL)
    assert (content(project), chosen(project)) == (before, ids)
    assert value_of(events["pre_experienced/cherry", None], "up_to_date") == "kept: no change"
    assert computed(events, "instruction_embedding/long") == computed(events, "perplexity/cherry") == 1
    assert project.refresh(UNTIL).run_ids == []


@pytest.mark.long
def test_one_that_it_was_trained_on_trains_it_again_and_scores_all_again(project: Pipeline) -> None:
    before, scored = content(project), table(project, "perplexity/cherry")
    write(project, context=untouched(project), response=chosen(project)[0])
    change_config(project.file, scoring={"workers": 2})
    state = project.state()
    found = Estimator(state).assets({"perplexity/cherry": state.shards})["perplexity/cherry"]
    assert found.samples == SAMPLES, "as many as it may take"
    events = project.made(UNTIL)
    assert content(project) != before
    assert computed(events, "instruction_embedding/long") == 1
    assert computed(events, "perplexity/cherry") == computed(events, "response_alone/cherry") == SAMPLES
    after = table(project, "perplexity/cherry")
    assert not any(one == other for one, other in zip(scored["mean_nll"], after["mean_nll"], strict=True))
    test_it_scores_what_ifd_reads(project)
    assert project.refresh(UNTIL).run_ids == []


def test_the_assets_and_what_cannot_be_met_are_known_before_a_run(tmp_path: Path) -> None:
    with pipeline_on(make_project(tmp_path, samples=SAMPLES, shards=SHARDS, **SECTIONS)) as pipeline:
        parents, checks = pipeline.parents(), pipeline.checks()
        read = {"raw_long_sft", "instruction_embedding/long", "input/long_model"}
        assert parents["pre_experience_mix/cherry"] == read
        assert parents["pre_experienced/cherry"] == {"pre_experience_mix/cherry", "input/long_model"}
        for asset in ("perplexity/cherry", "response_alone/cherry"):
            assert parents[asset] == {"raw_long_sft", "pre_experienced/cherry"}
        checked = checks["pre_experience_mix/cherry"] | checks["pre_experienced/cherry"]
        assert checked == {"up_to_date", "rejected_share", "truncated_share"}
        planned = [work.asset for work in pipeline.state().plan().work]
        assert planned.index("pre_experienced/cherry") < planned.index("perplexity/cherry")
        change_config(pipeline.file, models={"cherry": {"path": "pre_experienced:long"}})
        with pytest.raises(GateauError, match=r"models\.cherry\.pre_experience\.clusters: 18 samples cannot form 100"):
            checked_plan(pipeline.state())
