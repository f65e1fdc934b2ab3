"""A field of `publish` changes the upload that it decides, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.features.publish.card import published_configuration
from tests.config.test_affects import SCORING, configurations
from tests.pipeline.configured import all_fields, configured, stale, versions

PUBLISH: dict[str, Any] = {
    "repository": "me/mine",
    "license": "other",
    "private": True,
    "variants": {},
    "max_contaminated": 0.0,
    "accepted_findings": [],
}


@pytest.mark.parametrize(
    ("field", "value", "made"),
    [
        ("repository", "me/other", True),
        ("license", "mit", True),
        ("private", False, True),
        ("accepted_findings", ["0" * 16], False),
        ("max_contaminated", 1.0, False),
    ],
)
def test_where_and_how_the_selection_is_published_decides_the_upload_alone(
    field: str, value: object, made: bool, tmp_path: Path
) -> None:
    """Check that the limit changes no fingerprint: it only refuses an upload."""
    base, changed = (versions(configured(tmp_path, publish=section)) for section in (PUBLISH, PUBLISH | {field: value}))
    assert stale(base, changed) == ({"published/main"} if made else set())


def test_every_field_is_given_here() -> None:
    known = {field.removeprefix("publish.") for field in all_fields(Config) if field.startswith("publish.")}
    assert known == {*PUBLISH}


def test_the_card_shows_the_settings_of_the_choice() -> None:
    hidden = {"long_sft": {"verify"}, "models": {"__all__": {"verify"}}, "scoring": SCORING}
    for config in configurations():
        sections = {"long_sft", "models", "scoring", "selection"}
        shown = config.model_dump(mode="json", include=sections, exclude=hidden, exclude_defaults=True)
        assert published_configuration(config) == shown
