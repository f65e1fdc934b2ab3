"""Short ways to score samples, and slow obvious twins: eager attention, whole matrices, float64."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.loaded import ForwardWork, LoadedModel, Meter
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.sample_table import Running
from gateau_dagster.scoring.scorer import Request, SampleOutcome, score_samples
from gateau_dagster.scoring.segments import NOTED, CamRow
from gateau_dagster.scoring.span_attention import Document, MeasuredSpans, measure_documents
from tests.kit.tiny_models import CHAT_TEMPLATE


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


def scoring(**changes: object) -> ScoringConfig:
    return ScoringConfig.model_validate({"max_length": 4096, "segment_length": 32, "dtype": "float32"} | changes)


def running(max_length: int = 2048, **scoring: Any) -> Running:
    """For a table's function."""
    return Running(max_length=max_length, scoring=ScoringConfig(dtype="float32", **scoring), work=ForwardWork())


def outcomes(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    *,
    perplexity: bool = True,
    cam: bool = True,
    max_length: int = 4096,
    meter: Meter | None = None,
    **changes: object,
) -> list[SampleOutcome]:
    """All of them, with `changes` to the scoring section."""
    requests = (Request(sample=sample, perplexity=perplexity, cam=cam) for sample in samples)
    config, meter = scoring(**changes), meter or Meter()
    return list(score_samples(loaded, requests, max_length=max_length, scoring=config, meter=meter))


def cam_figures(loaded: LoadedModel, sample: Sample, **changes: Any) -> Any:
    """The sample's row of `cam`, alone."""
    (outcome,) = outcomes(loaded, [sample], perplexity=False, **changes)
    return outcome.cam


def measured_text(loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: ForwardWork | None = None) -> Any:
    """What LADM measures of one text by its token ids: Measured or Reject."""
    (outcome,) = measure_documents(loaded, [Document(name="", ids=tuple(ids))], plan=plan, work=work or ForwardWork())
    assert isinstance(outcome, MeasuredSpans | Reject)
    return outcome


def text_score(
    loaded: LoadedModel, ids: Sequence[int], plan: FocusPlan, weights: FocusWeights | None = None
) -> float | None:
    """LADM's score of one text by its token ids; None when it is too short for a scored span."""
    measured = measured_text(loaded, ids, plan)
    return contextual_dependency_score(measured.sums, plan, measured.tokens, weights)


TOLERANCE = 1e-4  # relative, in float32


def references(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], visible: int | None = None
) -> list[Reference]:
    """The reference's figures of each sample."""
    twin = reference_model(loaded.model)
    return [
        reference(
            twin,
            loaded.tokenizer,
            sample,
            max_length=max_length,
            segment_length=scoring.segment_length,
            template=scoring.template,
            visible_tokens=visible,
        )
        for sample in samples
    ]


def check(
    sample: Sample, outcome: SampleOutcome, want: Reference, *, perplexity: bool = True, cam: bool = True
) -> None:
    """Assert that the rows of a sample agree with the reference, and that the tables that are not made have none."""
    row, measured = outcome.perplexity, outcome.cam
    assert outcome.sample_id == sample.sample_id and (row is not None, measured is not None) == (perplexity, cam)
    if row is not None:
        assert isinstance(row, PerplexityRow)
        assert (row.sample_id, row.digest) == (sample.sample_id, sample.digest)
        _close([row.perplexity, row.mean_nll], [want.perplexity, want.mean_nll])
        _close(row.token_probability, want.token_probability)
        _close(row.mean_probability, want.mean_probability)
        assert (row.context_tokens, row.response_tokens) == (want.context_tokens, want.response_tokens)
        assert row.truncated_tokens == want.truncated_tokens
    if measured is None:
        return
    assert isinstance(measured, CamRow)
    assert (measured.sample_id, measured.digest) == (sample.sample_id, sample.digest)
    assert measured.segments == len(want.segment_perplexity)
    _close(measured.segment_perplexity, want.segment_perplexity)
    _close(measured.segment_attention, want.segment_attention)
    assert (measured.cas is None) == (want.cas is None)
    if want.cas is not None:
        _close(measured.cas, want.cas)
    assert measured.near_segments == want.near_segments
    _close(measured.no_context_probability, want.no_context_probability)
    _close(measured.near_probability, want.near_probability)
    _close(measured.far_probability, want.far_probability)
    check_gains(measured, want)
    assert (measured.far_gain is None) == (want.far_gain is None)
    if measured.far_gain is not None and want.far_gain is not None:
        np.testing.assert_allclose(measured.far_gain, want.far_gain, rtol=0, atol=far_gain_tolerance(want))


def check_gains(measured: CamRow, want: Reference) -> None:
    """Each gain is off by TOLERANCE of the two probabilities at most; of segments that are as good any may be named."""
    tokens = len(want.near_probability)
    np.testing.assert_allclose(measured.segment_gain, want.segment_gain, rtol=0, atol=2 * TOLERANCE * tokens)
    assert len(measured.far_segment) == tokens
    for token, segment in enumerate(measured.far_segment):
        far, near = want.far_probability[token], want.near_probability[token]
        slack = TOLERANCE * (near + far)
        if segment is None:
            assert far - near < NOTED + slack
        else:
            assert want.far_segment_probabilities[segment][token] >= far - slack - 1e-5
            assert far - near > NOTED - slack


def far_gain_tolerance(want: Reference) -> float:
    """How far FG may be off where each near_t and far p_t is off by TOLERANCE of itself.

    A gain max(0, far - near) is then off by TOLERANCE·(near + far) at most: relative to the two, not to what their
    difference leaves. A mean of the k largest moves no further than the gain that moves furthest.
    """
    largest = max(near + far for near, far in zip(want.near_probability, want.far_probability, strict=True))
    return TOLERANCE * largest


def compare(
    loaded: LoadedModel, scoring: ScoringConfig, max_length: int, samples: list[Sample], visible: int | None = None
) -> int:
    """Assert that all rows agree; returns how many samples were truncated."""
    wanted = references(loaded, scoring, max_length, samples, visible)
    requests = [Request(sample=sample, perplexity=True, cam=True) for sample in samples]
    made = score_samples(
        loaded, requests, max_length=max_length, scoring=scoring, meter=Meter(), visible_tokens=visible
    )
    for sample, outcome, want in zip(samples, made, wanted, strict=True):
        check(sample, outcome, want)
    return sum(want.truncated_tokens > 0 for want in wanted)


def _close(got: object, want: object) -> None:
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=TOLERANCE, atol=0)


def eager_matrices(model: object, ids: Sequence[int]) -> list[torch.Tensor]:
    """Every layer's weights [H, T, T] in float64."""
    with torch.no_grad():
        out = reference_model(model)(input_ids=torch.tensor([list(ids)]), output_attentions=True, use_cache=False)
    return [matrix[0] for matrix in out.attentions]


def slow_pfs(matrix: torch.Tensor, earlier: int, later: int, length: int, program: bool) -> float:
    """Eq. 2 for one layer [H, T, T]: what the span that starts at token `later` pays to the one at `earlier`."""
    total = 0.0
    for head in range(matrix.shape[0]):
        for row in range(later, later + length):
            weights = matrix[head, row]
            seen = weights[:later].sum().item() if program else 1.0
            received = weights[earlier : earlier + length].sum().item()
            total += received / seen if seen else 0.0
    return total / matrix.shape[0]


def slow_pairs(
    tokens: int, *, length: int, m: int, n: int, d: int, d_later: int, n0: int, program: bool
) -> list[tuple[int, list[int]]]:
    """Each scored span with the spans it looks at, by their first tokens, ascending."""
    if program:
        return slow_program_pairs(tokens, length=length, keep=m * length, interval=d * length, stride=d_later * length)
    first = tokens - tokens // length * length  # the spans end where the sample does
    pairs = []
    for j in range(n0, tokens // length, d_later):
        earlier = [m + k * d for k in range((j - m - n - 1) // d + 1)]
        pairs.append((first + j * length, [first + i * length for i in earlier]))
    return pairs


def slow_program_pairs(
    tokens: int, *, length: int, keep: int, interval: int, stride: int
) -> list[tuple[int, list[int]]]:
    """The same as the authors' program has it, which counts tokens: all arguments are numbers of tokens."""
    pairs, start = [], tokens - length
    while start > keep + 4 * interval:
        earlier, place = [], start - interval
        while place >= keep:
            earlier.append(place)
            place -= interval
        pairs.append((start, sorted(earlier)))
        start -= stride
    return sorted(pairs)


def slow_cds(
    matrices: Sequence[torch.Tensor],
    *,
    length: int,
    m: int,
    n: int,
    d: int,
    d_later: int,
    n0: int,
    program: bool = False,
    deviation: bool = True,
    interval: bool = True,
    position: bool = True,
) -> float | None:
    """Eqs. 2-5 of each layer, then their mean."""
    tokens = matrices[0].shape[-1]
    first, spans = tokens % length, tokens // length
    pairs = slow_pairs(tokens, length=length, m=m, n=n, d=d, d_later=d_later, n0=n0, program=program)
    if not pairs:
        return None
    layers = []
    for matrix in matrices:
        total = 0.0
        for later, all_earlier in pairs:
            scores = [slow_pfs(matrix, earlier, later, length, program) for earlier in all_earlier]
            mean, freedom = sum(scores) / len(scores), len(scores) - (1 if program else 0)
            afs = math.sqrt(sum((score - mean) ** 2 for score in scores) / freedom) if deviation else 1.0
            unit = tokens if program else length  # of a distance: the whole sample, or a span
            distances = [(later - earlier) / unit if interval else 1.0 for earlier in all_earlier]
            afs *= sum(score * distance for score, distance in zip(scores, distances, strict=True))
            if program:
                total += (later / tokens if position else 1.0) * afs / len(pairs)
            else:
                total += ((later - first) / length / spans if position else 1.0) * afs
        layers.append(total)
    return sum(layers) / len(layers)


Perplexities = Mapping[tuple[int, int], float]


def slow_perplexity(model: Any, before: Sequence[int], segment: Sequence[int]) -> float:
    """exp of the mean NLL of all but the segment's first token; `model`: from reference_model."""
    ids = [*before, *segment]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    total = 0.0
    for place in range(len(before) + 1, len(ids)):
        total -= torch.log_softmax(logits[place - 1], dim=0)[ids[place]].item()
    return math.exp(total / (len(segment) - 1))


def slow_perplexities(
    model: Any, ids: Sequence[int], length: int, pairs: Sequence[tuple[int, int]]
) -> tuple[list[float], dict[tuple[int, int], float]]:
    """P(i) of every whole segment and P(i|j) of the pairs."""
    segments = [list(ids[k * length : (k + 1) * length]) for k in range(len(ids) // length)]
    alone = [slow_perplexity(model, [], segment) for segment in segments]
    return alone, {(i, j): slow_perplexity(model, segments[j], segments[i]) for i, j in pairs}


def slow_lds(
    alone: Sequence[float],
    behind: Perplexities,
    *,
    segments: int,
    threshold: float = 0.1,
    alpha: float = 1.0,
    beta: float = 1.0,
    program: bool = False,
) -> float:
    """The score, pair by pair; `segments`: N of the distance."""
    total = 0.0
    for (i, j), perplexity in behind.items():
        strength = (alone[i] - perplexity) / alone[i]
        if strength > threshold:
            distance = min(1.0, (i - j) / (segments - 1))
            terms = strength + distance if program else alpha * strength + beta * distance
            total += terms * slow_specificity(alone, behind, i)
    return total if program else total / ((alpha + beta) * len(behind))


def slow_specificity(alone: Sequence[float], behind: Perplexities, i: int) -> float:
    """1 - H / log n_i, clipped."""
    gains = [alone[i] - perplexity for (later, _), perplexity in behind.items() if later == i]
    if len(gains) == 1:
        return 1.0
    largest = max(gains)
    weights = [math.exp(gain - largest) for gain in gains]
    shares = [weight / sum(weights) for weight in weights]
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(gains))))
