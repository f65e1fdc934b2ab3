"""Check the content of a model's small files before anything is loaded from them."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from gateau_dagster.errors import GateauError

# The names of sizes in config.json: whole numbers above 0, at most the number of rows that a matrix may have.
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_SIZES = (
    *(*_LAYER_COUNTS, "num_attention_heads", "num_key_value_heads", "hidden_size"),
    *("intermediate_size", "head_dim", "vocab_size"),
)
_MOST = 10_000_000
_POSITIONS = "max_position_embeddings"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
"""A folder needs at least one of these: without any, transformers builds an empty tokenizer instead of failing."""
_INDEX = "model.safetensors.index.json"
_OBJECTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
# Above this number, the layers must be in the weights: some architectures share weights between layers.
_LAYERS = 256


def check_model_files(folder: Path, place: str) -> None:
    """Check config.json and the tokenizer's files; `place` names the model in messages.

    Raises:
        GateauError: a file is missing, damaged or not a JSON object, or names impossible sizes.
    """
    if not (folder / "config.json").is_file():
        raise GateauError(
            "models.incomplete",
            f"{place}: {folder} is not a model folder: it has no config.json. Name the folder that contains it",
        )
    found = {name: _read(folder / name, place) for name in _OBJECTS if (folder / name).exists()}
    config = found["config.json"]
    text = config.get("text_config")
    for part in [config, text] if isinstance(text, dict) else [config]:
        for name in (*_SIZES, _POSITIONS):
            _check_size(folder, place, name, part.get(name))
        for name in _LAYER_COUNTS:
            check_layers(folder, place, part.get(name))


def check_complete(folder: Path, place: str, *, remote_code: bool) -> None:
    """Check that a folder that should hold a complete model has weights and a tokenizer.

    remote_code: whether the folder may bring code. If not, its weights must be safetensors, because a .bin file may
    hold code.

    Raises:
        GateauError: the weights or the tokenizer are missing, or one of the files that the weights are split into.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise GateauError(
            "models.no_tokenizer",
            f"{place}: {folder} has no tokenizer: copy tokenizer.json and tokenizer_config.json into it",
        )
    if (folder / _INDEX).exists():
        _check_index(folder, place)
    elif not [*folder.glob("*.safetensors")]:
        if not [*folder.glob("*.bin")]:
            raise GateauError(
                "models.incomplete", f"{place}: {folder} has no weights: copy the model's safetensors files into it"
            )
        if not remote_code:
            raise GateauError(
                "models.pickled",
                f"{place}: {folder} has .bin files only, which may contain code: convert them to safetensors, or set "
                "trust_remote_code",
            )


def _check_index(folder: Path, place: str) -> None:
    """Check that every file that the index names exists."""
    names = _read(folder / _INDEX, place).get("weight_map")
    files = {*names.values()} if isinstance(names, dict) else set()
    if not files or not all(isinstance(name, str) for name in files):
        raise GateauError(
            "models.incomplete", f"{place}: {folder / _INDEX} names no files. Copy or download the model again."
        )
    missing = sorted(name for name in files if not (folder / name).is_file())
    if missing:
        raise GateauError(
            "models.incomplete",
            f"{place}: {folder} lacks {len(missing)} of the {len(files)} files of its weights, such as {missing[0]}. "
            "Copy or download the model again.",
        )


def _read(file: Path, place: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise GateauError("models.file_damaged", f"{place}: {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} is not JSON ({error}). Copy or download the model again (with git-lfs: git lfs pull).",
        ) from error
    if not isinstance(content, dict):
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} contains a {type(content).__name__}, not an object. Copy or download the model again.",
        )
    return content


def _check_size(folder: Path, place: str, name: str, value: Any) -> None:
    """Check one size of config.json. A list of sizes, one per layer, is not checked: its meaning depends on the
    architecture.
    """
    if value is None or isinstance(value, list):
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (name != _POSITIONS and not 1 <= value <= _MOST):
        raise GateauError(
            "models.file_damaged",
            f"{place}: {folder / 'config.json'} has {name}: {str(value)[:60]!r}; expected a whole number from 1 "
            f"to {_MOST:,}. Copy config.json again from the origin of the weights.",
        )


def check_layers(folder: Path, place: str, layers: Any) -> None:
    """Check that the weights can hold the layers that config.json declares: a model is built before its weights are
    read.

    Raises:
        GateauError: there are fewer tensors than layers, or a file is not a safetensors file.
    """
    if not isinstance(layers, int) or layers <= _LAYERS:
        return
    files = sorted(folder.glob("*.safetensors"))
    tensors = sum(len(_tensors(file, place)) for file in files)
    if layers > tensors:
        known = f"the weights hold {tensors} tensors" if files else "there are no safetensors weights beside it"
        raise GateauError(
            "models.file_damaged",
            f"{place}: {folder / 'config.json'} names {layers} layers, but {known}. Copy config.json again from "
            "the origin of the weights.",
        )


def _tensors(file: Path, place: str) -> list[str]:
    try:
        with safe_open(file, framework="numpy") as weights:
            return list(weights.keys())
    except (SafetensorError, OSError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} is not a safetensors file. Copy or download the model again (with git-lfs: git lfs "
            "pull).",
        ) from error
