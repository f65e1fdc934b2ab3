"""A tiny random model of any causal architecture of transformers, from a configuration of a few general sizes."""

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gateau_dagster.models.loaded import LoadedModel

VOCABULARY = 400
_LARGEST = 30_000_000  # parameters: a model above it was not made small by these sizes
# Set where an architecture's configuration has a setting of this name.
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "d_ff": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "ffn_hidden_size": 96,
    "dim": 64,
    "emb_dim": 64,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 1,
    "num_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "d_kv": 16,
    "attention_head_size": 16,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "shared_expert_intermediate_size": 24,
    "moe_k": 2,
    "first_k_dense_replace": 1,
    "expert_ffn_hidden_size": 24,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "state_size": 8,
    "mamba_d_state": 8,
    "ssm_state_size": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_mamba_heads": 2,
    "mamba_n_groups": 1,
    "n_groups": 1,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_ctx": 512,
    "max_seq_len": 512,
    "sliding_window": 24,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "is_decoder": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
    "activation_dropout": 0.0,
    "resid_dropout": 0.0,
    "residual_dropout": 0.0,
    "embd_dropout": 0.0,
    "lora_rank": 8,
    "use_cache": False,
    "mlp_bias": False,
}
# Whose head_dim is the part of a head that is rotated.
_LATENT = ("axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "youtu")
_THETA = {"rope_type": "default", "rope_theta": 10_000.0}
# What the general sizes do not make fit; None: left out.
_OWN: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 8, "chunk_size": 16},
    "bamba": {"attn_layer_indices": [1], "mamba_chunk_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "mpt": {"max_seq_len": 512},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 24},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 64, "attention_window_size": 24},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "num_mem_blocks": 1},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "dbrx": {
        "attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _THETA, "full_attention": _THETA},
    },
    "prophetnet": {
        "num_hidden_layers": None,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
    },
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 32]},
    "xlnet": {"max_position_embeddings": None},
    "xlstm": {"num_heads": 4, "chunk_size": 16},
    "rwkv": {"attention_hidden_size": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [96, 96],
        "laurel_rank": 8,
        "altup_num_inputs": 2,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_chunk_size": 16},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_chunk_size": 16},
    "xlm": {"causal": True},
    "zaya": {"num_experts_per_tok": 1},
    "electra": {"embedding_size": 64},
    "xmod": {"default_language": "en_XX"},
    **{kind: {"rotary_dim": 8} for kind in ("codegen", "gptj")},
    **{kind: {"head_dim": 8, "num_key_value_heads": 4} for kind in _LATENT},
}


def tiny_config(kind: str) -> Any:
    """A configuration with two layers, or one of each kind of layer that the architecture has.

    Raises whatever the architecture's own code does where no attempt fits.
    """
    failure: Exception | None = None
    for options in _attempts(kind):
        try:
            config = CONFIG_MAPPING[kind](**options)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            size = sum(each.numel() for each in model.parameters())
            if size > _LARGEST:
                raise ValueError(f"{size:,} parameters with every size that the configuration has at its smallest")
            return config
        except Exception as error:  # each architecture has its own
            failure = failure or error
    assert failure is not None
    raise failure


def _attempts(kind: str) -> Iterator[dict[str, Any]]:
    """Settings of the architecture: all that are known, then fewer."""
    made = CONFIG_MAPPING[kind]()
    known = _sizes(made) | _nested(made)
    own = {name: value for name, value in {**known, **_OWN.get(kind, {})}.items() if value is not None}
    kinds = list(dict.fromkeys(getattr(made.get_text_config(decoder=True), "layer_types", None) or []))
    if len(kinds) > 1 and "layer_types" not in own and "num_hidden_layers" in own:
        yield own | {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    yield own
    yield own | {"num_key_value_heads": 4}
    yield {name: value for name, value in own.items() if name not in {"head_dim", "global_head_dim"}}
    yield {name: value for name, value in own.items() if "drop" not in name}
    yield {name: value for name, value in own.items() if name != "v_head_dim"}


def _sizes(config: Any) -> dict[str, Any]:
    return {name: value for name, value in _SIZES.items() if _has(config, name) and not _of_mpt(config, name)}


def _of_mpt(config: Any, name: str) -> bool:
    """MPT's shares of dropped attention are whole numbers, 0 by default."""
    return (config.model_type or "mpt").startswith("mpt") and "pdrop" in name


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except RuntimeError:  # of configurations whose layers differ
        return True


def _nested(config: Any) -> dict[str, Any]:
    """The parts of a model for text and images, each as small."""
    found = {}
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None and part is not config:
            found[name] = type(part)(
                **(_sizes(part) | _nested(part) | {"num_channels": 3} if "vision" in name else _sizes(part))
            )
    return found


def tiny_model(kind: str) -> PreTrainedModel:
    """The random model in float32, wide enough in its weights that tokens and neighbours matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(kind), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_()
    return model


def loaded(model: PreTrainedModel) -> LoadedModel:
    """As load_model returns it; its tokenizer is never asked for anything but special tokens."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))  # pyright: ignore
    model.eval().requires_grad_(False)
    name = f"tiny {model.config.model_type}"
    return LoadedModel(model=model, tokenizer=tokenizer, window=512, device=torch.device("cpu"), name=name)
