"""Which field of the configuration enters which fingerprint."""

from pathlib import Path

import pytest

from gateau_dagster.config import Config
from tests.incremental.configured import BASE, all_fields, configured, stale, versions
from tests.incremental.fields import FIELDS, MODELS, OF_RULES, OF_TRAINING, PAIR_ONLY, TRAINED


def test_every_field_of_the_configuration_has_a_line_here() -> None:
    of_rules = {f"selection.{name}" for name in OF_RULES}
    # See test_made_models and test_homologous.
    of_made_models = {field for field in all_fields(Config) if {"pre_experience", "homologous"} & {*field.split(".")}}
    of_training = {f"training.{name}" for name in OF_TRAINING}
    assert {*FIELDS, *PAIR_ONLY, *of_rules, *of_training, *of_made_models} == set(all_fields(Config))


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
