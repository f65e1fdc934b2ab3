"""Presets, files and dictionaries become one content; what cannot be read says so."""

import json
from pathlib import Path

import pytest

from gateau_dagster.training.deepspeed_config import deepspeed_config
from tests.error_codes import refused


def test_presets(tmp_path: Path) -> None:
    assert deepspeed_config(None, folder=tmp_path) is None
    for stage in (1, 2, 3):
        config = deepspeed_config(f"zero{stage}", folder=tmp_path)
        assert config is not None
        assert config["zero_optimization"]["stage"] == stage
        assert config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) is (stage == 3)
        assert config["gradient_accumulation_steps"] == config["gradient_clipping"] == "auto"
        assert "optimizer" not in config


def test_offloading_needs_no_compiled_optimiser(tmp_path: Path) -> None:
    for stage, parts in ((2, {"offload_optimizer"}), (3, {"offload_optimizer", "offload_param"})):
        config = deepspeed_config(f"zero{stage}_offload", folder=tmp_path)
        assert config is not None
        assert config["zero_force_ds_cpu_optimizer"] is False
        zero = config["zero_optimization"]
        assert zero["stage"] == stage
        assert {key for key in zero if key.startswith("offload")} == parts
        assert all(zero[part]["device"] == "cpu" for part in parts)


def test_a_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    content = {"zero_optimization": {"stage": 3, "reduce_bucket_size": 17}, "gradient_clipping": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(content))
    config = deepspeed_config("ds.json", folder=tmp_path)
    assert config is not None
    assert config["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 17,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert deepspeed_config(content, folder=tmp_path) == config
    assert "stage3_gather_16bit_weights_on_model_save" not in content["zero_optimization"]  # the user's stays as it was


def test_a_preset_is_not_changed_by_its_use(tmp_path: Path) -> None:
    first = deepspeed_config("zero2", folder=tmp_path)
    assert first is not None
    first["zero_optimization"]["stage"] = 9
    assert deepspeed_config("zero2", folder=tmp_path) != first


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not one of zero1, zero2, zero3"), ("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"),
     ("[1]", "not a JSON object"),
     ('{"zero_optimization": 3}', "zero_optimization must be a JSON object"),
     ('{"zero_optimization": {"stage": 7}}', "stage must be 0, 1, 2 or 3, not 7"),
     ('{"zero_optimization": {"stage": "three"}}', 'not "three"'),
     ('{"zero_optimization": {"stage": true}}', "not true"),
     ('{"zero_optimisation": {"stage": 3}}', "'zero_optimisation': did you mean 'zero_optimization'"),
     ('{"x": Infinity}', "contains a value that JSON does not have")],
)  # fmt: skip
def test_unusable_files_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "ds.json").write_text(content)
    with refused("training.deepspeed", message):
        deepspeed_config("ds.json", folder=tmp_path)
