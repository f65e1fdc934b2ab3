"""Scoring as one writes it at first with Hugging Face's own tools: what the pipeline's scoring is measured against.

- Perplexity: `model(input_ids)` and a cross-entropy over labels that are -100 outside the response, which is what
  `model(input_ids, labels=labels).loss` does: logits of every position, in float32.
- Attention: a second model pass of its own, eager, with `output_attentions=True`: every layer's T x T matrix.
- Segments: batches of 32 prompts, padded to the longest, with an attention mask and the logits of every position.

Nothing here is slow on purpose. Sums and means are in float32 as torch gives them, the last steps in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.contextual_awareness import contextual_awareness_score
from gateau_dagster.scoring.segments import cut_segments

SEGMENTS_PER_BATCH = 32
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Cam:
    """A row of `cam`."""

    segment_perplexity: list[float]
    segment_attention: list[float]
    cas: float | None


@torch.no_grad()
def perplexities(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[float]:
    """exp of the mean NLL of each prompt's response, from one padded batch."""
    longest = max(prompt.length for prompt in prompts)
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, _IGNORED)
    for row, prompt in enumerate(prompts):
        ids[row, : prompt.length] = torch.tensor(prompt.ids)
        mask[row, : prompt.length] = 1
        start, stop = prompt.response_span
        labels[row, start:stop] = ids[row, start:stop]
    device = loaded.device
    ids, mask, labels = ids.to(device), mask.to(device), labels.to(device)
    padded = {"attention_mask": mask} if len(prompts) > 1 else {}
    logits = loaded.model(input_ids=ids, use_cache=False, **padded).logits.float()
    nll = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED, reduction="none"
    ).view(len(prompts), longest - 1)
    counted = (labels[:, 1:] != _IGNORED).sum(dim=1)
    return [math.exp(value) for value in (nll.sum(dim=1) / counted).tolist()]


@torch.no_grad()
def context_attention(loaded: LoadedModel, prompt: Prompt) -> Tensor:
    """a_t of Eq. 4 [C], from the whole matrices of all layers."""
    own = loaded.model.config._attn_implementation or "sdpa"
    loaded.model.set_attn_implementation("eager")
    try:
        ids = torch.tensor([prompt.ids], device=loaded.device)
        matrices = loaded.model(input_ids=ids, use_cache=False, output_attentions=True).attentions
    finally:
        loaded.model.set_attn_implementation(own)
    (first, last), (start, stop) = prompt.context_span, prompt.response_span
    layers = [matrix[0, :, start:stop, first:last].float().mean(dim=(0, 1)) for matrix in matrices]
    return torch.stack(layers).mean(dim=0).double().cpu()


def segment_perplexities(loaded: LoadedModel, prompt: Prompt, segment_length: int) -> list[float]:
    """PPL_B(y | s_i, x) of every segment."""
    spans = cut_segments(len(prompt.context), segment_length)
    prompts = [prompt.with_context(prompt.context[begin:end]) for begin, end in spans]
    found: list[float] = []
    for begin in range(0, len(prompts), SEGMENTS_PER_BATCH):
        found += perplexities(loaded, prompts[begin : begin + SEGMENTS_PER_BATCH])
    return found


def segment_attention(loaded: LoadedModel, prompt: Prompt, segment_length: int) -> list[float]:
    """The mean of a_t over each segment."""
    attention = context_attention(loaded, prompt)
    return [attention[begin:end].mean().item() for begin, end in cut_segments(len(prompt.context), segment_length)]


def perplexity(loaded: LoadedModel, sample: Sample, max_length: int) -> float:
    """A row of `perplexity/<model>`, from the text."""
    return perplexities(loaded, [build_prompt(loaded.tokenizer, sample, max_length=max_length)])[0]


def cam(loaded: LoadedModel, sample: Sample, max_length: int, segment_length: int) -> Cam:
    """A row of `cam`, from the text."""
    prompt = build_prompt(loaded.tokenizer, sample, max_length=max_length)
    importance = segment_perplexities(loaded, prompt, segment_length)
    attention = segment_attention(loaded, prompt, segment_length)
    cas = contextual_awareness_score(importance, attention)
    return Cam(segment_perplexity=importance, segment_attention=attention, cas=cas)
