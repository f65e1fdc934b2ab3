"""Section about supervised fine-tuning on the selected samples."""

from typing import Any, Literal

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.models import Dtype


class TrainingConfig(Section):
    """Hyper-parameters of the checkpoint; defaults are the paper's (appendix A) where it gives them."""

    enabled: bool = True
    model: str = Field(default="long", description="Which of `models` is fine-tuned.")
    max_length: int = Field(
        default=65_536,
        ge=16,
        description="Tokens of a sequence. A longer sample loses the left end of its context, a longer conversation "
        "its end.",
    )
    epochs: float = Field(default=2.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1, description="Optimiser steps; overrides epochs.")
    learning_rate: float = Field(default=2e-5, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    scheduler: Literal["linear", "cosine", "constant"] = "linear"
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    batch_size: int = Field(default=1, ge=1, description="Sequences per process and step.")
    gradient_accumulation: int = Field(default=12, ge=1)
    dtype: Dtype = "bfloat16"
    gradient_checkpointing: bool = False
    seed: int = 42
    processes: int = Field(
        default=1, ge=1, description="Ranks on this machine, started by torchrun when more than one."
    )
    deepspeed: Literal["zero2", "zero3"] | str | dict[str, Any] | None = Field(
        default=None, description="zero2, zero3, a path to a DeepSpeed JSON file, or its content."
    )
    save_steps: int = Field(default=50, ge=1, description="Steps between resumable checkpoints.")
