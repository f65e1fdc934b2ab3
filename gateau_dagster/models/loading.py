"""Load models of every task from a folder or the hub, or raise an error with the reason; probe that one is causal."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError, error_at
from gateau_dagster.models.devices import resolve_device
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.model_config import (
    check_architecture,
    check_decoder,
    no_window,
    override_rope_theta,
    prompt_tokens,
    window_of,
)
from gateau_dagster.models.model_facts import (
    ModelFacts,
    check_config_file,
    check_layers,
    check_tokenizer_files,
    facts_in,
)
from gateau_dagster.models.probe import ROUNDING, probe_ids, probing
from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.storage.failures import hub_model_failure
from gateau_dagster.storage.hub_client import prepare_hub

DeviceMap: TypeAlias = Literal["auto"] | None

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


class _Origin(TypedDict):
    revision: str | None
    trust_remote_code: bool


def _origin(config: ModelConfig) -> _Origin:
    return {"revision": config.revision, "trust_remote_code": config.trust_remote_code}


def _facts(config: ModelConfig, source: str) -> ModelFacts:
    return facts_in(Path(source), path=config.path, remote_code=config.trust_remote_code)


def resolve_source(path: str, folder: Path) -> str:
    """Return a model folder (relative to `folder`) or a hub name; raise GateauError if the path is neither."""
    local = folder / Path(path).expanduser()
    if local.is_dir():
        check_config_file(facts_in(local, path=path, remote_code=False))
        return str(local)
    if local.exists():
        raise GateauError(
            "models.no_folder", f"{local} is a file: give a folder with config.json, or a name on the hub"
        )
    if path.startswith((".", "/", "~")) or not _HUB_NAME.match(path):
        raise GateauError("models.no_folder", f"the model folder {local} does not exist: correct models.<name>.path")
    prepare_hub()
    return path


def read_config(config: ModelConfig, source: str) -> PreTrainedConfig:
    """Return the configuration of a model.

    Raises GateauError if config.json is damaged, of an unknown architecture or has more layers than the weights, or if
    the hub cannot be reached.
    """
    try:
        found = AutoConfig.from_pretrained(source, **_origin(config))
    except Exception as error:  # the library, the hub and remote code each raise their own types
        if source == config.path and not Path(source).is_dir():
            refusal = hub_model_failure(error, place="models", name=source, revision=config.revision)
            if refusal is not None:
                raise refusal from error
            raise GateauError(
                "hub.unavailable",
                f"{source} is not a folder on this machine, and could not be read from the Hugging Face hub (revision "
                f"{config.revision or 'main'}): {_first_line(error)} Check the name, the network and HF_TOKEN.",
            ) from error
        raise GateauError(
            "models.file_damaged", f"{source}: config.json cannot be read: {_first_line(error)}"
        ) from error
    if Path(source).is_dir():
        layers = getattr(found.get_text_config(decoder=True), "num_hidden_layers", None)
        with error_at(config.path):
            check_layers(_facts(config, source), layers)
    return found


def read_tokenizer(config: ModelConfig, source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer; raise GateauError if there is none, or it is damaged."""
    if Path(source).is_dir():
        check_tokenizer_files(_facts(config, source))
    try:
        return open_tokenizer(source, **_origin(config))
    except Exception as error:  # as above; for a tokenizer.json that holds a list, it asks for the list's keys
        raise GateauError(
            "models.not_loadable", f"{source}: the tokenizer cannot be loaded: {_first_line(error)}"
        ) from error


def read_weights(
    auto: Any,
    config: ModelConfig,
    source: str,
    model_config: PreTrainedConfig,
    *,
    dtype: Dtype,
    device_map: DeviceMap = None,
    may_lack: Sequence[str] = (),
) -> PreTrainedModel:
    """Return the model of `auto`, one of transformers' AutoModel classes, with the checkpoint's weights in `dtype`.

    Raises GateauError for weights that are absent, damaged, not safetensors or too large for memory. A missing tensor
    raises it, too, unless its name begins with one of `may_lack`.
    """
    try:
        model, info = auto.from_pretrained(
            source,
            config=model_config,
            dtype=getattr(torch, dtype),
            device_map=device_map,
            use_safetensors=None if config.trust_remote_code else True,
            output_loading_info=True,
            **_origin(config),
        )
    except Exception as error:  # safetensors, the hub and remote code each raise their own types
        raise _load_failure(config, error) from error
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(tuple(may_lack)))
    if missing:
        raise GateauError(
            "models.incomplete",
            f"{config.path}: the weights lack {', '.join(missing[:3])}, which would be random: copy the whole "
            f"folder, or take a model saved as a {type(model).__name__}",
        )
    return model


def moved(config: ModelConfig, model: PreTrainedModel, target: torch.device) -> torch.device:
    """Move the model to `target` and return `target`; raise GateauError if it does not fit."""
    try:
        model.to(device=target)  # pyright: ignore[reportCallIssue]
    except (RuntimeError, MemoryError) as error:
        raise _load_failure(config, error) from error
    return target


def _load_failure(config: ModelConfig, error: BaseException) -> GateauError:
    if is_out_of_memory(error):
        return GateauError(
            "models.too_large", f"{config.path} does not fit into memory: use scoring.dtype bfloat16 or a larger device"
        )
    hint = ""
    if "safetensors" in str(error) and not isinstance(error, FileNotFoundError) and not config.trust_remote_code:
        hint = " Only safetensors are read, because a .bin file may hold code: convert it, or set trust_remote_code."
    return GateauError("models.not_loadable", f"{config.path}: the model cannot be loaded: {_first_line(error)}{hint}")


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"


_TOKENS = 8


def sees_what_follows(model: PreTrainedModel) -> bool:
    """Return whether another last token changes the logits of the token before it by more than rounding does.

    It does in CPM-Ant, which reads its input as a whole, and in BERT and similar models without `is_decoder`. It does
    in decoders that were converted to embed, too. A probe that fails returns False: the first use reports why. Under
    ZeRO-3 all ranks must call it.
    """
    first = probe_ids(model, _TOKENS)
    ids = torch.stack([first, torch.cat([first[:-1], first[-1:] - 1])])
    try:
        with probing(model):
            one, other = model(input_ids=ids, use_cache=False).logits[:, -2]
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        return False
    # Tokens that do not see the difference are the same products of the same shapes.
    return bool((one - other).norm() > ROUNDING[one.dtype] / 10 * one.norm())


def load_model(
    config: ModelConfig,
    *,
    dtype: Dtype,
    device: str,
    folder: Path,
    device_map: DeviceMap = None,
    adjust: Callable[[PreTrainedConfig], None] | None = None,
) -> LoadedModel:
    """Load model and tokenizer from a folder (relative to `folder`) or from the Hugging Face hub.

    With `device_map` 'auto' accelerate spreads the layers over all GPUs and moves data between them; `device` must then
    be 'auto'. `adjust` may change the checkpoint's configuration before the model is built from it.

    Raises GateauError with cause and remedy: missing or incomplete folder, hub unreachable, an architecture that does
    not generate text or is not causal, weights that are missing or not safetensors, no tokenizer, no rotary embedding
    to override, an absent device, out of memory.
    """
    assert device_map is None or device == "auto", "see placement.check_device_map"
    target = resolve_device(device)
    source = resolve_source(config.path, folder)
    model_config = read_config(config, source)
    check_decoder(model_config, config, source)
    window = window_of(model_config, config)
    if config.context == "window" and window is None:
        raise GateauError("models.window", no_window(config))
    if config.rope_theta is not None:
        override_rope_theta(model_config, config.rope_theta, name=config.path)
    if adjust is not None:
        adjust(model_config)
    tokenizer = read_tokenizer(config, source)
    model = read_weights(AutoModelForCausalLM, config, source, model_config, dtype=dtype, device_map=device_map)
    target = _spread_over_gpus(config, model) if device_map is not None else moved(config, model, target)
    model.eval().requires_grad_(False)
    if sees_what_follows(model):
        raise GateauError(
            "models.not_causal",
            f"{config.path} ({type(model).__name__}, model type {model.config.model_type}) lets a token see the "
            "tokens that follow it, so its scores would be wrong: take a causal language model such as Llama, "
            "Qwen or Mistral (for BERT: one with is_decoder: true in its config.json)",
        )
    return LoadedModel(
        model=model, tokenizer=tokenizer, window=window, device=target, name=config.path, opening=config.opening
    )


def _spread_over_gpus(config: ModelConfig, model: PreTrainedModel) -> torch.device:
    """Return the device of the input embeddings; raise GateauError if some layer had to stay outside the GPUs."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk", "meta"}:
        raise GateauError(
            "models.too_large",
            f"{config.path} does not fit into the memory of the {torch.cuda.device_count()} GPUs together: use "
            "scoring.dtype bfloat16, or more or larger GPUs",
        )
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.device


def load_tokenizer(config: ModelConfig, *, folder: Path) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a folder (relative to `folder`) or hub name; raise GateauError as `load_model`
    does.
    """
    return read_tokenizer(config, resolve_source(config.path, folder))


def effective_max_length(loaded: LoadedModel, config: ModelConfig, scoring: ScoringConfig) -> int:
    """Return the `prompt_tokens` of a loaded model."""
    return prompt_tokens(loaded.model.config, config, scoring, window=loaded.window)


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
    model_config = read_config(config, source)
    if model_config.is_encoder_decoder:
        raise GateauError(
            "models.task",
            f"{source} is an encoder-decoder ({model_config.model_type}): task {task} reads a text in one pass",
        )
    if task == "reward" and not config.trust_remote_code:
        check_architecture(model_config.architectures or [], name=source)
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


def load_for_task(
    config: ModelConfig, *, dtype: Dtype, device: str, folder: Path, device_map: DeviceMap = None
) -> LoadedModel:
    """Load a causal model with `loading.load_model`, or a reward model or an encoder with `load_encoder`.

    Raises GateauError as these do.
    """
    if config.task == "causal":
        return load_model(config, dtype=dtype, device=device, folder=folder, device_map=device_map)
    return load_encoder(config, task=config.task, dtype=dtype, device=device, folder=folder)
