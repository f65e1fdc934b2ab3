"""Cut a prompt's context into segments: which are read alone, which are near, and what each adds (Eqs. 3-5).

Where `scoring.segments` is `screened`, theta_B reads some alone. The far-segment gain takes, for each response token,
only the best near and the best far segment. Three orders of the segments say which may be those. One is by the
response's attention to them in the pass over the whole prompt. The others are by BM25, for the tokens of instruction
and response, and for those of the response. Reciprocal rank fusion makes one order of the three (Cormack, Clarke and
Büttcher 2009). Its first segments are read, as many as one more pass over the prompt would pay for.
"""

# Why segments are read alone (Eq. 3): the response's probability given one segment says what that segment adds.
# Attention alone does not: it may be high on text that changes nothing. Leaving one segment out of the whole prompt
# would be the other way. It costs a pass over nearly the whole context per segment, and shows nothing where the context
# states a fact twice.
#
# What it costs: N prompts of a segment, the instruction and the response. The response is repeated N times, so long
# responses dominate: then `screened` pays. All functions here are NumPy over numbers that are on the host already, and
# take no time beside the passes.
#
# What a segment alone cannot show: an answer that takes two of them together. docs/evidence/synthetic.md has the
# figures of such samples (`two_hop`).
#
# Theta_A's window only decides which segments are far. So a row keeps the probabilities given each segment (`packed`),
# and its columns at another window are derived from them (`at_window`).
#
# Probabilities, not log-probabilities, are compared. The difference of logarithms is largest for tokens that no text
# makes likely, which is noise. A difference of probabilities is bounded, so one token cannot decide a sample.

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.response_perplexity import Float32, Float64, mean_nll_and_perplexity, probability
from gateau_dagster.scoring.sample_table import PromptParts

if TYPE_CHECKING:
    from bm25s import BM25

    from gateau_dagster.models.flops import ModelShape
    from gateau_dagster.models.prompt import Prompt
    from gateau_dagster.scoring.sample_table import Numbers


# The version of the gains' columns of `cam`; the others have `pair_tables.CAM_CODE_VERSION`. Raise it when one changes.
GAINS_CODE_VERSION = "1"
NOTED = 1e-3  # for a smaller gain no segment is recorded: rounding would decide which one is best
_EQUAL = 1e-5  # segments whose p_t differ by less are equally good, and the first of them counts


def best_far_segment(near: Float32, segments: Float32, near_count: int) -> list[int | None]:
    """Return the far segment, from 0, that makes each response token likeliest, [|y|]; None if it gains nothing.

    Args:
        near: near_t [|y|], see segments.near_and_far.
        segments: p(y_t|s_i,x) [N, |y|] of the segments, in order.
        near_count: how many of the last are near.
    """
    far = segments[: len(segments) - near_count]
    if not len(far):
        return [None] * len(near)
    largest = far.max(axis=0)
    # argmax of a comparison gives the first that is as good as the best. The plain argmax would follow the rounding of
    # the batch in which a segment was computed.
    first = np.argmax(far >= largest - _EQUAL, axis=0)
    gains = largest.astype(np.float64) - near
    return [int(place) if gain >= NOTED else None for place, gain in zip(first, gains, strict=True)]


def segment_gains(without_context: Float32, near: Float32, segments: Float32, near_count: int) -> list[float]:
    """Return the gain of each segment, summed over the response tokens, float64 [N].

    For a far segment it is Σ_t max(0, p(y_t|s_i,x) - near_t), beyond what near text gives. For a near one it is Σ_t
    max(0, p(y_t|s_i,x) - p(y_t|x)), beyond no context: it is not compared with itself. Arguments are as above, and
    p(y_t|x) [|y|].
    """
    border = len(segments) - near_count
    found: list[float] = []
    for place, given in enumerate(segments):
        # Clipped token by token, before the sum: a segment that makes some tokens less likely than near text still gave
        # the others.
        gains = given.astype(np.float64) - (near if place < border else without_context)
        found.append(float(np.maximum(gains, 0.0).sum()))
    return found


TOP_SHARE = 0.1  # share of the response tokens whose gain counts
_FEWEST = 2  # the least number of tokens in the mean of the largest gains
_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001 as floats, and its ceiling 8

_Probabilities = Sequence[float] | npt.NDArray[np.floating[Any]]


def cut_segments(tokens: int, segment_length: int) -> list[tuple[int, int]]:
    """Return the first and one-past-last context token of each segment s_i: `segment_length` tokens, the last one
    fewer.
    """
    return [(begin, min(begin + segment_length, tokens)) for begin in range(0, tokens, segment_length)]


def segment_prompts(prompt: Prompt, segment_length: int) -> list[Prompt]:
    """Return the prompt with each segment alone as its context, with the truncated context's own tokens."""
    return [prompt.with_context(prompt.context[a:b]) for a, b in cut_segments(len(prompt.context), segment_length)]


def segment_means(attention: Float64, segment_length: int) -> list[float]:
    """Return the raw values of Eq. 4: the mean of a_t over each segment's own tokens, from a_t [C]."""
    return [float(np.mean(attention[a:b])) for a, b in cut_segments(len(attention), segment_length)]


def near_segments(context: int, tail: int, *, segment_length: int, visible_tokens: int | None) -> int:
    """Return how many segments at the end of a prompt's context are near.

    Args:
        context: tokens of the context in theta_B's prompt.
        tail: all other tokens of that prompt.
        segment_length: L, in tokens.
        visible_tokens: tokens of a prompt's end that theta_A is shown; None: all, and then only the last segment is
            near.
    """
    segments = -(-context // segment_length)
    if visible_tokens is None:
        return min(segments, 1)
    # Only the context is cut for theta_A, so all around it takes a part of the window. What is left shows the context's
    # end.
    hidden = context - min(max(visible_tokens - tail, 0), context)
    # A segment is far only if theta_A sees none of it. One that the border cuts is near, since part of it may be what
    # theta_A reads. Without any visible context, no segment is near.
    return 0 if hidden == context else segments - hidden // segment_length


def near_and_far(without_context: Float32, segments: Float32, near: int) -> tuple[Float32, Float32]:
    """Return near_t and the largest far p_t of each response token, float32 [|y|] each, in [0, 1].

    near_t = max(p(y_t|x), max over near i of p(y_t|s_i,x)); far: max over far i of p(y_t|s_i,x), 0 without any.

    Args:
        without_context: p(y_t|x) [|y|].
        segments: p(y_t|s_i,x) [N, |y|] of the segments, in order.
        near: how many of the last are near.
    """
    border = len(segments) - near
    assert 0 <= border <= len(segments)
    return np.maximum.reduce([without_context, *segments[border:]]), segments[:border].max(axis=0, initial=0.0)


def counted_tokens(tokens: npt.ArrayLike, *, top: float) -> npt.NDArray[np.int64]:
    """Return k for responses of these numbers of tokens, int64 of their shape."""
    share = np.ceil(top * np.asarray(tokens, dtype=np.float64) - _ROUNDING)
    return np.maximum(_FEWEST, share.astype(np.int64))


def far_gain(near: _Probabilities, far: _Probabilities, *, segments: int, top: float = TOP_SHARE) -> float | None:
    """Return the far-segment gain of one sample: how much more its best response tokens gain from one far segment than
    from near text.

    For each response token, take near_t and the largest far p_t (`near_and_far`), [|y|] each:

        f_t = max(0, far p_t - near_t),  gain = mean of the k largest f_t,  k = max(2, ceil(top·|y|))

    It is in [0, 1]; a response shorter than k counts as a whole. A few tokens of a response may hold all that it takes
    from far away; a mean over all tokens would hide them. Return None with fewer than two segments, because then
    nothing can be both far and near (as for CAS of Eq. 5). methods.far_gain computes the same for whole tables.
    """
    if segments < 2:
        return None
    # Differences in float64, of values that are stored as float32: the tables give the same gain as this function.
    gains = np.asarray(far, dtype=np.float64) - np.asarray(near, dtype=np.float64)
    largest = np.sort(gains)[::-1][: int(counted_tokens(gains.size, top=top))]
    return float(np.maximum(largest, 0.0).mean())


def importance_score(segment_perplexity: Sequence[float] | Float64) -> Float64:
    """Return IS(s_i) of Eq. 3: softmax over the segments of PPL(y | s_i, x), float64 [N]. High means unimportant."""
    return _softmax(segment_perplexity)


def segment_attention_score(segment_attention: Sequence[float] | Float64) -> Float64:
    """Return Attn(s_i) of Eq. 4: softmax over the segments of the mean attention to their tokens, float64 [N]."""
    return _softmax(segment_attention)


def contextual_awareness_score(
    segment_perplexity: Sequence[float] | Float64, segment_attention: Sequence[float] | Float64
) -> float | None:
    """Return CAS of Eq. 5: the cosine of the two scores, from the raw values of N segments each; in (0, 1].

    Return None with fewer than two segments: softmax over one value is 1, so a single segment would always score 1.
    Raises ValueError if the lengths differ or a value is not finite.
    """
    if len(segment_perplexity) != len(segment_attention):
        raise ValueError(f"{len(segment_perplexity)} segment perplexities, but {len(segment_attention)} attentions")
    if len(segment_perplexity) < 2:
        return None
    importance, attention = importance_score(segment_perplexity), segment_attention_score(segment_attention)
    # Neither norm is below 1/sqrt(N), since each vector sums to 1. Rounding may exceed 1 by an ulp.
    cosine = importance @ attention / (np.linalg.norm(importance) * np.linalg.norm(attention))
    return min(1.0, float(cosine))


def added_by_segment(
    segment_perplexity: Sequence[float] | Float64, segment_attention: Sequence[float] | Float64
) -> Float64:
    """Return each segment's part of CAS (Eq. 5), float64 [N], for samples that have one."""
    importance, attention = importance_score(segment_perplexity), segment_attention_score(segment_attention)
    return importance * attention / (np.linalg.norm(importance) * np.linalg.norm(attention))


def _softmax(values: Sequence[float] | Float64) -> Float64:
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise ValueError("softmax of a value that is not finite")
    if not vector.size:
        return vector
    weights = np.exp(vector - vector.max())
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True)
class CamRow:
    """A row of `cam` (tables.CAM)."""

    sample_id: str
    digest: str
    segments: int
    segment_perplexity: list[float | None]
    segment_attention: list[float]
    cas: float | None
    near_segments: int
    no_context_probability: list[float]
    near_probability: list[float]
    far_probability: list[float]
    far_segment: list[int | None]
    segment_gain: list[float | None]
    far_gain: float | None
    context_tokens: int
    tail_tokens: int
    segment_probability: bytes | None


@dataclass(frozen=True, kw_only=True)
class CamFigures:
    """The results of the passes over a sample.

    without_context: NLL of each response token given only the instruction [|y|]. segments: the same given each segment,
    too [N of |y|]; None for one that screening leaves out. attention: a_t [C]; None without context, or if it is not
    computed. context, tail: tokens of the prompt. near: how many of the last segments are near. screened: whether
    segments may be left out.
    """

    without_context: Float64
    segments: Sequence[Float64 | None]
    attention: Float64 | None
    context: int
    tail: int
    near: int
    screened: bool = False


def cam_row(sample: Sample, figures: CamFigures, *, segment_length: int) -> CamRow:
    """Return the sample's row; without attention, or if segments are screened, it has no CAS.

    Raise UnscorableSampleError if a value is not finite.
    """
    attention = figures.attention
    # A value that is not finite rejects the sample with the segment's number. In a mean it would spoil the score
    # without a trace.
    perplexities = [
        None if nll is None else _perplexity(f"given segment {number} alone", nll)
        for number, nll in enumerate(figures.segments, start=1)
    ]
    _perplexity("without context", figures.without_context)
    means = [] if attention is None else segment_means(attention, segment_length)
    if not np.isfinite(means).all():
        raise UnscorableSampleError("attention to the context is not finite: try dtype bfloat16 or float32")
    alone = probability(figures.without_context)
    # A segment that is left out has p = 0, so that it is never the best.
    segments = np.zeros((len(perplexities), len(alone)), np.float32)
    for place, nll in enumerate(figures.segments):
        if nll is not None:
            segments[place] = probability(nll)
    known = [perplexity for perplexity in perplexities if perplexity is not None]
    by_window = window_columns(alone, segments, figures.near)
    by_window["segment_gain"] = [
        None if nll is None else gain for nll, gain in zip(figures.segments, by_window["segment_gain"], strict=True)
    ]
    return CamRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        segments=len(perplexities),
        segment_perplexity=perplexities,
        segment_attention=means,
        cas=None if attention is None or figures.screened else contextual_awareness_score(known, means),
        no_context_probability=alone.tolist(),
        context_tokens=figures.context,
        tail_tokens=figures.tail,
        # Which segments are screened depends on the window, so another window cannot be derived.
        segment_probability=None if figures.screened else packed(segments, alone),
        **by_window,
    )


def window_columns(without_context: Float32, segments: Float32, near: int) -> dict[str, Any]:
    """Return the columns of a row of `cam` that theta_A's window decides; arguments as for `near_and_far`."""
    nearest, farthest = near_and_far(without_context, segments, near)
    return {
        "near_segments": near,
        "near_probability": nearest.tolist(),
        "far_probability": farthest.tolist(),
        "far_segment": best_far_segment(nearest, segments, near),
        "segment_gain": segment_gains(without_context, nearest, segments, near),
        "far_gain": far_gain(nearest, farthest, segments=len(segments)),
    }


def at_window(cam: pl.DataFrame, *, segment_length: int, visible_tokens: int | None) -> pl.DataFrame:
    """Return rows of `cam` with `segment_probability` as they are for another window: equal to the bit.

    Args:
        cam: the rows, in tables.CAM.
        segment_length, visible_tokens: see `near_segments`.
    """
    read = ["context_tokens", "tail_tokens", "segments", "no_context_probability", "segment_probability"]
    rows: list[dict[str, Any]] = []
    for context, tail, count, alone, stored in cam.select(read).iter_rows():
        without = np.array(alone, dtype=np.float32)
        near = near_segments(context, tail, segment_length=segment_length, visible_tokens=visible_tokens)
        rows.append(window_columns(without, unpacked(stored, (count, len(without))), near))
    if not rows:
        return cam
    return cam.with_columns(pl.DataFrame(rows, schema={name: cam.schema[name] for name in rows[0]}).get_columns())


def packed(segments: Float32, without_context: Float32) -> bytes:
    """Return the p(y_t|s_i,x) [N, |y|] that decide a column of `cam` at some window, as bytes; see `unpacked`.

    A probability that is not above p(y_t|x) is neither nearest nor a gain. It counts only if it is the largest so far,
    as the largest far one. The others are left out.
    """
    earlier = np.zeros_like(segments)
    np.maximum.accumulate(segments[:-1], axis=0, out=earlier[1:])
    kept = segments > np.minimum(without_context, earlier)
    # Bytes of equal significance side by side: signs and exponents repeat, and zstd finds them.
    values = segments[kept].astype("<f4").view(np.uint8).reshape(-1, 4)
    return np.packbits(kept).tobytes() + values.T.tobytes()


def unpacked(stored: bytes, shape: tuple[int, int]) -> Float32:
    """Return the probabilities of `packed`, float32 [N, |y|]; those that were left out are 0."""
    size, mask = shape[0] * shape[1], -(-shape[0] * shape[1] // 8)
    kept = np.unpackbits(np.frombuffer(stored, np.uint8, mask), count=size).astype(bool).reshape(shape)
    segments = np.zeros(shape, np.float32)
    segments[kept] = np.frombuffer(stored, np.uint8, offset=mask).reshape(4, -1).T.copy().view("<f4")[:, 0]
    return segments


def _perplexity(given: str, nll: Float64) -> float:
    try:
        return mean_nll_and_perplexity(nll)[1]
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{given}: {error}") from error


SCREENING_CODE_VERSION = "1"  # raise it when other segments are read, as when ModelShape counts other FLOPs
BUDGET = 1.0  # cost of all that is read besides the whole prompt, in passes over the prompt
LEAST = 4  # segments that are read whatever they cost
_RANK_CONSTANT = 60  # of reciprocal rank fusion, as published


def parts_of(prompt: Prompt) -> PromptParts:
    """Return the token counts of one prompt."""
    counts = len(prompt.context), prompt.length - len(prompt.context), len(prompt.response)
    context, tail, response = (np.array([float(count)]) for count in counts)
    return PromptParts(context=context, tail=tail, response=response)


def screened_count(parts: PromptParts, segment_length: int, shape: ModelShape | None) -> Numbers:
    """Return how many segments of each sample are read [samples].

    They take at most the FLOPs of BUDGET passes over the whole prompt, unless LEAST segments take more. These FLOPs
    include the pass without context and the rows of attention. Each segment counts as a whole one. Without a known
    `shape`, tokens count.
    """
    # Arrays over samples: `gateau plan` counts the segments of all samples at once, before any model is loaded.
    lengths = parts.prompt, parts.tail, parts.tail + segment_length
    observed = np.zeros_like(parts.prompt)
    if shape is not None:
        head = shape.head_flops(1.0) * parts.response
        lengths = tuple(shape.pass_flops(length, parts.response) + head for length in lengths)
        observed = parts.response * shape.attention_row_flops_each(parts.prompt)
    prompt, alone, segment = lengths
    segments = np.ceil(parts.context / segment_length)
    # A prompt that does not fit has no tokens.
    # What is left of the budget, in whole segments. So a screened sample costs about two passes, whatever its length.
    afforded = np.floor((BUDGET * prompt - alone - observed) / np.maximum(segment, 1.0))
    return np.minimum(np.maximum(afforded, LEAST), segments)


def screened_segments(
    prompt: Prompt, *, count: int, segment_length: int, near: int, attention: Sequence[float] | None
) -> list[int]:
    """Return the segments to read, ascending, from 0: the last one, the best far one, and the first of the order.

    Args:
        prompt: theta_B's.
        count: how many, at least two or all.
        segment_length: L, in tokens.
        near: how many of the last segments are near.
        attention: the mean attention to each (Eq. 4); None: BM25 decides alone.
    """
    segments = [prompt.context[begin:end] for begin, end in cut_segments(len(prompt.context), segment_length)]
    # No order is needed, so BM25 is not even imported.
    if count >= len(segments):
        return [*range(len(segments))]
    # Two queries, because they fail differently. The instruction often names what to look for, and only the response
    # says what was found. Attention can catch what shares no token with either.
    relevance = _bm25(segments, [{*prompt.suffix, *prompt.response}, {*prompt.response}])
    order = fused_order(relevance if attention is None else [attention, *relevance])
    last = len(segments) - 1  # it is nearest to the response
    # The last segment is always read, and one far segment at least. Otherwise a sample could have no far segment to
    # gain from.
    best_far = [place for place in order if place < len(segments) - near][:1]
    return sorted([*dict.fromkeys([last, *best_far, *order])][:count])


def fused_order(scores: Iterable[Sequence[float] | npt.NDArray[np.floating[Any]]]) -> list[int]:
    """Return the segments by reciprocal rank fusion of these scores [N] each, best first; of equal ones, the nearer."""
    fused: Float64 | float = 0.0
    for each in scores:
        # By ranks, since attention and BM25 have no common scale. A weighted sum would need weights, which would have
        # to be fitted.
        ranks = np.empty(len(each))
        ranks[_descending(each)] = np.arange(1, len(each) + 1)
        fused = fused + 1.0 / (_RANK_CONSTANT + ranks)
    return _descending(np.asarray(fused)).tolist()


def _descending(values: Sequence[float] | npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    # Two keys: a sort by score alone would leave the order of equal scores to its algorithm.
    return np.lexsort((-np.arange(len(values)), -np.asarray(values)))


def _bm25(segments: Sequence[Sequence[int]], queries: Iterable[Iterable[int]]) -> list[npt.NDArray[np.float32]]:
    index = _bm25_index()()
    # Token ids as words: the model's own tokenizer has no stop words, no stemming and no language, and serves every
    # language alike.
    index.index([[str(token) for token in segment] for segment in segments], show_progress=False)
    return [index.get_scores([str(token) for token in sorted(query)]) for query in queries]


@cache
def _bm25_index() -> type[BM25]:
    """Return bm25s' index, imported as if JAX were not installed.

    Where JAX is, importing bm25s starts it, and JAX then takes three quarters of the GPU's memory from torch.
    """
    known = sys.modules.get("jax")
    sys.modules["jax"] = None  # pyright: ignore[reportArgumentType]
    try:
        from bm25s import BM25
    finally:
        if known is None:
            del sys.modules["jax"]
        else:
            sys.modules["jax"] = known
    return BM25
