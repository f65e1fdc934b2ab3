"""A random Llama of one layer over the synthetic language's words, samples in that language, tables of benchmarks."""

import math
import random
import sys
from functools import cache
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import Sample
from gateau_dagster.demo.tokenizer import build_tokenizer
from gateau_dagster.evaluation.heldout import HELDOUT
from gateau_dagster.evaluation.needle import NEEDLE
from gateau_dagster.models.loading import LoadedModel

WORDS = ("the", "note", "recall", ".", "of")


@cache
def loaded(seed: int = 0) -> LoadedModel:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(512)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return LoadedModel(model=model, tokenizer=tokenizer, window=512, device=torch.device("cpu"), name=f"tiny-{seed}")


def vocabulary() -> list[str]:
    """Every ordinary word, in order of id."""
    words = loaded().tokenizer.get_vocab()
    return [word for word in sorted(words, key=words.__getitem__) if word.isalnum()]


def sample(index: int, *, context: int, response: int = 4) -> Sample:
    rng = random.Random(index)
    words = vocabulary()
    texts = [" ".join(rng.choices(words, k=count)) for count in (context, 3, response)]
    return Sample(sample_id=f"s{index:02d}", source="test", context=texts[0], instruction=texts[1], response=texts[2])


def slow_nll(model: LoadedModel, one: Sample, max_length: int = sys.maxsize) -> float:
    """Mean NLL of the response: the prompt written down from the design's formula, the whole matrix of logits."""
    parts = ["### Input: ", one.context, f"\n\n### Instruction: {one.instruction}\n\n### Response: ", one.response]
    before, context, after, response = (model.tokenizer.encode(part, add_special_tokens=False) for part in parts)
    bos = [model.tokenizer.bos_token_id]
    while len(bos + before + context + after + response) > max_length:
        context = context[1:]
    ids = torch.tensor([bos + before + context + after + response])
    with torch.no_grad():
        logits = model.model(input_ids=ids).logits[0].double()
    start = ids.shape[1] - len(response)
    return -sum(torch.log_softmax(logits[start + i - 1], -1)[t].item() for i, t in enumerate(response)) / len(response)


def heldout_table() -> pl.DataFrame:
    """`evaluation/heldout`: one range and all; the checkpoint is better by 1."""
    rows = [
        (bucket, model, 3, math.log(ppl), ppl)
        for bucket, base in (("0–512", 4.0), ("all", 5.0))
        for model, ppl in (("base", base), ("checkpoint", base - 1))
    ]
    return pl.DataFrame(rows, schema=tables.schema(HELDOUT), orient="row")


def needle_table() -> pl.DataFrame:
    """`evaluation/needle`: a grid of two lengths and two depths."""
    rows = [
        (model, length, depth, 2, accuracy, 0.7)
        for model, accuracy in (("base", 0.25), ("checkpoint", 0.75))
        for length in (512, 1024)
        for depth in (0.0, 1.0)
    ]
    return pl.DataFrame(rows, schema=tables.schema(NEEDLE), orient="row")


def configured(**sections: Any) -> Config:
    """A project with the pair, and these sections."""
    pair = {"short": {"path": "a/short"}, "long": {"path": "a/long"}}
    return Config.model_validate({"long_sft": {"path": "long.jsonl"}, "models": pair, **sections})
