"""Check by their headers that a model's safetensors files are complete and hold floating-point weights."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from gateau_dagster.errors import GateauError

_WHOLE_NUMBERS = ("I", "U", "BOOL")


def check_weight_files(folder: Path, place: str) -> None:
    """Check that each file opens as a whole, and that its weights are floating-point numbers or declared as quantised.

    transformers converts other types to floating-point numbers: weights rounded to 0 and 1 would load without an error.
    Tensors that are not weights, such as masks, may have any type. `place` names the model in messages.

    Raises:
        GateauError: a file is truncated or not safetensors, or holds weights as whole numbers.
    """
    quantised = "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for file in sorted(folder.glob("*.safetensors")):
        found = {} if quantised else _whole_numbers(file, place)
        if found:
            name, kind = next(iter(found.items()))
            raise GateauError(
                "models.quantized",
                f"{place}: {file} contains {name} as {kind}; {len(found)} weight(s) are whole numbers. Save the model "
                "in bfloat16 or float32, or add the missing quantization_config to its config.json.",
            )


def _whole_numbers(file: Path, place: str) -> dict[str, str]:
    """Return the types of the weights that are whole numbers, by name. safetensors itself compares header and size."""
    try:
        with safe_open(file, framework="numpy") as weights:
            kinds = {name: str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} cannot be opened as safetensors ({error}). Copy or download the model again (with "
            "git-lfs: git lfs pull).",
        ) from error
    return {name: kind for name, kind in kinds.items() if name.endswith(".weight") and kind.startswith(_WHOLE_NUMBERS)}
