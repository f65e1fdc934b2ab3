"""Resolve `training.deepspeed` to what the Hugging Face integration needs, and check that it agrees with `training`.

The usual Hugging Face files use "auto" for the values that training determines, and this module sets it everywhere.
Sections `optimizer` and `scheduler` are removed once they agree. AdamW and the schedule are the Trainer's, with
DeepSpeed and without it (DeepSpeed's own would decay the norms' weights, and warm up logarithmically).
"""

# Why contradictions end a run: a usual file repeats half of `training`. transformers compares some of these values,
# too, but only in the training process, which starts after all scoring. Here they are compared before any model runs.
#
# When another way is better: a preset (`zero1` to `zero3_offload`) repeats nothing and cannot contradict. A file is for
# what presets lack, such as bucket sizes or disks for offloading.

import json
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gateau_dagster.config.training import TrainingConfig
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
        folder: the folder of the configuration file.

    Raises:
        GateauError: the file is missing, is not JSON, or a value that must be a JSON object is not one.
    """
    if setting is None:
        return None
    if isinstance(setting, str) and setting in _ZERO:
        config: dict[str, Any] = {**_ZERO[setting], **(_OFFLOADED if setting.endswith("_offload") else {})}
    else:
        config = setting if isinstance(setting, dict) else _read(folder / setting, setting)
        # DeepSpeed ignores unknown names, so a misspelt setting would have no effect.
        for name in config:
            close = [] if name in _READ else get_close_matches(name, _READ, n=1, cutoff=0.9)
            if close:
                mistake = f"DeepSpeed has no key {name!r}: did you mean {close[0]!r}?"
                raise GateauError("training.deepspeed", f"training.deepspeed: {mistake}")
    try:
        # A deep copy, because `_completed` writes into sections that all presets share.
        copied = json.loads(json.dumps({**_COMMON, **config}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise GateauError(
            "training.deepspeed", f"training.deepspeed: contains a value that JSON does not have ({error}). Correct it."
        ) from error
    return _completed(copied)


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
    """Return the configuration with the sections that every training run reads, each with its deciding key."""
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
    if stage == 3:  # the ranks' parts of the weights are gathered when saving: the checkpoint asset needs one model
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def join_by_gloo() -> None:
    """Let DeepSpeed on CPU communicate by torch's gloo group, which must exist, without its own kernel.

    Otherwise DeepSpeed would compile its shared-memory kernel at the first start. That takes 90 s and a C++ compiler,
    and gloo does the same work. Call in every rank, before the model is loaded.
    """
    import deepspeed
    from deepspeed import ops

    compatible: dict[str, bool] = ops.__compatible_ops__
    assert _SHARED_MEMORY_KERNEL in compatible
    compatible[_SHARED_MEMORY_KERNEL] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


_PLAIN = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
_TYPES = ("bf16", "fp16")
_TAKEN_OUT = ("optimizer", "scheduler")
_SCHEDULERS = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}
_ADAMW = {"adam", "adamw"}  # DeepSpeed's Adam decays weights like AdamW, unless adam_w_mode is false

# The required value of a key, and the setting that determines it. Without a value, the mix determines the number, so no
# number in a file can be right, and the text is the whole reason.
Decided = dict[str, tuple[Any, str]]


def agreed_deepspeed_config(
    training: TrainingConfig, *, folder: Path, place: Callable[[str], str] = "training.{}".format
) -> dict[str, Any] | None:
    """Return `training.deepspeed` for the trainer, with "auto" for everything that `training` sets; None without it.

    Args:
        training: the section with `deepspeed` and the settings to compare.
        folder: the folder of the configuration file.
        place: maps a setting of `training` to its place in the configuration, for the message.

    Raises:
        GateauError: the file cannot be read, or contradicts `training`; the message names all such places.
    """
    config = deepspeed_config(training.deepspeed, folder=folder)
    if config is None:
        return None
    written = [(name, config[name]) for name in _PLAIN]
    written += [(f"{name}.enabled", config[name]["enabled"]) for name in _TYPES]
    written += [setting for name in _TAKEN_OUT for setting in _flat(name, config.get(name))]
    decided, mistakes = _decided(training, place), []
    for key, value in written:
        required, reason = decided.get(key, (None, "the trainer's AdamW and schedules have no such setting"))
        if value not in (None, "auto", required):
            because = reason if required is None else f"{reason} gives {json.dumps(required)}"
            mistakes.append(f"{key} is {json.dumps(value)}, but {because}")
    if mistakes:
        raise GateauError(
            "training.deepspeed",
            f"training.deepspeed: {'; '.join(mistakes)}. "
            'Remove that from the file or write "auto", or change the other setting.',
        )
    config |= dict.fromkeys(_PLAIN, "auto")
    for name in _TYPES:
        config[name]["enabled"] = "auto"
    return {name: value for name, value in config.items() if name not in _TAKEN_OUT}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif name == "optimizer.type" and str(value).lower() in _ADAMW:
        yield name, "AdamW"
    else:
        yield name, value


def _decided(training: TrainingConfig, place: Callable[[str], str]) -> Decided:
    """Return every key of a file that repeats a setting of `training`."""
    passes, rate = training.passes_per_step, (training.learning_rate, place("learning_rate"))
    wanted = [name for name in ("sequences_per_step", "tokens_per_step") if getattr(training, name) is not None]
    sequences = training.batch_size * passes * training.data_processes
    kind, adamw, schedule = f"{place('dtype')} {training.dtype}", "the trainer's AdamW", "the trainer's schedule"
    return {
        "train_micro_batch_size_per_gpu": (training.batch_size, place("batch_size")),
        "gradient_accumulation_steps": (passes, place(wanted[0] if wanted else "gradient_accumulation")),
        "train_batch_size": (sequences, f"{place('batch_size')} with passes and processes"),
        "gradient_clipping": (training.max_grad_norm, place("max_grad_norm")),
        "bf16.enabled": (training.dtype == "bfloat16", kind),
        "fp16.enabled": (training.dtype == "float16", kind),
        "optimizer.type": ("AdamW", "the trainer"),
        "optimizer.params.lr": rate,
        "optimizer.params.betas": (list(training.adam_betas), place("adam_betas")),
        "optimizer.params.eps": (1e-8, adamw),
        "optimizer.params.weight_decay": (training.weight_decay, place("weight_decay")),
        **{f"optimizer.params.{name}": (True, adamw) for name in ("torch_adam", "adam_w_mode", "bias_correction")},
        "scheduler.type": (_SCHEDULERS[training.scheduler], f"{place('scheduler')} {training.scheduler}"),
        "scheduler.params.warmup_max_lr": rate,
        "scheduler.params.warmup_min_lr": (0, schedule),
        "scheduler.params.warmup_min_ratio": (0, schedule),
        "scheduler.params.warmup_type": ("linear", schedule),
        "scheduler.params.cos_min_ratio": (training.min_learning_rate_ratio, place("min_learning_rate_ratio")),
        "scheduler.params.last_batch_iteration": (-1, schedule),
        "scheduler.params.warmup_num_steps": (None, f"{place('warmup_ratio')} and the mix decide that"),
        "scheduler.params.total_num_steps": (None, f"{place('epochs')} and the mix decide that"),
    }
