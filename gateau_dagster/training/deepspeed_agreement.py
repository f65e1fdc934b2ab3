"""Check that a DeepSpeed configuration agrees with `training` on what both set; `training` then decides.

The usual Hugging Face files use "auto" for what the training decides, and this module sets it everywhere. Sections
`optimizer` and `scheduler` are removed once they agree. AdamW and the schedule are the Trainer's, with DeepSpeed and
without it (DeepSpeed's own would decay the norms' weights, and warm up logarithmically).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.training.deepspeed_config import deepspeed_config

_PLAIN = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
_TYPES = ("bf16", "fp16")
_TAKEN_OUT = ("optimizer", "scheduler")
_SCHEDULERS = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}
_ADAMW = {"adam", "adamw"}  # DeepSpeed's Adam decays weights like AdamW, unless adam_w_mode is false

# The value that a key must have, and what decides it. Without a value, the mix decides, and no number can be right.
Decided = dict[str, tuple[Any, str]]


def agreed_deepspeed_config(
    training: TrainingConfig, *, folder: Path, place: Callable[[str], str] = "training.{}".format
) -> dict[str, Any] | None:
    """Return `training.deepspeed` for the trainer, or None: everything that `training` decides is "auto".

    Args:
        training: whose `deepspeed` and settings are compared.
        folder: of the configuration file.
        place: maps a setting of `training` to its place in the configuration, for the message.

    Raises:
        GateauError: the file cannot be read, or contradicts `training`; the message names all such places.
    """
    config = deepspeed_config(training.deepspeed, folder=folder)
    if config is None:
        return None
    decided = _decided(training, place)
    mistakes = [
        f"{key} is {json.dumps(said)}, but {_reason(key, decided)}"
        for key, said in _said(config)
        if said not in (None, "auto") and (key not in decided or said != decided[key][0])
    ]
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


def _reason(key: str, decided: Decided) -> str:
    if key not in decided:
        return "the trainer's AdamW and schedules have no such setting"
    value, who = decided[key]
    return f"{who} decide that" if value is None else f"{who} gives {json.dumps(value)}"


def _said(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the file's settings of the training: dotted keys and their values."""
    yield from ((name, config[name]) for name in _PLAIN)
    yield from ((f"{name}.enabled", config[name]["enabled"]) for name in _TYPES)
    for name in _TAKEN_OUT:
        yield from _flat(name, config.get(name))


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
        "scheduler.params.warmup_num_steps": (None, f"{place('warmup_ratio')} and the mix"),
        "scheduler.params.total_num_steps": (None, f"{place('epochs')} and the mix"),
    }
