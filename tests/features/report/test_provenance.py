"""Test the provenance of a report."""

from datetime import UTC, datetime
from importlib.metadata import version

import pytest
import yaml

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.registry import with_benchmarks
from gateau_dagster.features.report import provenance as module
from gateau_dagster.features.report.provenance import configuration_text, package_versions, provenance
from tests.kit.project import configured


def test_the_configuration_comes_back_from_its_text() -> None:
    given = configured(
        training={"deepspeed": {"zero_optimization": {"stage": 2}}}, selection={"ground_truth": ["über"]}
    )
    text = configuration_text(given)
    back = Config.model_validate(yaml.safe_load(text))
    assert configuration_text(back) == text and back == with_benchmarks(given)
    assert "über" in text


def test_a_list_of_plain_values_takes_one_line() -> None:
    pairs = [{"key": "colour", "values": ["red", "blue"]}]
    needle = {"pairs": pairs, "fact": "{key} {value}", "question": "{key}", "answer": "{value}"}
    given = configured(evaluation={"needle": needle})
    assert "values: [red, blue]" in configuration_text(given)


def test_credentials_in_an_address_are_left_out() -> None:
    """The configuration refuses them; a command line may hold them all the same."""
    record = provenance(
        configured(), fingerprints={}, generated_at=datetime.now(UTC), command="gateau run s3://a:b@c/d e@f"
    )
    assert record.command == "gateau run s3://c/d e@f"


def test_versions_are_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", ("torch", "no-such-package"))
    assert package_versions() == {"torch": version("torch"), "no-such-package": "not installed"}


def test_record() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    record = provenance(configured(), fingerprints={"b": "2", "a": "1"}, generated_at=when)
    assert record.generated_at == "2026-01-02 03:04:05 UTC"
    assert record.fingerprints == [("a", "1"), ("b", "2")]
    assert record.command is None
    assert record.python.startswith("CPython 3.")
