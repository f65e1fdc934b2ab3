"""`training.preset`: the hyper-parameters of the papers by name. What a file says beside the preset counts more.

Numbers that a paper does not give are this product's defaults. "Sequences a step" are counted over all ranks, so that a
recipe stays the same on one GPU and on eight.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

Recipe = Literal["gateau-7b", "gateau-7b-scripts", "skipalign", "prolong-sft"]

_ADAMW = {"adam_betas": (0.9, 0.95)}

# Si et al. 2024, "Devices and Hyperparameters": 8 GPUs, batch size 8, 12 accumulation steps, 2 epochs, 64k tokens.
_GATEAU_7B = {
    **_ADAMW,
    "learning_rate": 2e-5,
    "epochs": 2.0,
    "sequences_per_step": 96,
    "max_length": 65_536,
    "truncation": "right",
    "dtype": "bfloat16",
    "deepspeed": "zero3_offload",
    "gradient_checkpointing": True,
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "gateau-7b": _GATEAU_7B,
    # Where the paper is silent, as in the authors' released `train/scripts/*.sh` (S1s-Z/GATEAU): cosine over a warm-up
    # of 3 %, no decay, sequences of similar length side by side. With a sequence a GPU and pass, their mean over
    # passes gives every sequence the same weight.
    "gateau-7b-scripts": {
        **_GATEAU_7B,
        "scheduler": "cosine",
        "warmup_ratio": 0.03,
        "weight_decay": 0.0,
        "batching": "sorted",
        "loss": "sequence",
    },
    # Wu et al. 2024, sections 4 and A: Tülu V2 cut to 4,096 tokens, L 100k, p 0.5, Skip-Outer, no weight decay.
    "skipalign": {
        "learning_rate": 1e-5,
        "epochs": 2.0,
        "weight_decay": 0.0,
        "scheduler": "linear",
        "warmup_ratio": 0.03,
        "max_length": 4_096,
        "truncation": "right",
        "dtype": "bfloat16",
        "deepspeed": "zero3",
        "skip": {"strategy": "outer", "length": 100_000, "probability": 0.5},
    },
    # Gao et al. 2024, section 6 and B.3: 64k-token rows, document masks, mean over tokens, balanced ranks. Rates, betas
    # and decay as in the authors' released `train_sft.sh` (princeton-nlp/ProLong).
    "prolong-sft": {
        **_ADAMW,
        "learning_rate": 2e-5,
        "min_learning_rate_ratio": 0.1,
        "weight_decay": 0.1,
        "scheduler": "cosine",
        "warmup_ratio": 0.05,
        "epochs": 1.0,
        "batching": "packed",
        "pack_length": 65_536,
        "tokens_per_step": 4_194_304,
        "balanced": True,
        "loss": "token",
        "max_length": 65_536,
        "truncation": "right",
        "dtype": "bfloat16",
        "deepspeed": "zero3",
        "gradient_checkpointing": True,
    },
}
assert set(RECIPES) == set(get_args(Recipe))


def with_recipe(given: Any) -> Any:
    """Return the section's keys over those of its preset; another value, or preset, is left to the validation."""
    name = given.get("preset") if isinstance(given, Mapping) else None
    return {**RECIPES[name], **given} if isinstance(name, str) and name in RECIPES else given
