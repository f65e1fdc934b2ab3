"""Resolve `training.deepspeed` to the content that the Hugging Face integration needs."""

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gateau_dagster.errors import GateauError

_SHARED_MEMORY_KERNEL = "deepspeed_shm_comm"

_STAGES = (0, 1, 2, 3)

DeepSpeedSetting = str | dict[str, Any] | None

# The Hugging Face integration fills in "auto" from the training arguments, so that nothing is set twice. A file without
# these keys gets them, too: otherwise DeepSpeed would use its own defaults, whatever `training` sets.
_COMMON: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "steps_per_print": 1_000_000_000,
    "wall_clock_breakdown": False,
}
_STAGE_1: dict[str, Any] = {"stage": 1, "overlap_comm": False, "reduce_bucket_size": "auto"}
_STAGE_2: dict[str, Any] = {**_STAGE_1, "stage": 2, "contiguous_gradients": True}
_STAGE_3: dict[str, Any] = {
    **_STAGE_2,
    "stage": 3,
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
_TO_CPU = {"device": "cpu", "pin_memory": False}
_ZERO: dict[str, dict[str, Any]] = {
    "zero1": {"zero_optimization": _STAGE_1},
    "zero2": {"zero_optimization": _STAGE_2},
    "zero3": {"zero_optimization": _STAGE_3},
    "zero2_offload": {"zero_optimization": _STAGE_2 | {"offload_optimizer": _TO_CPU}},
    "zero3_offload": {"zero_optimization": _STAGE_3 | {"offload_optimizer": _TO_CPU, "offload_param": _TO_CPU}},
}
# DeepSpeed's own optimiser for offloading must be compiled; torch's AdamW works on offloaded states, too.
_OFFLOADED = {"zero_force_ds_cpu_optimizer": False}
_READ = [*_COMMON, "zero_optimization", "optimizer", "scheduler"]
# No "optimizer": the Trainer passes torch's AdamW, which ZeRO supports and which needs no compiler.


def deepspeed_config(setting: DeepSpeedSetting, *, folder: Path) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration, or None for training without it.

    Args:
        setting: `zero1`, `zero2`, `zero3`, `zero2_offload`, `zero3_offload`, a path to a JSON file (relative to
            `folder`), its content, or None.
        folder: of the configuration file.

    Raises:
        GateauError: the file is missing, is not JSON, or a value that must be a JSON object is not one.
    """
    if setting is None:
        return None
    if isinstance(setting, str) and setting in _ZERO:
        config: dict[str, Any] = {**_ZERO[setting], **(_OFFLOADED if setting.endswith("_offload") else {})}
    else:
        config = setting if isinstance(setting, dict) else _read(folder / setting, setting)
        _check_names(config)
    return _gathering(_completed(_copied({**_COMMON, **config})))


def _check_names(config: dict[str, Any]) -> None:
    """Refuse misspelt names, because DeepSpeed ignores unknown names and this module adds the right ones."""
    for name in config:
        close = [] if name in _READ else get_close_matches(name, _READ, n=1, cutoff=0.9)
        if close:
            raise GateauError(
                "training.deepspeed", f"training.deepspeed: DeepSpeed has no key {name!r}: did you mean {close[0]!r}?"
            )


def _copied(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise GateauError(
            "training.deepspeed", f"training.deepspeed: contains a value that JSON does not have ({error}). Correct it."
        ) from error


def _read(path: Path, setting: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GateauError(
            "training.deepspeed",
            f"training.deepspeed: {setting!r} is not one of {', '.join(_ZERO)}, and {path} cannot be read "
            f"({error.strerror}). Name a preset or an existing JSON file.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise GateauError(
            "training.deepspeed", f"training.deepspeed: {path} is not valid JSON ({error}). Correct the file."
        ) from error
    if not isinstance(content, dict):
        raise GateauError("training.deepspeed", f"training.deepspeed: {path} is not a JSON object. Correct the file.")
    return content


def _completed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the sections that every training reads, each with the key that decides."""
    for name, key, default in (
        ("zero_optimization", "stage", 0),
        ("bf16", "enabled", "auto"),
        ("fp16", "enabled", "auto"),
    ):
        section = config.setdefault(name, {})
        if not isinstance(section, dict):
            raise GateauError(
                "training.deepspeed", f"training.deepspeed: {name} must be a JSON object. Correct the file."
            )
        section.setdefault(key, default)
    stage = config["zero_optimization"]["stage"]
    if isinstance(stage, bool) or stage not in _STAGES:
        raise GateauError(
            "training.deepspeed",
            f"training.deepspeed: zero_optimization.stage must be 0, 1, 2 or 3, not {json.dumps(stage)}.",
        )
    return config


def _gathering(config: dict[str, Any]) -> dict[str, Any]:
    """Let ZeRO-3 gather the ranks' parts of the weights when saving: the checkpoint asset needs one model."""
    zero = config["zero_optimization"]
    if zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def join_by_gloo() -> None:
    """Let DeepSpeed on CPU communicate by torch's gloo group, which must exist, without a kernel of its own.

    Otherwise DeepSpeed would compile its shared-memory kernel at the first start. That takes 90 s and a C++ compiler,
    and gloo does the same work. Call in every rank, before the model is loaded.
    """
    import deepspeed
    from deepspeed import ops

    compatible: dict[str, bool] = ops.__compatible_ops__
    assert _SHARED_MEMORY_KERNEL in compatible
    compatible[_SHARED_MEMORY_KERNEL] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
