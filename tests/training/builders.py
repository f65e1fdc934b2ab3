"""A tiny Llama, its tokenizer, a ragged training mix, and specifications of trainings on them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.tables import TRAINING_MIX, WEIGHTED_MIX, schema
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.spec import TrainingSpec

VOCABULARY = 300
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def tokenizer(bos: bool = True, eos: bool = True, chat: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte-level BPE; spells any text exactly."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(  # pyright: ignore
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["### Input: the ### Instruction: what ### Response: the answer is " * 9], trainer)
    options: dict[str, Any] = ({"bos_token": "<s>"} if bos else {}) | ({"eos_token": "</s>"} if eos else {})
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    fast.chat_template = chat
    return fast


def save_model(folder: Path, *, tied: bool = False) -> Path:
    """A randomly initialised Llama with 32 dimensions, and the tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_mix(path: Path, *, rows: int = 11, longest: int = 40, weighted: bool = False) -> Path:
    """Ragged sequences with loss on a random share of the tokens; the first label counts in none but is set in some.
    `weighted`: tokens of long samples have weights of their own."""
    rng, of_weights = np.random.default_rng(7), np.random.default_rng(8)
    kind = WEIGHTED_MIX if weighted else TRAINING_MIX
    columns: dict[str, list[Any]] = {column.name: [] for column in kind}
    for row in range(rows):
        length = int(rng.integers(8, longest + 1)) if row else longest
        ids = rng.integers(5, VOCABULARY, length).astype(np.int32)
        labels = np.where(np.arange(length) >= rng.integers(0, length - 2), ids, IGNORED).astype(np.int32)
        origin = "long" if row % 3 else "short"
        values = {
            "position": row,
            "sample_id": f"sample-{row}",
            "origin": origin,
            "source": f"{origin} data",
            "input_ids": ids,
            "labels": labels,
            "block_tokens": [2, 1, length - 5, 2],
            "truncated_tokens": 0,
            "weights": (of_weights.uniform(0, 5, length) if row % 3 else np.ones(length)).astype(np.float32),
        }
        for name, column in columns.items():
            column.append(values[name])
    pl.DataFrame(columns, schema=schema(kind)).write_parquet(path)
    return path


def make_spec(
    folder: Path, *, name: str = "run", deepspeed: dict[str, Any] | None = None, **training: Any
) -> TrainingSpec:
    """A training in `folder`, whose model and mix are made once; float32 and four epochs unless told otherwise."""
    if not (folder / "base").exists():
        save_model(folder / "base")
        save_mix(folder / "mix.parquet", weighted=training.get("loss") == "longce")
    settings = {
        "dtype": "float32",
        "epochs": 2.0,
        "learning_rate": 5e-3,
        "gradient_accumulation": 2,
        "batch_size": 2,
        "warmup_ratio": 0.1,
        "save_steps": 3,
        "max_length": 64,
    }
    return TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(folder / "base"),
        output=folder / name / "checkpoint",
        work=folder / name / "work",
        training=TrainingConfig.model_validate(settings | {"deepspeed": deepspeed} | training),
        fingerprint="fingerprint",
        deepspeed=deepspeed,
    )
