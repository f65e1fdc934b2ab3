"""Extend rotary embeddings beyond a model's window: another base, NTK-aware scaling, YaRN, linear interpolation.

The configuration is changed before the model is built, in the form that transformers stores and reads. Any program that
loads the trained folder with transformers therefore gets the same frequencies.
"""

import copy
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config.models import PositionExtension
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import (
    BY_LENGTH,
    Rope,
    full_attention_ropes,
    rotated_dimensions,
    scaled_positions,
)


def extend_positions(config: PreTrainedConfig, section: PositionExtension, *, name: str) -> None:
    """Change the rotary embedding in `config` by `section`, and raise `max_position_embeddings` to its target.

    `d` are the rotated dimensions of a head, and `b` is the base. `t` is the ratio of `section.target_length` to the
    model's window (`max_position_embeddings`). The inverse frequencies f_i = b^(-2i/d), i = 0..d/2-1, become

    - `theta`: f_i of the base `section.theta`;
    - `ntk`: f_i of the base `b * t^(d/(d-2))` (ProLong, C.1): the lowest frequency is divided by t, the highest stays;
    - `linear`: `f_i / t`;
    - `yarn`: f_i if a dimension turns often within the window, `f_i / t` if it turns less than once, and a linear ramp
      in between. Queries and keys are multiplied by `0.1 ln t + 1` (Peng et al. 2023), as transformers computes it.

    If a model already has linear or YaRN scaling, the same method raises its factor. Models with one rotary embedding
    per kind of layer (Gemma 3) are changed in their full-attention layers only. Their sliding layers never attend
    beyond the window. `config` is unchanged if an error is raised; `name` is the model's name in its message.

    Raises:
        GateauError: the model has no rotary embedding, declares no window, already reads `target_length` positions, has
            a scaled rotary embedding that excludes this method, or has an architecture without this scaling.
    """
    text_config: Any = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        raise GateauError(
            "models.no_rotary",
            f"{name}: positions ({section.method}) cannot be extended, since {config.model_type} has no rotary "
            "embedding: remove the section, or take a model such as Llama, Qwen or Mistral",
        )
    changed = copy.deepcopy(parameters)
    for rope in full_attention_ropes(changed):
        _change(rope, section, text_config, name=name)
    window = max(section.target_length or 0, getattr(text_config, "max_position_embeddings", None) or 0)
    _check_reloads(text_config, changed, window, section=section, name=name)
    text_config.rope_parameters = changed
    if window:
        text_config.max_position_embeddings = window
    if hasattr(text_config, "rope_theta"):
        # Remote code written for transformers 4 reads the base here.
        text_config.rope_theta = full_attention_ropes(changed)[0]["rope_theta"]


def _change(rope: Rope, section: PositionExtension, text_config: Any, *, name: str) -> None:
    kind = rope.get("rope_type", "default")
    _check_combination(kind, section, name=name)
    if section.method == "theta":
        rope["rope_theta"] = section.theta
        return
    assert section.target_length is not None
    window = _window(rope, text_config, name=name)
    if section.target_length <= window:
        raise GateauError(
            "training.positions_reached",
            f"{name} reads {window} positions already, and target_length is {section.target_length}: remove the "
            "extension, or raise target_length",
        )
    ratio = section.target_length / window
    if section.method == "ntk":
        rotated = rotated_dimensions(rope, text_config)
        if rotated <= 2:
            raise GateauError(
                "training.positions",
                f"{name} rotates {rotated} dimensions per head, too few for ntk: set method: linear",
            )
        rope["rope_theta"] = rope["rope_theta"] * ratio ** (rotated / (rotated - 2))
    elif section.method == "linear":
        rope |= {"rope_type": "linear", "factor": ratio * rope.get("factor", 1.0)}
    else:
        original = rope.get("original_max_position_embeddings") or window
        rope |= {
            "rope_type": "yarn",
            "factor": section.target_length / original,
            "original_max_position_embeddings": original,
        }
        rope.pop("attention_factor", None)  # it belongs to the old factor; if absent, it is computed from the new one


def _check_combination(kind: str, section: PositionExtension, *, name: str) -> None:
    """Refuse invalid combinations: a scaled embedding accepts the same method, and most accept another base."""
    if kind in {"default", section.method} or (section.method == "theta" and kind not in BY_LENGTH):
        return
    cures = ["train the model as it is, without the extension", "start from a model whose rope_type is default"]
    if section.method != "theta" and kind not in BY_LENGTH:
        cures.insert(0, "use method: theta")
    raise GateauError(
        "training.positions",
        f"{name}: its rotary embedding is scaled already (rope_type {kind}), so {section.method} cannot "
        f"extend it: {', or '.join(cures)}",
    )


def _window(rope: Rope, text_config: Any, *, name: str) -> int:
    declared = getattr(text_config, "max_position_embeddings", None)
    if not declared:
        raise GateauError(
            "training.positions",
            f"{name}: its configuration has no max_position_embeddings to extend: set method: theta",
        )
    return scaled_positions(rope, declared) if rope.get("rope_type") == "yarn" else declared


def _check_reloads(text_config: Any, changed: Rope, window: int, *, section: PositionExtension, name: str) -> None:
    """Refuse a scaling that an architecture refuses or rewrites when its configuration is read again."""
    refusal = f"{name}: transformers has no {section.method} scaling for {text_config.model_type}"
    cure = "use method: ntk or theta"
    content = text_config.to_dict() | {"rope_parameters": copy.deepcopy(changed)}
    if window:
        content["max_position_embeddings"] = window
    try:
        read = type(text_config).from_dict(content).rope_parameters
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise GateauError("training.positions", f"{refusal} ({str(error).splitlines()[-1].strip()}): {cure}") from error
    for wanted, found in zip(full_attention_ropes(changed), full_attention_ropes(read), strict=True):
        if any(found.get(key) != value for key, value in wanted.items()):
            raise GateauError("training.positions", f"{refusal}: {cure}")
