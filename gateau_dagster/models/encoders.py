"""Load models that read a text as a whole (encoders and reward models), and any configured model by its task."""

from pathlib import Path
from typing import Literal, TypeAlias

from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError
from gateau_dagster.models import loading
from gateau_dagster.models.decoder_config import override_rope_theta
from gateau_dagster.models.devices import resolve_device
from gateau_dagster.models.loading import DeviceMap, LoadedModel
from gateau_dagster.models.reward_head import check_architecture
from gateau_dagster.models.weights import moved, read_config, read_tokenizer, read_weights, resolve_source

EncoderTask: TypeAlias = Literal["reward", "embedding"]

_AUTO = {"reward": AutoModelForSequenceClassification, "embedding": AutoModel}
# A mean over the states does not use BERT's pooler, and many encoders are saved without it.
_MAY_LACK = {"reward": (), "embedding": ("pooler.",)}
_NO_LIMIT = 10**9  # a tokenizer without a limit reports one above this


def load_encoder(config: ModelConfig, *, task: EncoderTask, dtype: Dtype, device: str, folder: Path) -> LoadedModel:
    """Load model and tokenizer from a folder (relative to `folder`) or from the Hugging Face hub.

    `window` of the result is how many tokens the model reads: ModelConfig.window, but at most the checkpoint's
    positions and the tokenizer's own limit.

    Raises GateauError as `load_model` does. It is also raised for a reward model without a sequence classification head
    or with an untrained one, and for an encoder-decoder. The number of the head's outputs is not checked here.
    """
    target = resolve_device(device)
    source = resolve_source(config.path, folder)
    model_config = _encoder_config(config, source, task)
    if config.rope_theta is not None:
        override_rope_theta(model_config, config.rope_theta, name=config.path)
    tokenizer = read_tokenizer(config, source)
    model = read_weights(_AUTO[task], config, source, model_config, dtype=dtype, may_lack=_MAY_LACK[task])
    target = moved(config, model, target)
    model.eval().requires_grad_(False)
    limits = [config.window, _positions(model), tokenizer.model_max_length]
    known = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
    window = min(known) if known else None
    return LoadedModel(model=model, tokenizer=tokenizer, window=window, device=target, name=config.path)


def _positions(model: PreTrainedModel) -> int | None:
    """Return the number of tokens for which the model has positions; None if it has no limit."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and similar models start counting after the position of the padding.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _encoder_config(config: ModelConfig, source: str, task: EncoderTask) -> PreTrainedConfig:
    found = read_config(config, source)
    if found.is_encoder_decoder:
        raise GateauError(
            "models.task", f"{source} is an encoder-decoder ({found.model_type}): task {task} reads a text in one pass"
        )
    if task == "reward" and not config.trust_remote_code:
        check_architecture(found.architectures or [], name=source)
    return found


def load_for_task(
    config: ModelConfig, *, dtype: Dtype, device: str, folder: Path, device_map: DeviceMap = None
) -> LoadedModel:
    """Load a causal model with `loading.load_model`, or a reward model or an encoder with `load_encoder`.

    Raises GateauError as these do.
    """
    if config.task == "causal":
        return loading.load_model(config, dtype=dtype, device=device, folder=folder, device_map=device_map)
    return load_encoder(config, task=config.task, dtype=dtype, device=device, folder=folder)
