import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from gateau_dagster.config import Config
from gateau_dagster.incremental.estimate import _limit, _scored_tokens, matrix_product_speed, parameter_count


def configured(folder: Path = Path(), segment_length: int = 16, **short: object) -> Config:
    return Config.model_validate(
        {
            "long_sft": {"path": "x"},
            "models": {"short": {"path": "short", **short}, "long": {"path": "long"}},
            "scoring": {"max_length": 512, "segment_length": segment_length, "dtype": "float32", "device": "cpu"},
            "folder": folder,
        }
    )


@given(total=st.integers(1, 2000), tail=st.integers(0, 300), length=st.integers(1, 64))
def test_tokens_against_counting_the_prompts(total: int, tail: int, length: int) -> None:
    config, total = configured(segment_length=length), max(total, tail)
    full = min(total, 512)
    assert _scored_tokens(config, "perplexity/short", total, tail, 512) == full
    context = list(range(max(full - tail, 0)))
    prompts = [context[start : start + length] for start in range(0, len(context), length)]
    counted = full + sum(len(prompt) + tail for prompt in prompts)
    assert _scored_tokens(config, "cam", total, tail, 512) == counted


def test_a_window_limits_the_prompt() -> None:
    assert _limit(configured(context="window", window=64), "short") == 64
    assert _limit(configured(context="full", window=64), "short") == 512
    assert _limit(configured(context="window"), "short") == 512


def test_parameters_are_counted_from_the_file_s_header(tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "short" / "one.safetensors")
    save_file({"c": torch.zeros(2, 2, 2), "scalar": torch.zeros(())}, tmp_path / "short" / "two.safetensors")
    assert parameter_count(configured(tmp_path), "short") == 12 + 5 + 8 + 1
    assert parameter_count(configured(tmp_path), "long") is None


def test_the_speed_of_this_machine_is_plausible() -> None:
    speed = matrix_product_speed(configured())
    assert math.isfinite(speed) and 1e7 < speed < 1e14


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 100])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, content: bytes) -> None:
    from gateau_dagster.errors import GateauError

    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "model.safetensors").write_bytes(content)
    with pytest.raises(GateauError, match=r"models\.short\.path: .*model\.safetensors is no safetensors file"):
        parameter_count(configured(tmp_path), "short")
