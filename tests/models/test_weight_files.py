"""Weights that are cut short, or no floating-point numbers, are told before a model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gateau_dagster.models.weight_files import check_weight_files
from tests.error_codes import refused

PLACE = "models.long.path"


def model(folder: Path, dtype: torch.dtype = torch.float32, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        "a.weight": torch.ones(4, 4).to(dtype),
        "a.bias": torch.zeros(4),
        "mask": torch.ones(2, dtype=torch.bool),
    }
    save_file(tensors, folder / "model-1.safetensors")
    save_file({"b.weight": torch.ones(4)}, folder / "model-2.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_floating_point_type(tmp_path: Path, dtype: torch.dtype) -> None:
    check_weight_files(model(tmp_path, dtype), PLACE)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_are_no_weights_unless_they_are_quantised(tmp_path: Path, dtype: torch.dtype) -> None:
    with refused(
        "models.quantized",
        rf"^{PLACE}: .*model-1\.safetensors .*a\.weight",
    ):
        check_weight_files(model(tmp_path, dtype), PLACE)
    check_weight_files(model(tmp_path, dtype, quantization_config={"bits": 8}), PLACE)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[:-3],
    "longer": lambda data: data + b"xx",
    "empty": lambda data: b"",
    "git-lfs": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    file = model(tmp_path) / "model-2.safetensors"
    file.write_bytes(DAMAGES[name](file.read_bytes()))
    with refused("models.file_damaged", r"model-2\.safetensors"):
        check_weight_files(tmp_path, PLACE)


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    file = model(tmp_path) / "model-1.safetensors"
    file.unlink()
    file.mkdir()
    with refused("models.file_damaged", "model-1"):
        check_weight_files(tmp_path, PLACE)
