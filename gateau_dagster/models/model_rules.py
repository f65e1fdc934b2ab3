"""Rules for the files of a model: each takes its facts, and raises a GateauError if the model cannot serve.

`FILE_RULES` lists those for every model. A message names the file; whoever asks puts the model's place before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import check_decoder, override_rope_theta, prompt_tokens, window_of
from gateau_dagster.models.model_facts import ModelFacts, check_config_file, check_layers, check_tokenizer_files

# The names of sizes in config.json: whole numbers above 0, at most the number of rows that a matrix may have.
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_SIZES = (
    *(*_LAYER_COUNTS, "num_attention_heads", "num_key_value_heads", "hidden_size"),
    *("intermediate_size", "head_dim", "vocab_size"),
)
_MOST = 10_000_000
_POSITIONS = "max_position_embeddings"
_INDEX = "model.safetensors.index.json"
_OBJECTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
_WHOLE_NUMBERS = ("I", "U", "BOOL")

Asked = TypeVar("Asked")


@dataclass(frozen=True, kw_only=True)
class Service:
    """Say what a model is asked to do.

    scoring: its settings; None if the model scores nothing.
    whole: whether its folder should hold a complete model; a part of a model in the hub's cache may be missing.
    """

    section: ModelConfig
    scoring: ScoringConfig | None
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[Asked]):
    """Describe one rule: its check, the models that it applies to, and what it reads of the settings `Asked`.

    name: under which it is remembered that a model passed; empty for a rule that only looks for files.
    check: raises GateauError; returns False if the model's files are not here yet, or a remark on a model that passed.
    applies: whether the rule is asked for a service.
    reads: the settings that its result depends on besides the files.
    """

    name: str
    check: Callable[[ModelFacts, Asked], bool | str | None]
    applies: Callable[[Asked], bool] = lambda _: True
    reads: Callable[[Asked], str] = lambda _: ""

    def key(self, asked: Asked, digest: str) -> str:
        """Return the key of the rule's remembered result. `digest`: of the model."""
        return " ".join(filter(None, (self.name, self.reads(asked), digest)))


def check_objects(facts: ModelFacts) -> None:
    """Check that config.json and the tokenizer's files are JSON objects, and that config.json names possible sizes."""
    check_config_file(facts)
    for name in _OBJECTS:
        if facts.file(name).exists():
            facts.content(name)
    config = facts.content("config.json")
    text = config.get("text_config")
    for part in [config, text] if isinstance(text, dict) else [config]:
        for name in (*_SIZES, _POSITIONS):
            _check_size(facts, name, part.get(name))
        for name in _LAYER_COUNTS:
            check_layers(facts, part.get(name))


def _check_size(facts: ModelFacts, name: str, value: Any) -> None:
    """Check one size of config.json. A list of sizes, one per layer, is not checked: its meaning depends on the
    architecture.
    """
    if value is None or isinstance(value, list):
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (name != _POSITIONS and not 1 <= value <= _MOST):
        raise GateauError(
            "models.file_damaged",
            f"{facts.folder}/config.json has {name}: {str(value)[:60]!r}; expected a whole number from 1 "
            f"to {_MOST:,}. Copy config.json again from the origin of the weights.",
        )


def check_weight_names(facts: ModelFacts) -> None:
    """Check that there are weights, and every file that they are split into; .bin files may hold code."""
    if facts.has_any(_INDEX):
        _check_index(facts)
    elif not facts.files("*.safetensors"):
        if not facts.files("*.bin"):
            raise GateauError(
                "models.incomplete", f"{facts.folder} has no weights: copy the model's safetensors files into it"
            )
        if not facts.remote_code:
            raise GateauError(
                "models.pickled",
                f"{facts.folder} has .bin files only, which may contain code: convert them to safetensors, or set "
                "trust_remote_code",
            )


def _check_index(facts: ModelFacts) -> None:
    """Check that every file that the index names exists."""
    names = facts.content(_INDEX).get("weight_map")
    files = {*names.values()} if isinstance(names, dict) else set()
    if not files or not all(isinstance(name, str) for name in files):
        raise GateauError(
            "models.incomplete", f"{facts.folder}/{_INDEX} names no files. Copy or download the model again."
        )
    missing = sorted(name for name in files if not facts.has_any(name))
    if missing:
        raise GateauError(
            "models.incomplete",
            f"{facts.folder} lacks {len(missing)} of the {len(files)} files of its weights, such as {missing[0]}. "
            "Copy or download the model again.",
        )


def check_weights(facts: ModelFacts) -> None:
    """Check that each file opens as a whole, and that its weights are floating-point numbers or declared as quantised.

    transformers converts other types to floating-point numbers: weights rounded to 0 and 1 would load without an error.
    Tensors that are not weights, such as masks, may have any type.
    """
    quantised = "quantization_config" in facts.content("config.json")
    for file, tensors in facts.tensors.items():
        kinds = {
            name: kind
            for name, (kind, _) in tensors.items()
            if name.endswith(".weight") and kind.startswith(_WHOLE_NUMBERS)
        }
        if kinds and not quantised:
            name, kind = next(iter(kinds.items()))
            raise GateauError(
                "models.quantized",
                f"{file} contains {name} as {kind}; of its weights, {len(kinds)} have whole numbers. "
                "Save the model in bfloat16 or float32, or add the missing quantization_config to its config.json.",
            )


def check_readable(facts: ModelFacts) -> None:
    """Check that transformers can read configuration and tokenizer."""
    for what, read in (("config.json", lambda: facts.config), ("tokenizer", lambda: facts.tokenizer)):
        if read() is None:
            raise GateauError(
                "models.file_damaged",
                f"transformers cannot read the {what} in {facts.folder}: {facts.failures[what]}. Copy it again from "
                "the source of the weights.",
            )


def check_causal(facts: ModelFacts, service: Service) -> bool:
    """Check that a model is causal, and has the rotary embedding that its configured base needs.

    Return False if its config.json cannot be read.
    """
    section, config = service.section, facts.config
    if config is None:
        return False
    check_decoder(config, section, str(facts.folder))
    if section.rope_theta is not None:
        override_rope_theta(copy.deepcopy(config), section.rope_theta, name=section.path)
    return True


def check_length(facts: ModelFacts, service: Service) -> bool:
    """Check that a model has positions for the longest prompt. Return False if its config.json cannot be read."""
    if facts.config is not None and service.scoring is not None:
        window = window_of(facts.config, service.section)
        prompt_tokens(facts.config, service.section, service.scoring, window=window)
    return facts.config is not None


def _code(service: Service) -> str:
    # Without its code, the same files may not be readable.
    return "with remote code" if service.section.trust_remote_code else ""


def _whole(service: Service) -> bool:
    return service.whole


def _length(service: Service) -> str:
    assert service.scoring is not None
    return f"{service.scoring.max_length} {service.section.context} {service.section.window}"


FILE_RULES: tuple[Rule[Service], ...] = (
    Rule(name="files", check=lambda facts, _: check_objects(facts)),
    Rule(name="", check=lambda facts, _: check_tokenizer_files(facts), applies=_whole),
    Rule(name="", check=lambda facts, _: check_weight_names(facts), applies=_whole),
    Rule(name="weights", check=lambda facts, _: check_weights(facts), applies=_whole),
    Rule(name="readable", check=lambda facts, _: check_readable(facts), applies=_whole, reads=_code),
    Rule(
        name="decoder",
        check=check_causal,
        applies=lambda service: service.whole and service.section.task == "causal",
        reads=lambda service: f"{service.section.rope_theta} {_code(service)}".strip(),
    ),
    Rule(
        name="length",
        check=check_length,
        applies=lambda service: service.scoring is not None and service.section.task == "causal",
        reads=_length,
    ),
)
"""The rules for every model, in the order in which they are asked: a rule relies on those before it."""
