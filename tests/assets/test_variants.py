"""An experiment: each variant is trained once, for its own sake alone, and on nothing but what it chose."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from gateau_dagster.assets.selection import with_texts
from gateau_dagster.config.variants import ChangedRun
from gateau_dagster.data.index import read_shards
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.assets.benchmarks import located_variant
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.choice import chosen_samples
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.recipes import CHECKPOINTS, MIXES, SUBSETS, TRAINED, Recipe, recipe_of
from gateau_dagster.progress import Progress, silent
from gateau_dagster.resources.training import TrainingResource
from gateau_dagster.training.launch import TrainingSpec
from tests.assets.harness import Pipeline, key_of, pipeline_on, value_of
from tests.kit.project import change_config, make_project, sample, write_samples

SAMPLES = 24
FIRST: dict[str, Any] = {
    "methods": ["length", "random"],
    "fractions": [0.25],
    "seeds": [1, 2],
    "also": [{"name": "theirs", "path": "short"}],
}
TRAINED_FIRST = ["length-0.25-s1", "length-0.25-s2", "random-0.25-s1", "random-0.25-s2"]


class Trainings:
    """Stands for the training process: a folder that holds what it was told to train."""

    def __init__(self) -> None:
        self.specs: list[TrainingSpec] = []
        self.most = -1

    def run(
        self,
        context: dg.AssetExecutionContext,
        spec: TrainingSpec,
        file: Path,
        progress: Progress,
        heed: Callable[[], None],
    ) -> None:
        del context, file, heed
        if len(self.specs) == self.most:
            raise GateauError("data.missing", "no luck: try again")
        self.specs.append(spec)
        self.write(spec)
        step = {"step": 1, "tokens": 100, "tokens_per_second": 50.0, "loss": 1.0, "learning_rate": 0.1}
        (spec.output / "training_log.json").write_text(json.dumps({"steps": [{**step, "grad_norm": 1.0}]}))
        progress(1, 1, "steps")

    def write(self, spec: TrainingSpec) -> None:
        """Write what stands for a model."""
        spec.output.mkdir(parents=True)
        (spec.output / "config.json").write_text(json.dumps([spec.fingerprint, spec.training.seed]))

    def done(self) -> list[TrainingSpec]:
        """Since it was asked last."""
        found, self.specs = self.specs, []
        return found


@pytest.fixture(scope="module")
def trainings() -> Iterator[Trainings]:
    stands = Trainings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingResource, "run", stands.run)
        yield stands


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, trainings: Trainings) -> Iterator[Pipeline]:
    """The single run is one of the variants, as often as its seed is one of theirs. A part of the samples is
    reserved."""
    file = make_project(
        tmp_path_factory.mktemp("experiment"),
        samples=SAMPLES,
        shards=1,
        training=True,
        selection={"method": "length", "fraction": 0.25},
        variants=FIRST,
        evaluation={"benchmarks": ["heldout"], "heldout": {"share": 0.2, "samples": 4, "buckets": [64]}},
    )
    change_config(file, training={"seed": 1})
    with pipeline_on(file) as pipeline:
        pipeline.refresh(until=CHECKPOINTS)
        yield pipeline


def made(pipeline: Pipeline, **sections: Any) -> set[str]:
    """The variants whose checkpoints are made after a change of the configuration."""
    return {str(variant) for name, variant in pipeline.made(CHECKPOINTS, **sections) if name == CHECKPOINTS}


def contents(pipeline: Pipeline) -> dict[str, str]:
    return {name: pipeline.stamp(CHECKPOINTS, name).content for name in pipeline.config.variant_set}


def chosen(pipeline: Pipeline, name: str) -> list[str]:
    return pipeline.state().store.read(SUBSETS, name)["sample_id"].to_list()


def reserved(pipeline: Pipeline) -> set[str]:
    return {*pipeline.state().read("document_split").filter("reserved")["sample_id"]}


def stale(pipeline: Pipeline, **sections: Any) -> dict[str, list[str]]:
    """The variants that would be made after a change of the configuration, by asset."""
    before = pipeline.file.read_text()
    try:
        change_config(pipeline.file, **sections)
        state = pipeline.state()
        plan = state.plan_until(CHECKPOINTS)
        return {work.asset: work.partitions for work in plan.work if state.asset(work.asset).partitions == VARIANT}
    finally:
        pipeline.file.write_text(before)


@pytest.mark.long
def test_shards_run_first_then_variants(experiment: Pipeline) -> None:
    first, second = (experiment.materialised(run.run_id) for run in reversed(experiment.runs()))
    assert {"raw_long_sft", "method_scores/length", "checkpoint"} <= {key_of(event)[0] for event in first}
    assert {key_of(event)[0] for event in second} == {SUBSETS, MIXES, CHECKPOINTS}
    assert [run.job_name for run in reversed(experiment.runs())] == ["everything", "variants"]
    assert not experiment.state().plan_until(CHECKPOINTS)


def test_every_variant_is_recorded_with_its_own_version(experiment: Pipeline) -> None:
    events = {key_of(event): event for event in experiment.materialised(experiment.runs()[0].run_id)}
    trained = [part for asset, part in events if asset == CHECKPOINTS]
    assert trained == ["base", "checkpoint", *TRAINED_FIRST, "theirs"]
    for name in trained:
        version = experiment.stamp(CHECKPOINTS, name).fingerprint
        assert value_of(events[CHECKPOINTS, name], "fingerprint") == version
    same = {part: value_of(event, "same_as") for (asset, part), event in events.items() if asset == SUBSETS}
    assert same["length-0.25-s2"] == "length-0.25-s1" and same["random-0.25-s2"] is None, "what is equal is taken over"


def test_each_is_trained_on_what_it_chose(experiment: Pipeline) -> None:
    state, free = experiment.state(), SAMPLES - len(reserved(experiment))
    ids = {name: chosen(experiment, name) for name in TRAINED_FIRST}
    assert all(len(found) == round(free / 4) for found in ids.values())
    assert ids["length-0.25-s1"] == ids["length-0.25-s2"] == state.read("selected_subset")["sample_id"].to_list()
    assert {*ids["random-0.25-s1"]} != {*ids["random-0.25-s2"]}, "lots are drawn by the seed"
    assert all({*state.store.read(MIXES, name)["sample_id"]} == {*found} for name, found in ids.items())
    rows = {name: state.store.read(CHECKPOINTS, name).row(0, named=True) for name in state.config.variant_set}
    assert [rows["random-0.25-s1"][name] for name in ("samples", "tokens", "seconds")] == [round(free / 4), 100, 2.0]
    assert rows["base"] == {"model": "long", "samples": None, "tokens": None, "seconds": None}
    assert rows["theirs"]["model"] == located_variant(state, "theirs")[0].path == "short"


def test_the_single_run_is_taken_over_by_the_variant_that_is_equal(experiment: Pipeline, trainings: Trainings) -> None:
    """As a copy: the single run may be another one tomorrow."""
    found = contents(experiment)
    assert found["checkpoint"] == found["length-0.25-s1"] != found["length-0.25-s2"]
    specs = trainings.done()
    assert len(specs) == len(TRAINED_FIRST), "of five"
    assert all('"lease"' in spec.leases for spec in specs), "ranks prove the lease, whatever launches them"
    state = experiment.state()
    rows = {name: state.store.read(CHECKPOINTS, name)["model"][0] for name in ("checkpoint", *TRAINED_FIRST)}
    assert rows["checkpoint"] == "store:checkpoint" and len({*rows.values()}) == len(rows)
    assert located_variant(state, "length-0.25-s1")[1] == located_variant(state, "checkpoint")[1]


def test_a_method_more_is_its_own_work_alone(experiment: Pipeline) -> None:
    new = ["response_length-0.25-s1", "response_length-0.25-s2"]
    found = stale(experiment, variants={"methods": ["length", "response_length", "random"]})
    assert found == {SUBSETS: new, MIXES: new, CHECKPOINTS: new}


def test_another_single_run_leaves_the_variants_alone(experiment: Pipeline) -> None:
    assert stale(experiment, selection={"fraction": 0.5}) == {CHECKPOINTS: ["checkpoint"]}
    every = {SUBSETS: [], MIXES: TRAINED_FIRST, CHECKPOINTS: ["checkpoint", *TRAINED_FIRST]}
    assert stale(experiment, training={"max_length": 256}) == {asset: p for asset, p in every.items() if p}


def test_a_run_with_other_keys_is_its_own_work_and_chooses_as_the_single_run_with_them(experiment: Pipeline) -> None:
    longest = {"name": "longest", "selection": {"method": "length", "count": 2, "fraction": None}}
    found = stale(experiment, variants={"also": [*FIRST["also"], longest]})
    assert found == {asset: ["longest-s1", "longest-s2"] for asset in (SUBSETS, MIXES, CHECKPOINTS)}
    config = load_project(experiment.file)
    assert config.variants is not None
    variants = config.variants.model_copy(update={"also": [ChangedRun.model_validate(longest)]})
    state = state_of(config=config.model_copy(update={"variants": variants}))
    ids = chosen_samples(state, recipe_of(state.config, "longest-s2")).chosen
    assert ids["sample_id"].to_list() == chosen(experiment, "length-0.25-s1")[:2]


def test_a_limit_by_document_is_every_variants_own(experiment: Pipeline) -> None:
    """The documents are known for what is held out."""
    found = stale(experiment, selection={"per_document": 1})
    assert found[SUBSETS] == TRAINED_FIRST and found[CHECKPOINTS] == ["checkpoint", *TRAINED_FIRST]


def test_of_identical_texts_one_is_chosen(tmp_path: Path) -> None:
    """From the file to the subset: by a fraction, which counts all samples, and by the variant that takes all."""
    records = [sample(number) for number in range(8)] + [sample(number) | {"id": f"t{number}"} for number in range(4)]
    sections: dict[str, Any] = {"selection": {"method": "length", "fraction": 0.5}, "variants": {"also": ["full"]}}
    file = make_project(tmp_path, samples=1, shards=1, training=True, evaluation={"enabled": False}, **sections)
    write_samples(tmp_path / "long.jsonl", records)
    state = state_of(config=load_project(file))
    config, [shard] = state.config, state.shards
    [(_, table, _)] = read_shards(config.located_long_sft, state.index, [0])
    method = chosen_methods(config)["length"]
    scores = method.scores({"raw_long_sft": table})
    for asset, content in (("raw_long_sft", table), (method.asset, scores)):
        state.store.write(content, asset, shard, state.wanted_stamp(asset, shard))
    made = chosen_samples(state, Recipe(config))
    chosen, out = made.chosen, made.left_out
    assert (chosen.height, with_texts(state, chosen, silent)["digest"].n_unique()) == (6, 6)
    assert (out.repeats, out.unfilled) == (4, 0)
    full = chosen_samples(state, recipe_of(config, "full"))
    every, out = full.chosen, full.left_out
    assert (every["sample_id"].to_list(), out.unfilled) == ([r["id"] for r in records[:8]], 0)
    assert out.rows["sample_id"].to_list() == ["t0", "t1", "t2", "t3"]
    kept = config.selection.model_copy(update={"duplicates": "keep"})
    keeping = state_of(config=config.model_copy(update={"selection": kept}))
    assert chosen_samples(keeping, recipe_of(keeping.config, "full")).chosen.height == 12
    before, after = (each.asset(SUBSETS).parts["full"].settings for each in (keeping, state))
    assert before == {"samples": "all"} and before != after, "as in a store from before this setting"


def test_a_removed_variant_leaves_no_work(experiment: Pipeline) -> None:
    assert stale(experiment, variants={"seeds": [1], "also": []}) == {}


def test_a_model_that_is_lost_is_missed(experiment: Pipeline) -> None:
    state = experiment.state()
    model = state.store.read(CHECKPOINTS, "random-0.25-s1")["model"][0].removeprefix("store:")
    stamp = Path(state.store.files.address(model)) / "gateau.json"
    aside = stamp.rename(stamp.with_name("aside"))
    try:
        work = experiment.state().plan_until(CHECKPOINTS).of(CHECKPOINTS)
        assert work is not None and work.reasons == {"random-0.25-s1": "missing"}
    finally:
        aside.rename(stamp)


def test_nothing_reserved_was_trained_on(experiment: Pipeline) -> None:
    assert reserved(experiment)
    assert not any(reserved(experiment) & {*chosen(experiment, name)} for name in TRAINED_FIRST)
    logs = [
        record.get_dagster_event().asset_check_evaluation_data
        for run in experiment.runs()
        for record in experiment.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    ]
    found = [check for check in logs if check.check_name == "nothing_reserved"]
    assert {check.asset_key.to_user_string() for check in found} == {MIXES, "training_mix"}
    assert all(check.passed for check in found)


@pytest.mark.long
def test_an_edit_trains_again_what_it_changes_and_what_was_trained_is_found_again(
    experiment: Pipeline, trainings: Trainings
) -> None:
    before, data = contents(experiment), experiment.file.parent / "long.jsonl"
    text, records = data.read_text(), [sample(number) for number in range(SAMPLES)]
    free = {record["id"] for record in records} - reserved(experiment)
    edited = min({*chosen(experiment, "random-0.25-s2")} - {*chosen(experiment, "length-0.25-s1")} & free)
    changed = [each | {"response": "x ."} if each["id"] == edited else each for each in records]
    write_samples(data, changed)
    touched = {name for name in TRAINED_FIRST if edited in chosen(experiment, name)}
    trainings.done()
    assert made(experiment) == touched and len(trainings.done()) == len(touched)

    data.write_text(text)
    new = {f"{name}-s{seed}" for name in ("length-1", "random-1", "full") for seed in (1, 2)}
    more = {"fractions": [0.25, 1.0], "seeds": [1, 2], "also": ["full"]}
    assert made(experiment, variants=more) == {*touched, *new}
    assert len(trainings.done()) == 2, "all samples, in two orders, whatever method chose them all"
    after = contents(experiment)
    assert {name: after[name] for name in TRAINED_FIRST} == {name: before[name] for name in TRAINED_FIRST}
    assert after["length-1-s1"] == after["random-1-s1"] == after["full-s1"] != after["full-s2"]


@pytest.mark.long
def test_a_training_that_fails_names_its_variant_and_those_before_it_count(
    experiment: Pipeline, trainings: Trainings
) -> None:
    change_config(experiment.file, variants={"fractions": [0.5], "seeds": [1, 2], "also": []})
    trainings.done()
    trainings.most = 1
    with pytest.raises(GateauError, match=r"^variant/checkpoint: length-0\.5-s2: no luck: try again$"):
        experiment.refresh(until=CHECKPOINTS)
    trainings.most = -1
    assert len(trainings.done()) == 1
    assert made(experiment) == {"length-0.5-s2", "random-0.5-s1", "random-0.5-s2"}
    assert len(trainings.done()) == 3 and not experiment.state().plan_until(CHECKPOINTS)
    folders = {path.name for path in (experiment.file.parent / "store" / TRAINED).iterdir()}
    trained = [name for name, each in experiment.config.variant_set.items() if each.trained]
    wanted = {experiment.stamp(CHECKPOINTS, name).fingerprint for name in trained}
    assert folders == wanted, "those of other variants made room"
