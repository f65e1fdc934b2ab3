"""Each bad configuration is refused with the code of its table; the snapshot holds the wording of all messages."""

from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from gateau_dagster.cli.commands import error_codes
from gateau_dagster.pipeline.project import parse_project
from tests.error_codes import refused

TABLE: dict[str, list[str | dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_name("bad_configurations.yaml").read_text("utf-8")
)
GOOD = """\
long_sft: {path: long.jsonl}
models:
  short: {path: s}
  long: {path: l}
"""


@pytest.mark.parametrize("code", TABLE)
def test_a_bad_configuration_is_refused(code: str, snapshot: SnapshotAssertion) -> None:
    """After a change of wording: pytest --snapshot-update, then read the difference."""
    messages = []
    for text in TABLE[code]:
        with refused(code) as failure:
            parse_project(GOOD + text if isinstance(text, str) else text["whole"], folder=Path("/project"))
        messages.append(str(failure.value).removeprefix("The configuration is wrong:\n"))
    assert messages == snapshot


def test_codes_of_configurations_are_of_the_catalogue() -> None:
    assert {*TABLE} <= error_codes().keys()
