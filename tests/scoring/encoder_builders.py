"""Tiny reward models and encoders in folders, and what is said to a table's function."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, BertTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.models.encoders import EncoderTask, load_encoder
from gateau_dagster.models.flops import Work
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.sample_table import Running

from .builders import model_config, text, tokenizer

_BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 400,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def bert_tokenizer() -> PreTrainedTokenizerBase:
    """Word pieces with [CLS] and [SEP], which knows segments."""
    words = sorted({word.lower() for word in text(1, 3000).split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words][:400]
    return BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)})


def save_encoder(folder: Path, kind: str, task: EncoderTask, *, labels: int = 1, **changes: Any) -> Path:
    """A random model of this kind, `bert`, `roberta` or `llama`, in a new folder."""
    torch.manual_seed(3)
    if kind == "llama":
        config = model_config("llama", **{"pad_token_id": 1, "num_labels": labels, **changes})
    else:
        config = CONFIG_MAPPING[kind](**{**_BERT, "num_labels": labels, **changes})
    auto = AutoModelForSequenceClassification if task == "reward" else AutoModel
    auto.from_config(config).save_pretrained(folder)
    (bert_tokenizer() if kind == "bert" else tokenizer()).save_pretrained(folder)
    return folder


def encoder(folder: Path, task: EncoderTask, **changes: Any) -> LoadedModel:
    """The model of a folder on the CPU in float32."""
    model = ModelConfig(path=str(folder), task=task, **changes)
    return load_encoder(model, task=task, dtype="float32", device="cpu", folder=Path())


def exact_encoder(folder: Path, kind: str, task: EncoderTask, **changes: Any) -> tuple[LoadedModel, float]:
    """A model whose numbers do not hang on the shape of a batch, and how close they are to be.

    In float64, but Llama's norms stay in float32.
    """
    loaded = encoder(save_encoder(folder, kind, task), task, **changes)
    if kind == "llama":
        return loaded, 1e-5
    loaded.model.double()
    return loaded, 1e-10


def running(max_length: int = 2048, **scoring: Any) -> Running:
    """For a table's function."""
    return Running(max_length=max_length, scoring=ScoringConfig(dtype="float32", **scoring), work=Work())
