"""What Dagster's catalogue says of an asset: owners, tags, code, age; and what its node says on the graph."""

from pathlib import Path

import dagster as dg
import pytest

from gateau_dagster.assets.steps.definition import asset_definitions
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import ROOT, make_project

CATALOGUE = {
    "owners": {"*": ["team:data"], "perplexity/*": ["ann@example.org"]},
    "tags": {"domain": "alignment"},
    "fresh_within_hours": {"raw_long_sft": 48},
}


def specs(folder: Path, **catalogue: object) -> dict[str, dg.AssetSpec]:
    file = make_project(folder, samples=2, shards=2, execution={"catalogue": {**CATALOGUE, **catalogue}})
    return {spec.key.to_user_string(): spec for each in asset_definitions(load_project(file)) for spec in each.specs}


@pytest.fixture
def found(tmp_path: Path) -> dict[str, dg.AssetSpec]:
    return specs(tmp_path)


def test_owners_tags_and_age(found: dict[str, dg.AssetSpec]) -> None:
    assert [*found["perplexity/short"].owners] == ["team:data", "ann@example.org"]
    assert found["cam"].tags["domain"] == "alignment"
    assert found["raw_long_sft"].freshness_policy is not None and found["cam"].freshness_policy is None


def test_the_code_of_each_asset_is_its_function(found: dict[str, dg.AssetSpec], tmp_path: Path) -> None:
    for key, file in (("raw_long_sft", "assets/data.py"), ("perplexity/short", "assets/sample_tables.py")):
        (local,) = found[key].metadata["dagster/code_references"].code_references
        assert local.file_path == str(ROOT / file)
        lines = Path(local.file_path).read_text().splitlines()
        assert lines[local.line_number - 1] == "@makes_asset"
    linked = specs(tmp_path / "linked", code="https://git.example.org/a/blob/main/")["raw_long_sft"]
    (link,) = linked.metadata["dagster/code_references"].code_references
    assert link.url.startswith("https://git.example.org/a/blob/main/assets/data.py#L")


def test_a_family_of_assets_is_a_group(found: dict[str, dg.AssetSpec]) -> None:
    for key, spec in found.items():
        assert spec.group_name == key.split("/", maxsplit=1)[0] if "/" in key else spec.group_name
        assert (spec.description or "")[:1].isupper()
