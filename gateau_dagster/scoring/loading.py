"""From a model's section of the configuration to a model that can score, or a message that says why not."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.memory import is_out_of_memory
from gateau_dagster.scoring.rope import override_rope_theta

DeviceMap: TypeAlias = Literal["auto"] | None

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_GENERATIVE = ("CausalLM", "LMHead", "ConditionalGeneration")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model ready to score: in evaluation mode, without gradients, on `device`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int | None  # tokens; ModelConfig.window, else the checkpoint's own; None: the architecture has no limit
    device: torch.device  # where the input goes; with device_map the other layers may be elsewhere
    name: str  # as the configuration spells it
    opening: str = ""  # text before every scoring prompt: ModelConfig.opening


def load_model(
    config: ModelConfig, *, dtype: Dtype, device: str, folder: Path, device_map: DeviceMap = None
) -> LoadedModel:
    """Load model and tokenizer from a folder (relative to `folder`) or from the Hugging Face hub.

    With `device_map` 'auto' accelerate spreads the layers over all GPUs and moves what passes between them; `device`
    then has to be 'auto'.

    Raises GateauError naming cause and cure: missing or incomplete folder, hub out of reach, an architecture that
    does not generate text, weights that are missing or not safetensors, no tokenizer, no rotary embedding to
    override, a device that is absent, out of memory.
    """
    assert device_map is None or device == "auto", "see placement.check_device_map"
    target = resolve_device(device)
    source = _resolve_source(config.path, folder)
    model_config = _read_config(config, source)
    window = config.window or getattr(model_config.get_text_config(decoder=True), "max_position_embeddings", None)
    if config.context == "window" and window is None:
        raise GateauError(f"{config.path}: context is 'window', but the model names no window: give `window` in tokens")
    if config.rope_theta is not None:
        override_rope_theta(model_config, config.rope_theta, name=config.path)
    tokenizer = _read_tokenizer(config, source)
    model = _read_weights(config, source, model_config, dtype=dtype, device_map=device_map)
    target = _spread_over_gpus(config, model) if device_map is not None else _moved(config, model, target)
    model.eval().requires_grad_(False)
    return LoadedModel(
        model=model, tokenizer=tokenizer, window=window, device=target, name=config.path, opening=config.opening
    )


def _moved(config: ModelConfig, model: PreTrainedModel, target: torch.device) -> torch.device:
    try:
        model.to(device=target)  # pyright: ignore[reportCallIssue]
    except (RuntimeError, MemoryError) as error:
        raise _load_failure(config, error) from error
    return target


def _spread_over_gpus(config: ModelConfig, model: PreTrainedModel) -> torch.device:
    """The device of the input embeddings; raises GateauError when some layer had to stay outside the GPUs."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk", "meta"}:
        raise GateauError(
            f"{config.path} does not fit into the memory of the {torch.cuda.device_count()} GPUs together: use "
            "scoring.dtype bfloat16, or more or larger GPUs"
        )
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.device


def load_tokenizer(config: ModelConfig, *, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer alone, of a folder (relative to `folder`) or hub name; raises GateauError as `load_model`."""
    return _read_tokenizer(config, _resolve_source(config.path, folder))


def effective_max_length(loaded: LoadedModel, config: ModelConfig, scoring: ScoringConfig) -> int:
    """Tokens of a prompt that this model is shown: scoring.max_length, or less with `context: window`.

    Raises GateauError when the model has learned positions and would be asked for ones that do not exist.
    """
    if config.context == "window":
        if loaded.window is None:
            raise GateauError(f"{config.path}: context is 'window', but the model names no window: give `window`")
        return min(scoring.max_length, loaded.window)
    text_config = loaded.model.config.get_text_config(decoder=True)
    positions = getattr(text_config, "max_position_embeddings", None)
    rotary = getattr(text_config, "rope_parameters", None)
    if positions is not None and not rotary and positions < scoring.max_length:
        raise GateauError(
            f"{config.path} has {positions} learned positions and cannot read scoring.max_length = "
            f"{scoring.max_length} tokens: lower scoring.max_length or give the model `context: window`"
        )
    return scoring.max_length


def resolve_device(device: str) -> torch.device:
    """'auto' is the GPU with the most free memory, else the CPU. Raises GateauError for an absent or unknown device."""
    if device == "auto":
        return _freest_gpu() if torch.cuda.is_available() else torch.device("cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise GateauError(f"scoring.device: {device!r} is no device: use auto, cpu, cuda or cuda:1") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise GateauError(
            f"scoring.device: {device} was asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} "
            "CUDA devices: use cpu or auto, or install torch's CUDA build and check the driver"
        )
    return target


def _freest_gpu() -> torch.device:
    """Steps that run side by side spread over the GPUs, instead of meeting on the first."""
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    return torch.device("cuda", free.index(max(free)))


def _resolve_source(path: str, folder: Path) -> str:
    local = folder / Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise GateauError(f"{local} is not a model folder: it holds no config.json")
        return str(local)
    if local.exists():
        raise GateauError(f"{local} is a file: a model is a folder with config.json, or a hub name")
    if path.startswith((".", "/", "~")) or not _HUB_NAME.match(path):
        raise GateauError(f"there is no model folder {local}: correct models.<name>.path")
    return path


def _read_config(config: ModelConfig, source: str) -> PreTrainedConfig:
    try:
        model_config = AutoConfig.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        if source == config.path and not Path(source).is_dir():
            raise GateauError(
                f"{source} is no folder here, and could not be read from the Hugging Face hub (revision "
                f"{config.revision or 'main'}): {_first_line(error)} Check the name, the network and HF_TOKEN."
            ) from error
        raise GateauError(f"{source}: config.json cannot be read: {_first_line(error)}") from error
    architectures = model_config.architectures or []
    generative = not architectures or any(word in name for name in architectures for word in _GENERATIVE)
    if model_config.is_encoder_decoder or not (generative or config.trust_remote_code):
        raise GateauError(
            f"{source} is a {', '.join(architectures) or model_config.model_type}, not a causal language model: "
            "a response can only be scored by a decoder such as Llama, Qwen or Mistral"
        )
    return model_config


def _read_tokenizer(config: ModelConfig, source: str) -> PreTrainedTokenizerBase:
    # Without these files transformers builds an empty tokenizer instead of failing.
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise GateauError(f"{source} has no tokenizer: copy tokenizer.json and tokenizer_config.json into it")
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise GateauError(f"{source}: the tokenizer cannot be loaded: {_first_line(error)}") from error


def _read_weights(
    config: ModelConfig, source: str, model_config: PreTrainedConfig, *, dtype: Dtype, device_map: DeviceMap
) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=model_config,
            revision=config.revision,
            dtype=getattr(torch, dtype),
            device_map=device_map,
            trust_remote_code=config.trust_remote_code,
            use_safetensors=None if config.trust_remote_code else True,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, the hub and remote code each raise types of their own
        raise _load_failure(config, error) from error
    model, info = loaded
    if info["missing_keys"]:
        raise GateauError(
            f"{config.path}: the weights lack {', '.join(sorted(info['missing_keys'])[:3])} and would be random: "
            "the folder is incomplete or belongs to another architecture"
        )
    return model


def _load_failure(config: ModelConfig, error: BaseException) -> GateauError:
    if is_out_of_memory(error):
        return GateauError(f"{config.path} does not fit into memory: use scoring.dtype bfloat16 or a larger device")
    hint = ""
    if "safetensors" in str(error) and not config.trust_remote_code:
        hint = " Only safetensors are read, because a .bin file may hold code: convert it, or set trust_remote_code."
    return GateauError(f"{config.path}: the model cannot be loaded: {_first_line(error)}{hint}")


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"
