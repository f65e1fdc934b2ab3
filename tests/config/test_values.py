"""Values of another kind, out of all bounds, or that no path can be: named with their place before anything runs."""

import os
from pathlib import Path

import pytest

from gateau_dagster.config import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project, parse_project
from tests.error_codes import refused

GOOD = "long_sft: {path: long.jsonl}\nmodels:\n  short: {path: s}\n  long: {path: l}\n"
LENGTH = "long_sft: {%s}\nselection: {method: length}\n"


def mistakes(text: str) -> list[str]:
    with pytest.raises(GateauError) as failure:
        parse_project(text, folder=Path())
    return [line.strip() for line in str(failure.value).splitlines()[1:]]


@pytest.mark.parametrize("number", ["1e-5", "1E-5", "1.0e-5", "1.e-5", "0.00001"])
def test_a_number_may_be_written_with_an_exponent(number: str) -> None:
    config = parse_project(GOOD + f"training: {{learning_rate: {number}}}", folder=Path())
    assert config.training.learning_rate == 1e-5


@pytest.mark.parametrize(
    "path", [".", "~/a", "a" * 250 + ".gz", "s3://bucket/" + "a" * 900, "hf://datasets/a/b", " a "]
)
def test_a_path_stays_as_it_is(path: str) -> None:
    apart = "storage: {root: ../store}\n"
    assert parse_project(LENGTH % f"path: '{path}'" + apart, folder=Path()).long_sft.path == path


def test_what_aliases_make_endless_is_refused_and_what_is_long_is_shown_in_short() -> None:
    def nested(levels: int) -> str:
        inner = [f"  - &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]\n" for level in range(1, levels)]
        return f"{LENGTH % 'path: a'}models:\n  - &l0 [x]\n{''.join(inner)}"

    with refused("config.too_many_values", r"gateau\.yaml:1.*1,000,000"):
        parse_project(nested(30), folder=Path())
    (mistake,) = mistakes(nested(5))
    assert len(mistake) < 200


def test_a_file_without_end_is_no_configuration() -> None:
    with refused("config.unreadable", "/dev/zero"):
        load_project("/dev/zero")


def test_a_pipe_in_the_place_of_the_configuration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gateau.yaml")
    with refused("config.unreadable", r"gateau\.yaml"):
        load_project(tmp_path / "gateau.yaml")


def test_a_configuration_in_the_home_of_nobody_is_none() -> None:
    with pytest.raises(GateauError, match=r"^the configuration ~nobody-of-this-name/a\.yaml is in the home of nobody"):
        load_project("~nobody-of-this-name/a.yaml")


def test_a_training_comes_back_from_its_file() -> None:
    training = TrainingConfig(adam_betas=(0.8, 0.9), epochs=3)
    assert TrainingConfig.model_validate(training.model_dump(mode="json")) == training


@pytest.mark.parametrize(
    ("lengths", "refused"), [("lengths: [128, 1024]", "1024"), ("lengths: [128]", ""), ("repeats: 2", "1024, 2048")]
)
def test_a_needle_is_asked_for_in_prompts_that_can_be_made(lengths: str, refused: str) -> None:
    text = GOOD + f"scoring: {{max_length: 512}}\nevaluation: {{needle: {{{lengths}}}}}"
    if not refused:
        parse_project(text, folder=Path())
        return
    (mistake,) = mistakes(text)
    assert f"6: evaluation.needle.lengths: no prompt has {refused}" in mistake
    parse_project(text + "\ntraining: {enabled: false}", folder=Path())


def test_default_lengths_may_be_more_than_fit() -> None:
    parse_project(GOOD + "scoring: {max_length: 2048}", folder=Path())


@pytest.mark.parametrize("given", ["postgresql://u:s3cret@h/d", "DAGSTER PG", "1ST", "$DAGSTER_PG", "''"])
def test_a_variable_is_named_and_no_url_shown(given: str) -> None:
    (mistake,) = mistakes(GOOD + f"execution:\n  postgres: {given}")
    assert "execution.postgres" in mistake and "DAGSTER_POSTGRES_URL" in mistake and "s3cret" not in mistake
    found = parse_project(GOOD + "execution: {postgres: DAGSTER_PG}", folder=Path())
    assert found.execution.postgres == "DAGSTER_PG"


@pytest.mark.parametrize("path", ["a$b.jsonl", "price$/x.jsonl", "a/$b.jsonl"])
def test_a_dollar_may_stand_in_a_name(path: str) -> None:
    assert parse_project(LENGTH % f"path: '{path}'", folder=Path()).long_sft.path == path


def test_a_path_that_no_system_takes_is_refused() -> None:
    with refused("config.path", "5,999 bytes"):
        parse_project(LENGTH % f"path: {'/'.join(['ab'] * 2000)}", folder=Path())
