"""Check a model's files, and read what is known of it before it is loaded: configuration, tokenizer, size, window.

A model that the pipeline makes has those of the model that it is made from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gateau_dagster.config import Config
from gateau_dagster.config.base import made_files
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import rotary_positions
from gateau_dagster.models.prompt import open_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig


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
    found = {name: _json_object(folder / name, place) for name in _OBJECTS if (folder / name).exists()}
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
    names = _json_object(folder / _INDEX, place).get("weight_map")
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


def _json_object(file: Path, place: str) -> dict[str, Any]:
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
    files, tensors = sorted(folder.glob("*.safetensors")), 0
    for file in files:
        with _weights(file, place) as weights:
            tensors += len([*weights.keys()])
    if layers > tensors:
        known = f"the weights hold {tensors} tensors" if files else "there are no safetensors weights beside it"
        raise GateauError(
            "models.file_damaged",
            f"{place}: {folder / 'config.json'} names {layers} layers, but {known}. Copy config.json again from "
            "the origin of the weights.",
        )


@contextmanager
def _weights(file: Path, place: str) -> Iterator[Any]:
    """Open a safetensors file; the library itself compares header and size."""
    try:
        with safe_open(file, framework="numpy") as weights:
            yield weights
    except (SafetensorError, OSError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{place}: {file} cannot be opened as safetensors ({error}). Copy or download the model again (with "
            "git-lfs: git lfs pull).",
        ) from error


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
        with _weights(file, place) as weights:
            names = [] if quantised else weights.keys()
            kinds = {name: str(weights.get_slice(name).get_dtype()) for name in names}
        found = {
            name: kind for name, kind in kinds.items() if name.endswith(".weight") and kind.startswith(_WHOLE_NUMBERS)
        }
        if found:
            name, kind = next(iter(found.items()))
            raise GateauError(
                "models.quantized",
                f"{place}: {file} contains {name} as {kind}; of its weights, {len(found)} have whole numbers. "
                "Save the model in bfloat16 or float32, or add the missing quantization_config to its config.json.",
            )


_SECONDS_FOR_A_FILE = 3.0


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """The configuration of a model as it is on this machine; None if it is not here, and then `missing` says why."""

    config: PreTrainedConfig | None
    missing: str = ""


def known_model(config: Config, name: str) -> KnownModel:
    """Return the configuration from a model's folder or the local hub cache; at most config.json is downloaded."""
    name = config.origin(name)
    folder, path = model_folder(config, name), config.models[name].path
    if folder is None:
        return KnownModel(config=None, missing=f"{path} is not on this machine yet")
    from transformers import AutoConfig

    found = _read(AutoConfig.from_pretrained, config, name, folder)
    missing = "" if found is not None else f"the config.json of {path} is not one that transformers can read"
    return KnownModel(config=found, missing=missing)


def known_tokenizer(config: Config, name: str) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer if it is on this machine; nothing is downloaded."""
    name = config.origin(name)
    folder = model_folder(config, name, local_only=True)
    # Without a tokenizer file, transformers builds an empty tokenizer instead of failing.
    if folder is None or not [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        return None
    return _read(open_tokenizer, config, name, folder)


def own_window(config: Config, name: str) -> int | None:
    """Return `max_position_embeddings` of a model; None if the model is not on this machine yet, or names none.

    A homologous model reads as far as it is trained for, or as far as its base if that is farther.
    """
    homologous = config.models[name].homologous
    if homologous is not None:
        target = homologous.extension.target_length
        assert target is not None
        return max(target, own_window(config, config.origin(name)) or 0)
    folder = model_folder(config, config.origin(name), local_only=True)
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError, RecursionError):
        return None
    parts = [content, content.get("text_config")] if isinstance(content, dict) else []
    windows = (part.get("max_position_embeddings") for part in parts if isinstance(part, dict))
    return next((window for window in windows if isinstance(window, int) and window > 0), None)


def known_positions(config: Config, name: str) -> int | None:
    """Return how many positions a model's rotary embedding is made for, see `rotary_positions`.

    Return None also for a model that is not on this machine yet. A homologous model reads as far as it is trained for.
    """
    if config.models[name].is_homologous:
        return own_window(config, name)
    known = known_model(config, name).config
    theta = config.models[config.origin(name)].rope_theta
    return None if known is None else rotary_positions(known, theta)


def parameter_count(config: Config, name: str) -> int | None:
    """Count the parameters of a local model from its safetensors headers; None if it is not on this machine yet.

    Raises:
        GateauError: a file is damaged, or only a pointer to its content.
    """
    folder = config.folder / Path(config.located_model(config.origin(name)).path).expanduser()
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with _weights(file, f"models.{name}.path") as weights:
            total += sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118
    return total or None


def model_folder(config: Config, name: str, *, local_only: bool = False) -> Path | None:
    """Return the folder of the model's small files: its own, or the hub's cache after a download of config.json."""
    model = config.located_model(name)
    address = config.models[name].path
    if (maker := made_files(config, address)) is not None:
        # The first run that needs the model builds it; its configuration and tokenizer are beside its data.
        shape = maker.shape(config, address)
        assert shape.is_dir(), "data that a feature makes are written before its models are looked at"
        return shape
    folder = config.folder / Path(model.path).expanduser()
    if folder.is_dir():
        return folder
    from httpx2 import HTTPError
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for local in (True,) if local_only else (True, False):
        try:
            ask = partial(hf_hub_download, local_files_only=local, etag_timeout=_SECONDS_FOR_A_FILE)
            return Path(ask(model.path, "config.json", revision=model.revision)).parent
        except HFValidationError:
            return None
        except (LocalEntryNotFoundError, HfHubHTTPError, HTTPError, OSError):
            continue
    return None


def _read(read: Callable[..., Any], config: Config, name: str, folder: Path) -> Any:
    """Return a configuration or tokenizer; None if transformers cannot read it."""
    code = config.models[name].trust_remote_code
    try:
        return read(folder, trust_remote_code=code, local_files_only=True)
    except Exception:  # the library and remote code each raise their own types
        return None


def shown_window(config: Config, name: str) -> int | None:
    """Return a model's window in tokens under `context: window`; None for `full`, or while it is unknown."""
    model = config.models[name]
    if model.context != "window":
        return None
    if found := model.window or own_window(config, name):
        return found
    known = known_model(config, name).config  # config.json may have to be downloaded
    return None if known is None else getattr(known.get_text_config(decoder=True), "max_position_embeddings", None)


def short_window(config: Config) -> int | None:
    """Return `shown_window` of theta_A."""
    return shown_window(config, "short")


def visible_tokens(config: Config) -> int | None:
    """Return how many tokens of a prompt's end theta_A is shown; None for all (`context: full`).

    Raises GateauError if it is limited to its window and the window is unknown.
    """
    if config.models["short"].context != "window":
        return None
    window = short_window(config)
    if window is None:
        raise GateauError(
            "models.window",
            f"models.short: context is 'window', but the window of {config.models['short'].path} is unknown: set "
            "models.short.window, in tokens",
        )
    return min(config.scoring.max_length, window)
