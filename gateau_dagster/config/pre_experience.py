"""Section about the pre-experience stage: a model that the pipeline trains on a few samples before it scores."""

from typing import Literal

from pydantic import Field

from gateau_dagster.config.base import Section

PRE_EXPERIENCED = "pre_experienced:"
"""A model's path that begins so names another model, from which the pipeline makes this one."""


class PreExperienceOptions(Section):
    """The sample of the data that the model is trained on, and how; defaults are Cherry Selection's.

    What decides whether a training fits on this machine is said once, in `training`: max_length, dtype, batch_size,
    processes, sequence_parallel, deepspeed, liger, gradient_checkpointing, save_steps; report_to is, too.
    """

    clusters: int = Field(default=100, ge=1, description="Clusters of the instructions' embeddings.")
    per_cluster: int = Field(default=10, ge=1, description="Samples of each cluster.")
    pick: Literal["random", "nearest"] = Field(
        default="random", description="Which samples of a cluster: drawn by lot, or those nearest to its centre."
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="Of k-means, of the lot and of the order of training.")
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=2e-5, gt=0)
    scheduler: Literal["linear", "cosine", "constant"] = "cosine"
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    batch: int = Field(
        default=128,
        ge=1,
        description="Sequences of an optimiser step, in all: a multiple of training.batch_size x training.processes.",
    )


def base_of(path: str) -> str | None:
    """The model that `pre_experienced:<model>` names; None for any other path."""
    return path.removeprefix(PRE_EXPERIENCED) if path.startswith(PRE_EXPERIENCED) else None
