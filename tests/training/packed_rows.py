"""Tiny models and rows of several documents, and their slow twins: an explicit T x T mask, one document at a time."""

from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gateau_dagster.training.encode import IGNORED
from tests.tiny_models import model_config

LENGTHS = (5, 40, 40, 1, 63)
WINDOW = 16  # of models with sliding windows: less than the longest documents

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW},  # soft caps on scores and logits
    "gemma3_text": {"sliding_window": WINDOW},  # windows in some layers
    "gpt_oss": {"sliding_window": WINDOW, "dtype": torch.float32},  # sinks; experts have no float64 kernel
    "mixtral": {"sliding_window": None, "num_experts_per_tok": 2, "dtype": torch.float32},  # router with gradients
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},  # learned positions
}

Outcome = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Logits [T, V], and the gradient of every parameter."""


def make_model(kind: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A random model with two layers in training mode."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter)
    return model.train()


def make_row(
    lengths: tuple[int, ...] = LENGTHS, *, skips: bool, seed: int = 0, vocabulary: int = 400
) -> dict[str, Any]:
    """A collated row: each document's first label and some others do not count; with `skips`, positions jump."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(5, vocabulary, (1, total), generator=generator)
    labels = ids.masked_fill(torch.rand(1, total, generator=generator) < 0.4, IGNORED)
    positions, begin = [], 0
    for length in lengths:
        labels[0, begin] = IGNORED
        begin += length
        steps = torch.ones(length, dtype=torch.int64)
        if skips:
            jumps = torch.rand(length, generator=generator) < 0.1
            steps += jumps * torch.randint(1, 90, (length,), generator=generator)
            steps[0] = torch.randint(1, 30, (1,), generator=generator)
        positions.append(steps.cumsum(0) - 1)
    borders = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.cat(positions)[None],
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def document_numbers(row: dict[str, Any]) -> torch.Tensor:
    """Which document each token is of: int64 [T]."""
    lengths = row["cu_seq_lens_q"].diff().long()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def documents(row: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The row's documents, each a batch of its own, `labels` included."""
    names = ("input_ids", "labels", "position_ids")
    borders = row["cu_seq_lens_q"].tolist()
    return [{name: row[name][:, begin:end] for name in names} for begin, end in pairwise(borders)]


def explicit_mask(
    numbers: torch.Tensor, *, window: int | None, chunk: int | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """What eager attention adds to its scores, [1, 1, T, T]: token by token, from the definition."""
    total = len(numbers)
    mask = torch.full((1, 1, total, total), torch.finfo(dtype).min, dtype=dtype)
    first = [numbers.tolist().index(number) for number in numbers.tolist()]
    for query in range(total):
        for key in range(first[query], query + 1):
            near = window is None or query - key < window
            if near and (chunk is None or (query - first[query]) // chunk == (key - first[key]) // chunk):
                mask[0, 0, query, key] = 0
    return mask


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Of every parameter that has one; taken off the model."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Between two models' gradients, as a part of the largest of each parameter's."""
    assert one.keys() == other.keys()
    assert one
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max().clamp_min(1e-6)) for name in one)


def own_mask(model: PreTrainedModel, numbers: torch.Tensor) -> Any:
    """An explicit mask for eager attention, one for each kind of layer where there are several."""
    config: Any = model.config
    dtype = model.dtype
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return explicit_mask(numbers, window=window, dtype=dtype)
    masks = {
        "full_attention": explicit_mask(numbers, window=None, dtype=dtype),
        "sliding_attention": explicit_mask(numbers, window=window, dtype=dtype),
    }
    return {kind: masks[kind] for kind in kinds} if len(set(kinds)) > 1 else masks[kinds[0]]


def expected(kind: str, row: dict[str, Any], **changes: Any) -> Outcome:
    """Logits [T, V] and gradients of the mean log-probability of the labels, by eager attention and a full mask."""
    model = make_model(kind, **changes)
    model.set_attn_implementation("eager")
    mask = own_mask(model, document_numbers(row))
    logits = model(
        input_ids=row["input_ids"], position_ids=row["position_ids"], attention_mask=mask, use_cache=False
    ).logits[0]
    plain_loss(logits, row["labels"][0]).backward()
    return logits.detach(), gradients(model)


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:-1], labels[1:])


def check_row(model: PreTrainedModel, row: dict[str, Any], wanted: Outcome) -> None:
    """Logits and gradients of `model`, which attends within documents, are those that are `wanted`."""
    logits = model(**{name: value for name, value in row.items() if name != "labels"}).logits[0]
    # Norms and rotary embeddings compute parts in float32 in a float64 model.
    assert torch.allclose(logits, wanted[0], atol=2e-5, rtol=2e-5)
    plain_loss(logits, row["labels"][0]).backward()
    assert largest_difference(gradients(model), wanted[1]) <= 2e-5
