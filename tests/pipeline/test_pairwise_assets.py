"""What a judge compares and rates beside the scores: which assets there are, and that each has its version."""

from pathlib import Path

import pytest

from gateau_dagster.pipeline.pipeline import pipeline_of
from tests.pipeline.code_versions import raise_version
from tests.pipeline.configured import configured

FILES = {key: f"s3://bucket/{key}" for key in ("questions", "references", "prompts")}
JUDGE = {
    "base_url": "http://localhost:1/v1",
    "model": "judge",
    "pairs": [["base", "checkpoint"]],
    "characteristics": 3,
}


def code_versions(folder: Path) -> dict[str, str]:
    asked = {"evaluation.benchmarks": ["mt_bench"], "evaluation.mt_bench": FILES, "evaluation.judge": JUDGE}
    return {asset.key: asset.code_version for asset in pipeline_of(configured(folder, **asked)).assets}


@pytest.mark.parametrize(
    ("constant", "asset"),
    [
        ("pipeline.evaluation_assets.PAIRS_CODE_VERSION", "pairwise/mt_bench"),
        ("evaluation.judging.characteristics.CODE_VERSION", "characteristics"),
    ],
)
def test_each_is_made_again_by_other_code(
    constant: str, asset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code_versions(tmp_path)
    raise_version(monkeypatch, f"gateau_dagster.{constant}")
    after = code_versions(tmp_path)
    assert {key for key, version in after.items() if version != before[key]} == {asset}
