"""What the single run trains: the mix, and the model that comes out."""

from collections.abc import Iterator

from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import REJECTED_SHARE, TRUNCATED_SHARE, Asset
from gateau_dagster.pipeline.document_split_asset import mix_checks
from gateau_dagster.pipeline.inputs import origin_key
from gateau_dagster.pipeline.made_models import made_upstream
from gateau_dagster.pipeline.mix_reads import mix_columns, mix_reads
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.training_settings import mix_settings, training_settings
from gateau_dagster.training.spec import CODE_VERSION as TRAINING_CODE_VERSION
from gateau_dagster.training.training_mix import CODE_VERSION as MIX_CODE_VERSION

CHECKPOINT_FOLDER = "checkpoint"


def training_mix(config: Config) -> Iterator[Asset]:
    """What the checkpoint is trained on."""
    training = config.training
    if not training.enabled:
        return
    yield Asset(
        key="training_mix",
        maker="training_mix",
        group="training",
        kinds=("parquet", "huggingface"),
        summary="selected + short, tokenised, in training order",
        description="Selected long samples and short conversations, tokenised, shuffled, with labels on the responses "
        "only.",
        inputs=(origin_key(config, training.model),),
        reads=mix_reads(config, CHOSEN),
        settings=lambda observed: mix_settings(config, observed),
        code_version=MIX_CODE_VERSION,
        columns=mix_columns(config),
        checks=(REJECTED_SHARE, TRUNCATED_SHARE, *mix_checks(config)),
        goal=True,
    )


def checkpoint(config: Config) -> Iterator[Asset]:
    """The fine-tuned model (Eq. 7)."""
    if not config.training.enabled:
        return
    yield Asset(
        key=CHECKPOINT_FOLDER,
        maker="trained_model",
        group="training",
        kinds=("pytorch", "huggingface", "deepspeed"),
        summary="the fine-tuned model, a Hugging Face folder",
        description="The fine-tuned model (Eq. 7), a Hugging Face folder with safetensors. Trained by a process of its "
        "own; a training that was killed goes on from its last complete checkpoint.",
        inputs=(origin_key(config, config.training.model),),
        reads={"training_mix": "content", **made_upstream(config, config.training.model)},
        settings=lambda observed: training_settings(config, observed),
        code_version=TRAINING_CODE_VERSION,
        folder=True,
        goal=True,
        own_rejects=False,
        pool="gpu",
    )
