"""Change a model so that it can be trained on the planned rows, or say why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.readiness import check_documents, check_heads

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig


def fit_to_rows(model: PreTrainedModel, training: TrainingConfig) -> None:
    """Let `model` compute the loss in chunks, and attend within the documents of a row, where `training` needs that.

    Raises:
        GateauError: the model cannot be trained this way. Under ZeRO-3 all ranks must call this.
    """
    from gateau_dagster.models.training_attention import attend_within_documents
    from gateau_dagster.training.response_loss import use_chunked_loss
    from gateau_dagster.training.sequence_parallel import check_shareable

    check_documents(model.config, training, name=type(model).__name__)
    if training.chunked_loss:
        use_chunked_loss(model)
    if training.side_by_side:
        attend_within_documents(model)
    if training.sequence_parallel > 1:
        check_shareable(model, size=training.sequence_parallel)


def check_architecture(model_config: PreTrainedConfig, training: TrainingConfig, *, name: str) -> None:
    """Check, before any weights are read, that a model can be trained on rows of documents, or on shared rows.

    A small random model of the architecture is tried. If none can be built, the training checks the model itself.

    Args:
        model_config: of the model.
        training: its training.
        name: of the model, for messages.

    Raises:
        GateauError: it cannot.
    """
    from gateau_dagster.models.small_model import small_model

    if training.sequence_parallel > 1:
        check_heads(model_config, training.sequence_parallel, name=name)
    check_documents(model_config, training, name=name)
    model = small_model(model_config)
    if model is not None:
        fit_to_rows(model, training)
