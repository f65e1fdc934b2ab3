"""Each bad configuration is refused with the code of its table; the snapshot holds the wording of all messages."""

import re
from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from gateau_dagster.cli.commands import error_codes
from gateau_dagster.config import Config
from gateau_dagster.config.schema import KernelConfig
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.project import parse_project
from tests.kit.error_codes import refused

Texts = list[str | dict[str, str]]
"""Additions to a good configuration, or whole ones."""
GOOD = """\
long_sft: {path: long.jsonl}
models:
  short: {path: s}
  long: {path: l}
"""


def table(test: Path) -> dict[str, Texts]:
    """Bad configurations by the code of their refusal, beside a test."""
    return yaml.safe_load(test.with_name("bad_configurations.yaml").read_text("utf-8"))


def messages(code: str, texts: Texts) -> list[str]:
    """The refusals, which all have this code. Lists of what is known leave out what features add."""
    found = []
    for text in texts:
        with refused(code) as failure:
            parse_project(GOOD + text if isinstance(text, str) else text["whole"], folder=Path("/project"))
        found.append(_of_the_kernel(str(failure.value).removeprefix("The configuration is wrong:\n")))
    return found


def _of_the_kernel(message: str) -> str:
    for section in Config.model_fields.keys() - KernelConfig.model_fields.keys():
        message = re.sub(rf", {section}\b(?!:)", "", message)
    own = ["full", "short_only", "base"]
    of_features = [name for feature in features() for name in feature.variant_samples]
    return message.replace(alternatives([*own, *of_features]), alternatives(own))


def alternatives(names: list[str]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}"


TABLE = table(Path(__file__))


@pytest.mark.parametrize("code", TABLE)
def test_a_bad_configuration_is_refused(code: str, snapshot: SnapshotAssertion) -> None:
    """After a change of wording: pytest --snapshot-update, then read the difference."""
    assert messages(code, TABLE[code]) == snapshot


def test_codes_of_configurations_are_of_the_catalogue() -> None:
    assert {*TABLE} <= error_codes().keys()
