"""Sections of models that the pipeline makes: pre-experienced ones, and homologous ones by continued training."""

from typing import Literal

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.training_sections import PositionExtension

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


HOMOLOGOUS = "homologous:"
"""A model's path that begins so names another model, which is trained on with long texts to become this one."""


class HomologousOptions(Section):
    """The texts that the model is trained on, every token of them, and how; defaults are ProLong's (section 6, and the
    authors' released `train_64K.sh` in princeton-nlp/ProLong for what the optimiser is told).

    What decides whether a training fits on this machine is said once, in `training`: dtype, batch_size (rows of
    `length` tokens), processes, deepspeed, liger, gradient_checkpointing, save_steps; report_to is, too. Its
    sequence_parallel does not count: it is not for packed rows, so each process reads rows of its own.
    """

    texts: str | list[str] = Field(
        description="Long texts (books, code): path, folder, glob, s3:// or hf:// address, or Hugging Face data-set "
        "name; jsonl, json or parquet with a text field, anything else as plain text; also .gz/.zst. Of a folder the "
        "data files and *.txt are taken."
    )
    short_texts: str | list[str] | None = Field(
        default=None, description="What the model should not forget, as for texts; without, long texts are all."
    )
    text_field: str = Field(
        default="text", min_length=1, description="Of records; `meta.text` is the field `text` of the object `meta`."
    )
    long_share: float = Field(
        default=0.6, gt=0, le=1, description="Of all tokens, where there are short texts (ProLong: 60 %)."
    )
    length: int = Field(
        default=65_536, ge=16, description="Tokens of a row; a longer text is cut into sequences of this length."
    )
    least_tokens: int = Field(
        default=0, ge=0, description="Long texts of fewer tokens are left out; ProLong leaves out those below length."
    )
    tokens: int | None = Field(
        default=None,
        ge=16,
        description="Trained on, in all; texts that hold more are drawn by lot, fewer are repeated. Default: as many "
        "as the texts have in the shares asked for, none of them twice.",
    )
    positions: PositionExtension | None = Field(
        default=None,
        description="Extends the model's own rotary embedding (its rope_theta in `models` does not count); default: "
        "method ntk, which raises the base, for `length` positions.",
    )
    tokens_per_step: int = Field(
        default=4_194_304,
        ge=16,
        description="Room of all rows of an optimiser step: a multiple of length x training.batch_size x "
        "training.processes.",
    )
    learning_rate: float = Field(default=1e-5, gt=0)
    scheduler: Literal["linear", "cosine", "constant"] = "cosine"
    min_learning_rate_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="Of the learning rate: where the cosine schedule ends."
    )
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.1, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32, description="Of the lot and of the order of training.")

    @property
    def extension(self) -> PositionExtension:
        """How the rotary embedding is extended; the window that the model then declares is `length` at least."""
        if self.positions is None:
            return PositionExtension(method="ntk", target_length=self.length)
        if self.positions.target_length is None:
            return self.positions.model_copy(update={"target_length": self.length})
        return self.positions


def homologous_base_of(path: str) -> str | None:
    """The model that `homologous:<model>` names; None for any other path."""
    return path.removeprefix(HOMOLOGOUS) if path.startswith(HOMOLOGOUS) else None
