"""Change a model so that it can be trained on the planned rows, or say why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
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


def tileable(model: PreTrainedModel, training: TrainingConfig, *, cuda: bool) -> bool:
    """Return whether the training may compute the feed-forward layers in tiles; `auto` never does on a CPU.

    Raises:
        GateauError: the settings ask for tiles, but this model's layers cannot be tiled.
    """
    from gateau_dagster.training.tiled_mlp import why_untiled

    if training.tiled_mlp == "off" or (training.tiled_mlp == "auto" and not cuda):
        return False
    reason = why_untiled(model)
    if reason is not None and training.tiled_mlp != "auto":
        raise GateauError(
            "training.architecture",
            f"training.tiled_mlp: {type(model).__name__} (model type {model.config.model_type}) cannot compute its "
            f"feed-forward layers in tiles: {reason}. Set training.tiled_mlp: auto.",
        )
    return reason is None


def check_architecture(model_config: PreTrainedConfig, training: TrainingConfig, *, name: str) -> str | None:
    """Check, before any weights are read, that a model can be trained on the planned rows, and in tiles if set.

    A small random model of the architecture is tried. If none can be built, the training checks the model itself.

    Args:
        model_config: of the model.
        training: its training.
        name: of the model, for messages.

    Returns:
        Why no small model could be tried; None if one was.

    Raises:
        GateauError: it cannot.
    """
    from gateau_dagster.models.small_model import NoSmallModelError, small_model

    if training.sequence_parallel > 1:
        check_heads(model_config, training.sequence_parallel, name=name)
    check_documents(model_config, training, name=name)
    try:
        model = small_model(model_config)
    except NoSmallModelError as error:
        return str(error)
    fit_to_rows(model, training)
    tileable(model, training, cuda=False)
    return None
