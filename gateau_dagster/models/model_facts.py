"""Read what the files of a model say before it is loaded: configuration, tokenizer, tensors, window.

A model that the pipeline makes has the facts of the model that it is made from.
"""

# Why facts are read when a rule asks for them: the window is in config.json, but the configuration and the tokenizer
# need transformers, whose import takes seconds. Most commands ask only for the window.
#
# Facts are kept by the names, sizes and times of the folder's files: an edited file gives new facts.

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gateau_dagster.config import Config
from gateau_dagster.config.base import made_files
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError, error_at
from gateau_dagster.models.model_config import rotary_positions
from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.storage.local import recall, remember

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig

MODEL_CHECKS = "model-checks.json"  # in the work folder's cache: what was found out with transformers
_SECONDS_FOR_A_FILE = 3.0
_MODELS = 16  # whose facts are kept
# A folder needs at least one of these: without any, transformers builds an empty tokenizer instead of failing.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
# Above this number, the layers must be in the weights: some architectures share weights between layers.
_LAYERS = 256

FileState = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and time of modification in nanoseconds of each file that facts are read from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelFacts:
    """Hold what a model's files say. Callers share it, so nobody may change its configuration or tokenizer.

    path: its folder or hub name, as configured. folder: its files on this machine; None if they are not here.
    remote_code: whether code of the folder may run to read it. failures: why transformers cannot read the "config.json"
    or the "tokenizer", once one has been asked for: type and first line of the error.
    """

    path: str
    folder: Path | None
    remote_code: bool
    failures: dict[str, str] = field(default_factory=dict)
    _contents: dict[str, dict[str, Any]] = field(default_factory=dict)
    _objects: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> PreTrainedConfig | None:
        """Return the model's configuration; None if it cannot be read, see `missing`."""
        if self.folder is None:
            return None
        from transformers import AutoConfig

        return self._read("config.json", AutoConfig.from_pretrained)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the model's tokenizer; None if it is not on this machine or cannot be read."""
        # Without a file of it, transformers builds an empty tokenizer instead of failing.
        is_here = self.files("tokenizer*") or self.files("vocab*")
        return self._read("tokenizer", open_tokenizer) if is_here else None

    @property
    def missing(self) -> str:
        """Return why `config` is None; else an empty text."""
        if self.folder is None:
            return f"{self.path} is not on this machine yet"
        return f"the config.json of {self.path} is not one that transformers can read" if self.config is None else ""

    @property
    def window(self) -> int | None:
        """Return `max_position_embeddings` of config.json, in tokens; None if it names none, or is not here."""
        content = self.settings("config.json")
        parts = [content, content.get("text_config")]
        windows = (part.get("max_position_embeddings") for part in parts if isinstance(part, dict))
        return next((window for window in windows if isinstance(window, int) and window > 0), None)

    @cached_property
    def tensors(self) -> Mapping[Path, Mapping[str, tuple[str, list[int]]]]:
        """Return type and shape of each tensor of each safetensors file, from the headers.

        Raises:
            GateauError: a file is truncated, only a pointer to its content, or not safetensors.
        """
        return {file: _header(file) for file in self.files("*.safetensors")}

    @cached_property
    def parameters(self) -> int | None:
        """Return the number of parameters; None without safetensors files. Raises GateauError as `tensors` does."""
        return sum(math.prod(shape) for file in self.tensors.values() for _, shape in file.values()) or None

    def content(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file of the folder, which is read once.

        Raises:
            GateauError: the file cannot be read, or is not a JSON object.
        """
        if name not in self._contents:
            self._contents[name] = _json_object(self.file(name))
        return self._contents[name]

    def settings(self, name: str) -> dict[str, Any]:
        """Return `content`; an empty object if the file is not here or damaged, which a rule reports."""
        try:
            return {} if self.folder is None else self.content(name)
        except GateauError:
            return {}

    def has_any(self, *names: str) -> bool:
        """Return whether the folder is here and has one of these files."""
        return self.folder is not None and any(self.file(name).is_file() for name in names)

    def file(self, name: str) -> Path:
        """Return the path of a file of the folder, which is here."""
        assert self.folder is not None
        return self.folder / name

    def files(self, pattern: str) -> list[Path]:
        """Return the files of the folder whose names fit a pattern, sorted; none if the folder is not here."""
        return [] if self.folder is None else sorted(self.folder.glob(pattern))

    def _read(self, what: str, read: Callable[..., Any]) -> Any:
        # A failure is not kept: the disk of a daemon that runs for weeks may fail once.
        if what not in self._objects:
            try:
                self._objects[what] = read(self.folder, trust_remote_code=self.remote_code, local_files_only=True)
            except Exception as error:  # the library and remote code each raise their own types
                first = (str(error).strip().splitlines() or ["no reason given"])[0]
                self.failures[what] = f"{type(error).__name__}: {first}"
                return None
        return self._objects[what]


def facts_in(folder: Path | None, *, path: str, remote_code: bool) -> ModelFacts:
    """Return the facts of a folder, read once per process and state of its files. For arguments, see ModelFacts."""
    return _facts(folder, path, remote_code, () if folder is None else _state(folder))


def facts_of(config: Config, name: str, *, local_only: bool = False) -> ModelFacts:
    """Return the facts of a configured model; at most its config.json is downloaded, and nothing if `local_only`."""
    name = config.origin(name)
    model, folder = config.models[name], _folder(config, name, local_only=local_only)
    return facts_in(folder, path=model.path, remote_code=model.trust_remote_code)


def local_facts(config: Config, name: str) -> ModelFacts:
    """Return the facts of a configured model as it is on this machine; nothing is downloaded."""
    return facts_of(config, name, local_only=True)


@lru_cache(maxsize=_MODELS)
def _facts(folder: Path | None, path: str, remote_code: bool, _: FileState) -> ModelFacts:
    return ModelFacts(path=path, folder=folder, remote_code=remote_code)


def _state(folder: Path) -> FileState:
    files = sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")])
    statuses = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in statuses)


def _folder(config: Config, name: str, *, local_only: bool) -> Path | None:
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


def _json_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise GateauError("models.file_damaged", f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{file} is not JSON ({error}). Copy or download the model again (with git-lfs: git lfs pull).",
        ) from error
    if not isinstance(content, dict):
        raise GateauError(
            "models.file_damaged",
            f"{file} contains a {type(content).__name__}, not an object. Copy or download the model again.",
        )
    return content


def _header(file: Path) -> dict[str, tuple[str, list[int]]]:
    """Return type and shape of a safetensors file's tensors; the library itself compares header and size."""
    try:
        with safe_open(file, framework="numpy") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            return {name: (str(each.get_dtype()), each.get_shape()) for name, each in slices.items()}
    except (SafetensorError, OSError) as error:
        raise GateauError(
            "models.file_damaged",
            f"{file} cannot be opened as safetensors ({error}). Copy or download the model again (with "
            "git-lfs: git lfs pull).",
        ) from error


def check_config_file(facts: ModelFacts) -> None:
    """Check that there is a config.json."""
    if not facts.has_any("config.json"):
        raise GateauError(
            "models.incomplete",
            f"{facts.folder} is not a model folder: it has no config.json. Name the folder that contains it",
        )


def check_layers(facts: ModelFacts, layers: Any) -> None:
    """Check that the weights can hold the layers that config.json declares: a model is built before its weights are
    read.
    """
    if not isinstance(layers, int) or layers <= _LAYERS:
        return
    tensors = sum(map(len, facts.tensors.values()))
    if layers > tensors:
        known = f"the weights hold {tensors} tensors" if facts.tensors else "there are no safetensors weights beside it"
        raise GateauError(
            "models.file_damaged",
            f"{facts.folder}/config.json names {layers} layers, but {known}. Copy config.json again from "
            "the origin of the weights.",
        )


def check_tokenizer_files(facts: ModelFacts) -> None:
    """Check that there is a file of a tokenizer."""
    if not facts.has_any(*_TOKENIZER_FILES):
        raise GateauError(
            "models.no_tokenizer",
            f"{facts.folder} has no tokenizer: copy tokenizer.json and tokenizer_config.json into it",
        )


def own_window(config: Config, name: str) -> int | None:
    """Return `max_position_embeddings` of a model; None if the model is not on this machine yet, or names none.

    A homologous model reads as far as it is trained for, or as far as its base if that is farther.
    """
    homologous, window = config.models[name].homologous, local_facts(config, name).window
    if homologous is None:
        return window
    target = homologous.extension.target_length
    assert target is not None
    return max(target, window or 0)


def known_positions(config: Config, name: str) -> int | None:
    """Return how many positions a model's rotary embedding is made for, see `rotary_positions`.

    Return None also for a model that is not on this machine yet. A homologous model reads as far as it is trained for.
    """
    if config.models[name].is_homologous:
        return own_window(config, name)
    facts, theta = facts_of(config, name), config.models[config.origin(name)].rope_theta
    cache, content = config.work_folder / "cache" / MODEL_CHECKS, facts.settings("config.json")
    key = f"positions {text_digest([json.dumps(content), str(theta), version('transformers')])}"
    known = None if facts.remote_code else recall(cache, key)
    if not isinstance(known, list):
        if facts.config is None:
            return None
        known = [rotary_positions(facts.config, theta)]
        if not facts.remote_code:  # whose code is not in the key
            remember(cache, key, known)
    return known[0]


def parameter_count(config: Config, name: str) -> int | None:
    """Count the parameters of a local model from its safetensors headers; None if it is not on this machine yet.

    Raises:
        GateauError: a file is damaged, or only a pointer to its content.
    """
    model = config.located_model(config.origin(name))
    folder = config.folder / Path(model.path).expanduser()
    with error_at(f"models.{name}.path"):
        return facts_in(folder, path=model.path, remote_code=model.trust_remote_code).parameters


def shown_window(config: Config, name: str) -> int | None:
    """Return a model's window in tokens under `context: window`; None for `full`, or while it is unknown."""
    model = config.models[name]
    if model.context != "window":
        return None
    if found := model.window or own_window(config, name):
        return found
    known = facts_of(config, name).config  # config.json may have to be downloaded
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
