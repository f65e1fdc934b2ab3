"""How fast this device scores with a model of this shape: the scoring's own functions, timed for a few seconds.

A full prompt takes, in seconds,
    overhead + linear x FLOPs of its matrices + attention x FLOPs of its attention + head x FLOPs of its output rows;
segment prompts, packed many to a row, have a rate of their own, and so have the attention rows of Eq. 4. Full prompts
are packed too where no attention rows are wanted of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import text_digest
from gateau_dagster.estimate.random_model import TooLargeError, calibration_layers, random_model
from gateau_dagster.estimate.stopwatch import Lengths, Stopwatch, fit
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.storage.json_cache import recall, remember

if TYPE_CHECKING:
    import torch
    from transformers.configuration_utils import PreTrainedConfig

# Raise it when scoring comes to cost something else, so that what was measured before is measured again.
CODE_VERSION = "1"
_PARAMETERS = {"cpu": 2e7, "cuda": 4e8}  # of the model that is timed, at least a layer


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds a full prompt (`overhead`), and seconds per FLOP."""

    overhead: float
    linear: float
    attention: float
    head: float
    segments: float
    rows: float
    longest: int  # tokens of the longest prompt that was timed
    layers: int  # that the timed model had


def calibrated(
    config: PreTrainedConfig, lengths: Lengths, scoring: ScoringConfig, *, work_folder: Path, remote_code: bool = False
) -> Speed | str:
    """The speed on the configured device, remembered in the work folder; or why it cannot be known."""
    from gateau_dagster.models.loading import resolve_device

    device = resolve_device(scoring.device)
    file, key = work_folder / "cache" / "calibration.json", _key(config, lengths, scoring, device)
    known = recall(file, key)
    if _is_speed(known):
        return Speed(**known)
    try:
        speed = _measured(config, lengths, scoring, device, remote_code)
        _free(device)
    except TooLargeError as error:
        return str(error)
    except Exception as error:  # an estimate must not end a run that might do
        return f"timing it failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    remember(file, key, asdict(speed))
    return speed


def _is_speed(value: Any) -> bool:
    numbers = isinstance(value, dict) and all(isinstance(each, int | float) for each in value.values())
    return numbers and {*value} == {*Speed.__dataclass_fields__}


def _key(config: PreTrainedConfig, lengths: Lengths, scoring: ScoringConfig, device: torch.device) -> str:
    """Everything that decides the speed."""
    import torch
    import transformers

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu x {torch.get_num_threads()}"
    return text_digest(
        [
            CODE_VERSION,
            torch.__version__,
            transformers.__version__,
            name,
            scoring.dtype,
            str(scoring.batch_tokens),
            str(config.model_type),
            repr(ModelShape.of(config)),
            repr(lengths),
        ]
    )


def _measured(
    config: PreTrainedConfig, lengths: Lengths, scoring: ScoringConfig, device: torch.device, remote_code: bool
) -> Speed:
    whole = ModelShape.of(config)
    layers = calibration_layers(whole, _PARAMETERS.get(device.type, 4e8))
    loaded = random_model(config, layers=layers, dtype=scoring.dtype, device=device, trust_remote_code=remote_code)
    stopwatch = Stopwatch(loaded, ModelShape.of(loaded.model.config))
    passes = stopwatch.passes(lengths, scoring.batch_tokens)
    overhead, linear, attention = fit(passes)
    longest = int(passes[-1].length)
    return Speed(
        overhead=overhead * whole.layers / layers,
        linear=linear,
        attention=attention,
        head=stopwatch.head(lengths),
        segments=stopwatch.segments(lengths, scoring.batch_tokens) if lengths.segment else 0.0,
        rows=stopwatch.rows(lengths, longest) if lengths.segment else 0.0,
        longest=longest,
        layers=layers,
    )


def _free(device: torch.device) -> None:
    """Gives the memory of what was timed back, for the model that may be loaded next."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
