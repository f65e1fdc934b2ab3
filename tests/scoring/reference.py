"""The slow obvious way: one sample at a time, eager attention with whole matrices, full logits, float64, no batches.

Nothing here uses gateau_dagster.scoring: the prompt is written down again from the design's formula.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

from gateau_dagster.data.sample import Sample
from tests.tiny_models import CHAT_TEMPLATE


@dataclass(frozen=True, kw_only=True)
class Reference:
    perplexity: float
    mean_nll: float
    context_tokens: int
    response_tokens: int
    truncated_tokens: int
    segment_perplexity: list[float]
    segment_attention: list[float]
    cas: float | None
    token_probability: list[float]
    mean_probability: float
    near_segments: int
    no_context_probability: list[float]
    near_probability: list[float]
    far_probability: list[float]
    far_segment_probabilities: list[list[float]]
    segment_gain: list[float]
    far_gain: float | None


def reference_model(model: Any) -> Any:
    """The same weights in float64 with eager attention."""
    twin = copy.deepcopy(model).double()
    twin.set_attn_implementation("eager")
    if any(hasattr(twin.config, name) for name in ("num_local_experts", "num_experts")):
        twin.set_experts_implementation("eager")  # the grouped product has no float64
    return twin


def reference_parts(tokenizer: Any, sample: Sample, template: str) -> tuple[list[int], list[int], list[int], list[int]]:
    def e(part: str) -> list[int]:
        return tokenizer.encode(part, add_special_tokens=False)

    if template == "chat":
        before, after = "<|user|>\n", "\n\n" + sample.instruction + "<|end|>\n<|assistant|>\n"
        if tokenizer.chat_template != CHAT_TEMPLATE:  # which is rendered here by hand
            asked = [{"role": "user", "content": sample.context + "\n\n" + sample.instruction}]
            text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            before, after = text.split(sample.context)
        return e(before), e(sample.context), *slowly_divided(tokenizer, after, sample.response)
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    after = "\n\n### Instruction: " + sample.instruction + "\n\n### Response: "
    return bos + e("### Input: "), e(sample.context), *slowly_divided(tokenizer, after, sample.response)


def slowly_divided(tokenizer: Any, asked: str, answer: str) -> tuple[list[int], list[int]]:
    """One text, token after token: the answer begins with the first that makes the decoded text longer than `asked`."""
    ids = tokenizer.encode(asked + answer, add_special_tokens=False)
    place = 0
    while place < len(ids) and len(tokenizer.decode(ids[: place + 1])) <= len(asked):
        place += 1
    return ids[:place], ids[place:]


def reference(
    model: Any,
    tokenizer: Any,
    sample: Sample,
    *,
    max_length: int,
    segment_length: int,
    template: str = "gateau",
    visible_tokens: int | None = None,
    seen: bool = True,
) -> Reference:
    """`model`: from reference_model. `visible_tokens`: of the prompt's end that theta_A sees. `seen`: its attention."""
    prefix, context, suffix, response = reference_parts(tokenizer, sample, template)
    truncated = 0
    while len(prefix + context + suffix + response) > max_length:
        context = context[1:]
        truncated += 1
    nll, attentions, probabilities = _run(model, prefix + context + suffix, response, seen)
    segments = [context[i : i + segment_length] for i in range(0, len(context), segment_length)]
    alone = [_run(model, prefix + segment + suffix, response, seen) for segment in segments]
    perplexities = [math.exp(one[0]) for one in alone]
    nothing = _run(model, prefix + suffix, response, seen)[2]
    near, far = [nothing], [[0.0] * len(response)]
    for index in reversed(range(len(segments))):
        end = sum(map(len, segments[index:]))
        if visible_tokens is None:
            is_near = index == len(segments) - 1
        else:
            last_token = len(suffix + response) + end - len(segments[index]) + 1  # from the prompt's end
            is_near = last_token + len(prefix) <= visible_tokens
        (near if is_near else far).append(alone[index][2])
    closest, farthest = ([max(token) for token in zip(*some, strict=True)] for some in (near, far))
    gains = [_gain(one[2], closest) for one in alone[: len(far) - 1]]
    gains += [_gain(one[2], nothing) for one in alone[len(far) - 1 :]]
    weights = [0.0] * len(context)
    if seen:
        weights = _token_attention(attentions, len(prefix), len(context), len(response))
    means, position = [], 0
    for segment in segments:
        means.append(sum(weights[position : position + len(segment)]) / len(segment))
        position += len(segment)
    return Reference(
        perplexity=math.exp(nll),
        mean_nll=nll,
        context_tokens=len(context),
        response_tokens=len(response),
        truncated_tokens=truncated,
        segment_perplexity=perplexities,
        segment_attention=means,
        cas=reference_cas(perplexities, means),
        token_probability=probabilities,
        mean_probability=math.fsum(probabilities) / len(probabilities),
        near_segments=len(near) - 1,
        no_context_probability=nothing,
        near_probability=closest,
        far_probability=farthest,
        far_segment_probabilities=[one[2] for one in alone[: len(far) - 1]],
        segment_gain=gains,
        far_gain=reference_far_gain(closest, farthest) if len(segments) > 1 else None,
    )


def _gain(given: list[float], without: list[float]) -> float:
    return math.fsum(b - a for a, b in zip(without, given, strict=True) if b > a)


def _run(
    model: Any, prompt: list[int], response: list[int], seen: bool = True
) -> tuple[float, tuple[torch.Tensor, ...], list[float]]:
    """Mean NLL, attention matrices, and the probability of each response token."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([prompt + response]), output_attentions=seen, use_cache=False)
    logs = []
    for index, token in enumerate(response):
        logits = out.logits[0, len(prompt) + index - 1].double()
        logs.append((logits[token] - torch.logsumexp(logits, dim=0)).item())
    return -sum(logs) / len(response), out.attentions if seen else (), [math.exp(value) for value in logs]


def _token_attention(attentions: tuple[torch.Tensor, ...], first: int, context: int, response: int) -> list[float]:
    """a_t by Eq. 4: response rows of each whole matrix, averaged over response tokens, then heads, then layers."""
    layers = []
    for matrix in attentions:
        assert matrix.shape[-2] == matrix.shape[-1] or matrix.shape[-1] == matrix.shape[-2] + 1
        layers.append(matrix[0, :, -response:, first : first + context].mean(dim=1).mean(dim=0))
    return torch.stack(layers).mean(dim=0).tolist()


def reference_softmax(values: list[float]) -> list[float]:
    largest = max(values)
    weights = [math.exp(value - largest) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def reference_far_gain(near: list[float], far: list[float]) -> float:
    """The mean of the largest gains: of a tenth of the tokens, but at least two where there are two."""
    gains = sorted((max(0.0, b - a) for a, b in zip(near, far, strict=True)), reverse=True)
    best = gains[: max(2, -(-len(gains) // 10))]
    return math.fsum(best) / len(best)


def reference_cas(perplexities: list[float], attention: list[float]) -> float | None:
    if len(perplexities) < 2:
        return None
    a, b = reference_softmax(perplexities), reference_softmax(attention)
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a)) / math.sqrt(math.fsum(y * y for y in b))
