"""The declarations: their upstreams, what counts by content, and what stands in their settings."""

import json
import re
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import reference

from gateau_dagster.config import Config
from gateau_dagster.config.schema import KernelConfig
from gateau_dagster.features.evaluation.registry import all_benchmarks
from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.pipeline.declared import pipeline_of
from tests.kit.error_codes import refused
from tests.pipeline.configured import BASE, all_fields, configured, resolved_assets, stale, versions
from tests.pipeline.fields import (
    FIELDS,
    GATE,
    LONG,
    MIXED,
    MODELS,
    NOTHING,
    OF_GATE,
    OF_METHODS,
    OF_RULES,
    OF_TABLES,
    OF_TRAINING,
    PAIR_ONLY,
    REPORT,
    SHORT,
    TABLES,
    TRAINED,
    WITH_TABLES,
)


def test_the_model_of_training_counts_with_its_weights(tmp_path: Path) -> None:
    config = configured(tmp_path)
    digests = {"short": "x", "long": "y"}
    found = stale(versions(config, digests), versions(config, {**digests, "long": "z"}))
    assert found == LONG
    assert stale(versions(config, digests), versions(config, {**digests, "short": "z"})) == SHORT


def test_new_short_conversations_reach_the_mix(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert stale(versions(config), versions(config, signature="t")) == {"short_chat_mix", *MIXED}


def test_a_deepspeed_file_counts_by_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}}')
    config = configured(tmp_path, **{"training.deepspeed": "ds.json"})
    before = versions(config)
    file.write_text('{"zero_optimization": {"stage": 1}}\n')
    assert stale(before, versions(config)) == NOTHING
    file.write_text('{"zero_optimization": {"stage": 2}}')
    assert stale(before, versions(config)) == TRAINED


def test_demo_fields_change_data_or_models(tmp_path: Path) -> None:
    base = configured(tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short"})
    for field in ("demo.seed", "demo.samples", "demo.conversations"):
        changed = configured(
            tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short", field: FIELDS[field][0]}
        )
        assert changed.located_long_sft.path != base.located_long_sft.path
        assert (model_digest(changed, "short") != model_digest(base, "short")) == (field == "demo.seed")


@pytest.mark.parametrize(
    ("changes", "of_choice"),
    [
        ({}, "content"),
        # Its rank or source counts: where the choice comes from decides.
        ({"training.mix.long_fraction": 0.5}, "fingerprint"),
        ({"training.mix.weights": {"long": 2.0}}, "fingerprint"),
    ],
)
def test_training_works_downstream_by_content(changes: dict[str, Any], of_choice: str, tmp_path: Path) -> None:
    """An equal selection must not cost a GPU week, nor an equal mix."""
    assets = pipeline_of(configured(tmp_path, **changes)).by_key
    assert assets["training_mix"].reads == {"selected_subset": of_choice, "short_chat_mix": "content"}
    assert assets["checkpoint"].reads == {"training_mix": "content"}


def test_further_models_have_a_perplexity_and_reach_the_report(tmp_path: Path) -> None:
    assets = pipeline_of(configured(tmp_path, **{"models.third": {"path": "t"}})).by_key
    assert "perplexity/third" in assets["report"].reads
    assert "perplexity/third" not in assets["combined_scores"].reads


@pytest.mark.parametrize(("preset", "default"), [("paper", 0.8), ("official", 0.8), ("robust", 0.5)])
def test_a_default_alpha_is_resolved_and_is_not_the_same_number_given(
    preset: str, default: float, tmp_path: Path
) -> None:
    """A given alpha is that of the other presets' columns, too."""

    def setting(**selection: object) -> object:
        return resolved_assets(configured(tmp_path, selection=selection))["combined_scores"].settings["selection.alpha"]

    assert setting(preset=preset) == f"{default} by default"
    assert setting(preset=preset, alpha=default) == default


def test_every_field_of_the_configuration_has_a_line_here() -> None:
    of_rules = {f"selection.{name}" for name in OF_RULES}
    # See test_made_models and test_homologous.
    of_made_models = {field for field in all_fields(Config) if {"pre_experience", "homologous"} & {*field.split(".")}}
    of_training = {f"training.{name}" for name in OF_TRAINING} | {f"evaluation.gate.{name}" for name in GATE | OF_GATE}
    of_variants = {field for field in all_fields(Config) if field.startswith("variants.")}  # see test_variant_assets
    of_engine = {field for field in all_fields(Config) if field.startswith("evaluation.engine.")}  # see test_answers
    known = set(all_fields(Config)).union(
        *(all_fields(each.options_class(), f"evaluation.{name}.") for name, each in all_benchmarks().items())
    )
    known -= {field for field in known if field.startswith(("execution.notify.", "execution.ray."))}  # see below
    known -= {field for field in known if field.startswith("evaluation.judge.")}  # see test_benchmark_judgments
    here = {*KernelConfig.model_fields, "demo", "evaluation"}  # other features' lines: tests/features
    known = {field for field in known if field.partition(".")[0] in here}
    known -= _of_models_alone()
    assert {*FIELDS, *PAIR_ONLY, *of_rules, *of_training, *of_made_models, *of_variants, *of_engine} == known


MAIL = {"to": ["ann@example.org"], "sender": "gateau@example.org", "security": "tls", "user": "ann", "key": "KEY"}
RAY = {"address": "head:6379", "workers": 3, "gpus": 0, "cpus": 2, "piece_minutes": 1, "scratch": "/scratch"}


@pytest.mark.parametrize(
    ("key", "section"),
    [("notify", {"webhook": "SLACK_WEBHOOK", "ui": "http://host:3000", "mail": MAIL}), ("ray", RAY)],
)
def test_who_is_told_and_where_models_score_changes_nothing(key: str, section: dict[str, Any], tmp_path: Path) -> None:
    base, changed = configured(tmp_path), configured(tmp_path, **{f"execution.{key}": section})
    assert changed != base and not stale(versions(base), versions(changed))


def _of_models_alone() -> set[str]:
    """Options of benchmarks that no comparison with the base model has: each has a test of its own settings."""
    alone = {name: each for name, each in all_benchmarks().items() if not getattr(each, "columns", ())}
    return {field for name, each in alone.items() for field in all_fields(each.options_class(), f"evaluation.{name}.")}


@pytest.mark.parametrize("field", OF_TRAINING)
def test_what_goes_with_other_settings_of_training(field: str, tmp_path: Path) -> None:
    training, value = OF_TRAINING[field]
    *section, last = field.split(".")
    inner = {last: value} if not section else {section[0]: {**training[section[0]], last: value}}
    base, changed = (
        versions(Config.model_validate({**BASE, "training": each, "folder": tmp_path}))
        for each in (training, training | inner)
    )
    assert stale(base, changed) == (NOTHING if field == "every_n_layers" else TRAINED)


@pytest.mark.parametrize("field", OF_GATE)
def test_the_gate_decides_no_table(field: str, tmp_path: Path) -> None:
    base, changed = (
        versions(configured(tmp_path, **{"evaluation.gate": gate})) for gate in (GATE, GATE | {field: OF_GATE[field]})
    )
    assert stale(base, changed) == REPORT


@pytest.mark.parametrize("field", OF_RULES)
def test_what_a_rule_reads_decides_the_choice_alone(field: str, tmp_path: Path) -> None:
    selection, value = OF_RULES[field]

    base, changed = (
        versions(Config.model_validate({**BASE, "models": MODELS, "selection": each, "folder": tmp_path}))
        for each in (selection, selection | {field: value})
    )
    new_table = {"embedding/enc2"} if field == "encoder" else set()
    assert stale(base, changed) - TRAINED - {"training_mix"} == {"selected_subset", *new_table}


STATED = {key.place: key.effect for key in reference.all_keys()}
FLOW = ("rows", "ranking", "mix", "checkpoint", "report")
# Results by the keys of assets, or by their groups.
RESULTS = {"data": "rows", "scoring": "rows", "selection": "ranking", "evaluation": "report"}
RESULTS |= {"short_chat_mix": "mix", "training_mix": "mix", "checkpoint": "checkpoint"}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_reaches_exactly_the_assets_whose_result_it_changes(field: str, tmp_path: Path) -> None:
    value, wanted = FIELDS[field]
    base, changed = configured(tmp_path), configured(tmp_path, **{field: value})
    assert changed != base
    made = stale(versions(base), versions(changed))
    assert made == wanted
    stated = STATED[re.sub(r"^models\.\w+", "models.<name>", field)]
    if stated is not None and not stated.through:
        assets = pipeline_of(changed).by_key
        results = {RESULTS.get(key) or RESULTS[assets[key].group] for key in made}
        assert bool(made) == stated.reaches("report")
        assert earliest(results) >= earliest(stated.results & {*FLOW}), "nothing before what it states"


def earliest(results: Iterable[str]) -> int:
    """Return the place in FLOW of the first result; without one, the place behind all."""
    return min(map(FLOW.index, results), default=len(FLOW))


@pytest.mark.parametrize("field", OF_TABLES)
def test_a_table_is_made_again_for_what_its_rows_read(field: str, tmp_path: Path) -> None:
    value, wanted = OF_TABLES[field]
    base, changed = (versions(configured(tmp_path, **deepcopy(WITH_TABLES), **more)) for more in ({}, {field: value}))
    assert {asset for asset, _ in base} >= TABLES
    assert stale(base, changed) & TABLES == wanted


@pytest.mark.parametrize(("selection", "options", "wanted"), OF_METHODS)
def test_a_method_s_options_reach_its_scores(
    selection: dict[str, Any], options: dict[str, Any], wanted: set[str], tmp_path: Path
) -> None:
    base, changed = (versions(configured(tmp_path, selection=selection | more)) for more in ({}, {"options": options}))
    assert stale(base, changed) == wanted


ZERO2: dict[str, Any] = {"zero_optimization": {"stage": 2}}
HOMOLOGOUS = {"path": "homologous:short", "homologous": {"texts": "books", "length": 512, "tokens_per_step": 65_536}}


def written(folder: Path, **content: Any) -> str:
    (folder / "ds.json").write_text(json.dumps(ZERO2 | content))
    return "ds.json"


def test_a_file_that_contradicts_the_training_stops_the_planning(tmp_path: Path) -> None:
    for setting in (written(tmp_path, gradient_clipping=0.5), ZERO2 | {"gradient_clipping": 0.5}):
        with refused("training.deepspeed", match=r"^training\.deepspeed"):
            versions(configured(tmp_path, **{"training.deepspeed": setting}))
        versions(configured(tmp_path, **{"training.deepspeed": setting, "training.max_grad_norm": 0.5}))


def test_so_does_one_that_contradicts_how_a_model_is_made(tmp_path: Path) -> None:
    setting = written(tmp_path, optimizer={"params": {"lr": 3e-5}})
    learning = {"training.deepspeed": setting, "training.learning_rate": 3e-5}
    versions(configured(tmp_path, **learning))
    theirs = r"optimizer\.params\.lr is 3e-05, but models\.{} gives {}\. "
    config = configured(tmp_path, **learning, **{"models.long": HOMOLOGOUS})
    with refused("training.deepspeed", match=theirs.format(r"long\.homologous\.learning_rate", "1e-05")):
        versions(config)
    config = configured(tmp_path, **learning, **{"models.cherry": {"path": "pre_experienced:long"}})
    with refused("training.deepspeed", match=theirs.format(r"cherry\.pre_experience\.learning_rate", "2e-05")):
        versions(config)
    setting = written(tmp_path, gradient_accumulation_steps=12)
    config = configured(tmp_path, **{"training.deepspeed": setting, "models.cherry": {"path": "pre_experienced:long"}})
    with refused("training.deepspeed", match=r"but models\.cherry\.pre_experience\.batch gives 128\. "):
        versions(config)


def test_what_is_said_twice_changes_nothing_and_what_deepspeed_does_counts(tmp_path: Path) -> None:
    def found(setting: Any) -> dict[Any, str]:
        return versions(configured(tmp_path, **{"training.deepspeed": setting}))

    bare, checkpoint = found(ZERO2), TRAINED - {"report"}
    assert not stale(bare, found(ZERO2 | {"gradient_clipping": 1.0})) - {"report"}
    assert not stale(bare, found(written(tmp_path, optimizer={"type": "AdamW"}))) - {"report"}
    stage3 = {"zero_optimization": {"stage": 3}}
    assert stale(bare, found(stage3)) - {"report"} == checkpoint
    assert stale(bare, found("zero2")) - {"report"} == checkpoint
