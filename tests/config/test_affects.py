"""Check what each key affects: the settings of a result are those of the lists that earlier versions wrote out."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import reference
import yaml
from pydantic import BaseModel, Field

from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.config.base import NOTHING, Affects, Section, without_effect
from gateau_dagster.config.made_models import homologous_options
from gateau_dagster.data.sample import text_digest
from gateau_dagster.training.launch import TrainingSpec
from tests.features.whole import of_features
from tests.kit.project import ROOT
from tests.pipeline.by_method import maximal
from tests.pipeline.configured import BASE, configured
from tests.pipeline.fields import FIELDS, MODELS, OF_RULES, OF_TRAINING, WITH_TABLES

# The lists of earlier versions, whose stores must stay up to date.
SCORING = {"device", "device_map", "workers", "batch_tokens", "compile", "attention"}
OPERATIONAL = {
    *("gradient_checkpointing", "every_n_layers", "offload_activations", "tiled_mlp", "gpu_memory", "attention"),
    *("save_steps", "launcher", "hostfile", "report_to", "report_data"),
}
TRAINING = OPERATIONAL | {"enabled", "preset", "sequences_per_step", "tokens_per_step"}
OF_THE_MIX = {"mix", "truncation", "trained_turns", "longce_gamma", "trim"}
RESUMED = TRAINING | {"mix", "truncation", "trim", "deepspeed"}
SERVER = {"concurrency", "retries", "timeout", "token_limit"}
REPORT = {
    **dict.fromkeys(("storage", "execution", "demo"), True),
    "long_sft": {"max_rejected", "verify"},
    "short_chat": {"verify"},
    "models": {"__all__": {"verify"}},
    "evaluation": {"engine": SERVER | {"base_url", "key"}, "judge": SERVER},
    "scoring": SCORING,
    "training": TRAINING - {"enabled"},
    **of_features("NOT_SHOWN"),
}
CLUSTERED = {"clusters", "per_cluster", "pick"}
TEXTS = {"text_field", "join_by", "long_share", "least_tokens", "tokens"}
SERVERS: dict[str, Any] = {"base_url": "http://a/v1", "key": "K", "concurrency": 2, "retries": 1, "token_limit": None}
GENERATOR = {**SERVERS, "model": "m", "timeout": 9.0}
CHANGED: list[dict[str, Any]] = [
    {"evaluation.engine": SERVERS, "evaluation.judge": GENERATOR},
    *(change for each in of_features("CHANGES").values() for change in each),
    {"models.cherry": {"path": "pre_experienced:long", "pre_experience": {"seed": 3, "pick": "random", "epochs": 2.0}}},
    {
        "models.cherry": {"path": "pre_experienced:short"},
        "models.long": {
            "path": "homologous:short",
            "verify": "content",
            "homologous": {"texts": "t", "join_by": "repo", "length": 512, "tokens_per_step": 65_536, "loss": "exact"},
        },
    },
    {
        "variants": {
            "also": ["full", {"name": "x", "path": "a/x", "verify": "content"}, {"name": "y", "training": {}}]
        },
        "training.report_data": True,
    },
    {"long_sft.max_rejected": 0.3, "long_sft.verify": "content", "execution.ray": {"workers": 2}},
]


def configurations() -> Iterator[Config]:
    """Yield configurations with each key changed, the examples, and one of every part of the pipeline."""
    folder = Path("project")
    yield from (configured(folder, **{field: value}) for field, (value, _) in FIELDS.items())
    yield from (configured(folder, **deepcopy(WITH_TABLES) | each) for each in CHANGED)
    yield from (Config.model_validate({**BASE, "training": each}) for each, _ in OF_TRAINING.values())
    rules = [selection | {field: value} for field, (selection, value) in OF_RULES.items()]
    yield from (Config.model_validate({**BASE, "models": MODELS, "selection": each}) for each in rules)
    yield from (maximal(), Config.model_validate(reference.EVERYTHING))
    for file in sorted((ROOT / "examples").glob("*/gateau.yaml")):
        text = file.read_text(encoding="utf-8").replace("PORT", "8000")
        yield Config.model_validate({**yaml.safe_load(text), "folder": file.parent})


def resume_key(training: TrainingConfig) -> str:
    folder = Path("work")
    spec = TrainingSpec(
        mix=folder, base_model="b", output=folder, work=folder, training=training, fingerprint="f", rope_theta=2.0
    )
    return spec.resume_key


def resume_key_by_list(training: TrainingConfig) -> str:
    settings = training.model_dump(mode="json", exclude=RESUMED)
    base = ["b", None, 2.0, "gateau", None, training.passes_per_step]
    return text_digest(("f", json.dumps([settings, base], sort_keys=True)))


def same_dump(section: BaseModel | None, effect: Mapping[str, Any], listed: Any) -> bool:
    assert section is not None
    return section.model_dump(mode="json", exclude={**effect}) == section.model_dump(mode="json", exclude=listed)


def test_the_settings_of_a_result_are_those_of_the_lists() -> None:
    count = 0
    for config in configurations():
        scoring, training = config.scoring, config.training
        assert same_dump(config, without_effect(config, "report"), REPORT)
        assert same_dump(scoring, without_effect(scoring, "rows"), SCORING)
        assert same_dump(training, without_effect(training, "checkpoint"), TRAINING | OF_THE_MIX)
        assert same_dump(training, without_effect(training, "mix", "checkpoint"), TRAINING)
        assert resume_key(training) == resume_key_by_list(training)
        for name in config.made_models:
            model, mixed = config.models[name], {"length", "seed"}
            stage = homologous_options(model) if model.is_homologous else model.pre_experience
            assert stage is not None
            only_mixed = TEXTS | {"texts", "short_texts"} if model.is_homologous else CLUSTERED
            of_training = {*type(stage).model_fields} - only_mixed - mixed
            assert same_dump(stage, without_effect(stage, "mix"), of_training)
            assert same_dump(stage, without_effect(stage, "checkpoint"), only_mixed)
            count += 1
    assert count >= 4


class Inner(Section):
    place: Annotated[str, NOTHING] = "a"
    length: int = 1


class OfMix(Section):
    affects = Affects("mix")

    seed: int = 1
    rate: Annotated[float, Affects("checkpoint")] = 0.5
    inner: Inner = Inner()


Quiet = Annotated[Literal["a", "b"], NOTHING]


class Toy(Section):
    bare: int = 1
    quiet: Quiet = "a"
    stated: Annotated[Quiet, Affects("report")] = "a"
    inner: Inner | None = Inner()
    named: dict[str, Inner] = Field(default={})
    several: tuple[Inner | OfMix | str, ...] = ()
    mixed: OfMix | None = OfMix()
    noted: Annotated[Inner | None, NOTHING] = Inner()


KEPT = {"bare", "inner.length", "named.x.length", "several.0", "several.1.length"}
MIXED = {f"{place}.{name}" for place in ("several.2", "mixed") for name in ("seed", "inner.length")}
RATES = {"several.2.rate", "mixed.rate"}


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ([], set[str]()),
        (["rows"], set[str]()),
        (["checkpoint"], RATES),
        (["mix"], MIXED),
        (["mix", "checkpoint"], MIXED | RATES),
        (["report"], MIXED | RATES | {"stated"}),
        (["published"], MIXED | RATES),
    ],
)
def test_the_nearest_statement_counts(results: list[Any], wanted: set[str]) -> None:
    toy = Toy(named={"x": Inner()}, several=("text", Inner(), OfMix()))
    assert {*_leaves(toy.model_dump(exclude=without_effect(toy, *results)))} == KEPT | wanted


def test_a_section_without_a_key_that_counts_is_left_out_whether_it_is_given_or_not() -> None:
    for toy in (Toy(mixed=OfMix(), noted=Inner()), Toy(mixed=None, noted=None)):
        assert {*toy.model_dump(exclude=without_effect(toy, "rows"))} == {"bare", "inner", "named", "several"}
    assert OfMix().model_dump(exclude=without_effect(OfMix(), "rows")) == {}


def _leaves(value: Any, place: str = "") -> Iterator[str]:
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, (list, tuple)) else None
    if inner is None:
        yield place
    for name, each in (inner or {}).items():
        yield from _leaves(each, f"{place}.{name}".removeprefix("."))


@pytest.mark.parametrize("shows", ["report", "published"])
def test_pages_show_what_changes_other_results(shows: Any) -> None:
    assert Affects("mix").reaches(shows) and Affects(shows).reaches(shows)
    assert not NOTHING.reaches(shows)
    assert not Affects("published" if shows == "report" else "report").reaches(shows)
    assert not Affects(shows).reaches("mix")


OPERATING = {
    *("address", "attention", "base_url", "batch_tokens", "compile", "concurrency", "device", "device_map", "hostfile"),
    *("key", "launcher", "max_concurrent", "pool", "port", "processes_per_node", "report_to", "retries", "save_steps"),
    *("scratch", "server", "timeout", "token_limit", "verify", "webhook", "workers"),
}


@pytest.mark.parametrize(
    "key",
    [key for key in reference.all_keys() if key.name in OPERATING and "needle" not in key.place],
    ids=lambda key: key.place,
)
def test_a_key_of_how_the_pipeline_runs_states_that_it_changes_no_table(key: reference.Key) -> None:
    assert key.effect is not None and key.effect.results <= {"report", "published"}
