"""Which field of the configuration enters which fingerprint."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.evaluation.registry import all_benchmarks
from tests.pipeline.configured import BASE, all_fields, configured, stale, versions
from tests.pipeline.fields import (
    FIELDS,
    GATE,
    MODELS,
    OF_GATE,
    OF_METHODS,
    OF_RULES,
    OF_TABLES,
    OF_TRAINING,
    PAIR_ONLY,
    REPORT,
    TABLES,
    TRAINED,
    WITH_TABLES,
)


def test_every_field_of_the_configuration_has_a_line_here() -> None:
    of_rules = {f"selection.{name}" for name in OF_RULES}
    # See test_made_models and test_homologous.
    of_made_models = {field for field in all_fields(Config) if {"pre_experience", "homologous"} & {*field.split(".")}}
    of_training = {f"training.{name}" for name in OF_TRAINING} | {f"evaluation.gate.{name}" for name in GATE | OF_GATE}
    of_variants = {field for field in all_fields(Config) if field.startswith("variants.")}  # see test_variant_assets
    of_engine = {field for field in all_fields(Config) if field.startswith("evaluation.engine.")}  # see test_answers
    known = set(all_fields(Config)).union(
        *(all_fields(each.options, f"evaluation.{name}.") for name, each in all_benchmarks().items())
    )
    known -= {field for field in known if field.startswith(("execution.notify.", "execution.ray."))}  # see below
    known -= {field for field in known if field.startswith("evaluation.judge.")}  # see test_benchmark_judgments
    known -= _of_models_alone()
    assert {*FIELDS, *PAIR_ONLY, *of_rules, *of_training, *of_made_models, *of_variants, *of_engine} == known


def test_who_is_told_changes_nothing(tmp_path: Path) -> None:
    mail = {"to": ["ann@example.org"], "sender": "gateau@example.org", "security": "tls", "user": "ann", "key": "KEY"}
    told = {"webhook": "SLACK_WEBHOOK", "ui": "http://host:3000", "mail": mail}
    base, changed = configured(tmp_path), configured(tmp_path, **{"execution.notify": told})
    assert changed != base and not stale(versions(base), versions(changed))


def test_where_models_score_changes_nothing(tmp_path: Path) -> None:
    ray = {"address": "head:6379", "workers": 3, "gpus": 0, "cpus": 2, "piece_minutes": 1, "scratch": "/scratch"}
    base, changed = configured(tmp_path), configured(tmp_path, **{"execution.ray": ray})
    assert changed != base and not stale(versions(base), versions(changed))


def _of_models_alone() -> set[str]:
    """Options of benchmarks that no comparison with the base model has: each has a test of its own settings."""
    alone = {name: each for name, each in all_benchmarks().items() if each.comparison is None}
    return {field for name, each in alone.items() for field in all_fields(each.options, f"evaluation.{name}.")}


@pytest.mark.parametrize("field", OF_TRAINING)
def test_what_goes_with_other_settings_of_training(field: str, tmp_path: Path) -> None:
    training, value = OF_TRAINING[field]
    *section, last = field.split(".")
    inner = {last: value} if not section else {section[0]: {**training[section[0]], last: value}}
    base, changed = (
        versions(Config.model_validate({**BASE, "training": each, "folder": tmp_path}))
        for each in (training, training | inner)
    )
    assert stale(base, changed) == TRAINED


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


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_reaches_exactly_the_assets_whose_result_it_changes(field: str, tmp_path: Path) -> None:
    value, wanted = FIELDS[field]
    base, changed = configured(tmp_path), configured(tmp_path, **{field: value})
    assert changed != base
    assert stale(versions(base), versions(changed)) == wanted


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
