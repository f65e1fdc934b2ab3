"""Tiny models, a tokenizer trained on the spot, and ragged samples of English-like text."""

import random
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loading import LoadedModel

_TEXT = """
the of and to in a is that it was for on are with as they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some these
so would other into has more two her like him see time could no make than first been its who now people my
made over did down only way find use may water long little very after words called just where most know
harbour lighthouse ledger merchant naïve café winter granite engine signal treaty parliament molecule orbit
archive
"""
_WORDS = _TEXT.split()
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def text(seed: int, words: int) -> str:
    """Sentences and paragraphs; the same for the same seed."""
    rng = random.Random(seed)
    parts = []
    while words > 0:
        count = min(words, rng.randint(4, 14))
        sentence = " ".join(rng.choice(_WORDS) for _ in range(count))
        parts.append(sentence.capitalize() + rng.choice([". ", ".\n", "? ", ", 17; ", ".\n\n"]))
        words -= count
    return "".join(parts).strip()


@cache
def tokenizer(bos: bool = True, chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE with 400 tokens."""
    specials = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(  # pyright: ignore
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text(seed, 300) for seed in range(4)], trainer)
    options: dict[str, Any] = {"bos_token": "<s>"} if bos else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", **options)
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


_SPECIFIC: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 150},
    "gemma3_text": {
        "query_pre_attn_scalar": 1,
        "sliding_window": 150,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma2": {"sliding_window": 48, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.3},
    "cohere": {"logit_scale": 0.2},
    "gpt_oss": {"sliding_window": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt2": {"n_positions": 2048},
    "mamba": {"num_hidden_layers": 2, "state_size": 4},
}
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "vocab_size": 400,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def model_config(kind: str, **changes: Any) -> Any:
    """Configuration of a model with two layers; four heads share two key-value heads where the kind can."""
    shape = dict(_SHAPE)
    if kind in {"gpt2", "mamba", "bloom", "mpt"}:
        shape = {key: _SHAPE[key] for key in ("hidden_size", "initializer_range", "vocab_size", "bos_token_id")}
        shape |= {"eos_token_id": 1, "pad_token_id": None}
    if kind == "gpt2":
        shape |= {"n_layer": 2, "n_head": 4}
    if kind == "bloom":
        shape |= {"n_layer": 2, "n_head": 4}
    if kind == "mpt":
        shape = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 400}
    options: dict[str, Any] = shape | _SPECIFIC.get(kind, {}) | changes
    return CONFIG_MAPPING[kind](**options)


def loaded_model(
    kind: str, *, dtype: torch.dtype = torch.float32, bos: bool = True, seed: int = 0, **changes: Any
) -> LoadedModel:
    """A random model of this kind, as load_model would return it."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=dtype).eval()
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return LoadedModel(
        model=model, tokenizer=tokenizer(bos=bos), window=2048, device=torch.device("cpu"), name=f"tiny-{kind}"
    )


def samples() -> list[Sample]:
    """Ragged contexts (one without, one shorter than a segment) and responses."""
    shapes = [(120, 8, 30), (0, 6, 9), (5, 12, 1), (260, 3, 55), (77, 20, 17)]
    return [
        Sample(
            sample_id=f"s{index}",
            source="test",
            context=text(100 + index, context),
            instruction=text(200 + index, instruction),
            response=text(300 + index, response),
        )
        for index, (context, instruction, response) in enumerate(shapes)
    ]
