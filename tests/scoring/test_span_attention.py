"""LADM's score of samples and plain texts, against its equations in plain loops over eager matrices in float64."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gateau_dagster.data.sample import Reject
from gateau_dagster.models import attention_kernels, memory
from gateau_dagster.models.attention_kernels import AttentionSpec
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.scoring import span_attention
from gateau_dagster.scoring.focus_scores import (
    FocusPlan,
    FocusWeights,
    Variant,
    contextual_dependency_score,
    focus_sums,
)
from gateau_dagster.scoring.span_attention import (
    Document,
    MeasuredSpans,
    _SpanCollector,
    measure_documents,
    pairwise_focus_scores,
    span_attention_flops,
    text_ids,
)
from tests.kit.error_codes import refused
from tests.kit.tiny_models import Largest, loaded_model, tokenizer
from tests.scoring.builders import (
    eager_matrices,
    measured_text,
    slow_cds,
    slow_pairs,
    slow_pfs,
    text_score,
)

PLAN = FocusPlan(span_length=16, local_spans=2, earlier_stride=2, later_stride=3, first_scored=5)
PROGRAM = FocusPlan(span_length=16, earlier_stride=2, later_stride=3, variant="program")
PLANS: dict[Variant, FocusPlan] = {"paper": PLAN, "program": PROGRAM}
LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def _slow(matrices: Sequence[torch.Tensor], variant: Variant, weights: FocusWeights) -> float | None:
    plan: dict[str, Any] = {"length": 16, "m": 1, "n": 2, "d": 2, "d_later": 3, "n0": 5}
    return slow_cds(matrices, **plan, program=variant == "program", **asdict(weights))


@pytest.mark.parametrize("plan", [PLAN, PROGRAM])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_text_agrees_with_the_equations_on_real_prose(kind: str, plan: FocusPlan) -> None:
    loaded = loaded_model(kind)
    ids = text_ids(tokenizer(), LICENCE[3000:5000], max_tokens=310)
    measured, matrices = measured_text(loaded, ids, plan), eager_matrices(loaded.model, ids)
    for deviation, interval, position in product([True, False], repeat=3):
        weights = FocusWeights(deviation=deviation, interval=interval, position=position)
        want = _slow(matrices, plan.variant, weights)
        assert want is not None and want > 0
        assert contextual_dependency_score(measured.sums, plan, len(ids), weights) == pytest.approx(want, rel=1e-4)


def test_short_text_costs_no_pass_and_has_no_score() -> None:
    loaded, work = loaded_model("llama"), ForwardWork()
    ids = text_ids(tokenizer(), LICENCE[:900])
    got = measured_text(loaded, ids[: 5 * 16 + 15], PLAN, work)
    assert isinstance(got, MeasuredSpans) and (got.spans, got.sums.later, work.tokens) == (5, (), 0)
    assert text_score(loaded, ids[: 5 * 16 + 15], PLAN) is None
    assert text_score(loaded, ids[: 6 * 16], PLAN) == 0.0  # one scored span with one score: no deviation
    assert text_score(loaded, (), PLAN) is None


def test_outcomes_come_in_order_with_rejects_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    own = span_attention.pairwise_focus_scores

    def small_memory(one: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: ForwardWork) -> object:
        if len(ids) > 500:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return own(one, ids, plan, work)

    monkeypatch.setattr(span_attention, "pairwise_focus_scores", small_memory)
    monkeypatch.setattr(memory, "release_memory", lambda: None)
    texts = [("long", LICENCE[:3000]), ("fits", LICENCE[:500]), ("short", "word")]
    documents = [Document(name=name, ids=text_ids(tokenizer(), text, max_tokens=1000)) for name, text in texts]
    given = [*documents[:2], Reject(sample_id="broken", reason="no tokens"), documents[2]]
    long, fits, broken, short = measure_documents(loaded, given, plan=PLAN, work=ForwardWork())
    assert isinstance(long, Reject) and long.short_of_memory and "out of memory on a prompt of 1000" in long.reason
    assert isinstance(fits, MeasuredSpans) and fits.sums.later
    assert broken == Reject(sample_id="broken", reason="no tokens")
    assert isinstance(short, MeasuredSpans) and not short.sums.later


def test_attention_that_is_not_finite_is_a_reject() -> None:
    loaded = loaded_model("llama")
    for parameter in loaded.model.parameters():
        parameter.fill_(float("nan"))
    ids = text_ids(tokenizer(), LICENCE[:900])
    assert measured_text(loaded, ids, PLAN) == Reject(
        sample_id="", reason="attention between spans is not finite: try dtype bfloat16 or float32"
    )


def test_model_whose_attention_cannot_be_seen_is_refused_before_any_text() -> None:
    read: list[Document] = []

    def documents():
        read.append(Document(name="a", ids=(1, 2)))
        yield read[-1]

    with refused("models.no_attention"):
        next(measure_documents(loaded_model("mamba"), documents(), plan=PLAN, work=ForwardWork()))
    assert not read


# Every query is 1 and the key of a token is the logarithm of its weight w, so that a row gives each token before it
# w / (sum of w so far). The paper's plan has five spans of two tokens; m = 1, n = 1, both d = 1, n_0 = 3: j = 3
# looks at i = 1, and j = 4 at i = 1, 2. The weights are chosen for round sums:
#
#   span      s_0     s_1     s_2      s_3       s_4
#   w         4  2    1  1    3   3    6  20     40  80
#   sum       4  6    7  8    11  14   20 40     80  160
#
# PFS(1,3) = 2/20 + 2/40 = 0.15, PFS(1,4) = 2/80 + 2/160 = 0.0375, PFS(2,4) = 6/80 + 6/160 = 0.1125. One score has no
# deviation: σ_3 = 0. σ_4 is half the difference of two: 0.0375. AFS(4) = 0.0375 (0.0375 · 3 + 0.1125 · 2) = 0.01265625.
#
# The program scores a span behind more than m + 4d others: of eight spans of one token, the sixth and the seventh. The
# keys before s_6 sum to 20, those before s_7 to 40. Of s_6 the mean is 0.7/5 = 0.14 and the squares of the differences
# sum to 0.017: σ_6² = 0.017/4. Of s_7 the mean is 0.85/6: σ_7² = (0.27875 - 0.85²/6)/5. Distances count in tokens: of
# s_6 (5·1 + 4·2 + 3·3 + 2·4 + 1·4) / 20 = 1.7, of s_7 (6·1 + 5·2 + 4·3 + 3·4 + 2·4 + 1·20) / 40 = 1.7.
_SMALL: dict[str, Any] = {"first_spans": 1, "earlier_stride": 1, "later_stride": 1}
_FIVE_SPANS = FocusPlan(span_length=2, local_spans=1, first_scored=3, **_SMALL)
_EIGHT_SPANS = FocusPlan(span_length=1, variant="program", **_SMALL)
_SIGMAS = math.sqrt(0.017 / 4), math.sqrt((0.27875 - 0.85**2 / 6) / 5)


@pytest.mark.parametrize(
    ("plan", "token_weights", "factors", "expected"),
    [
        (_FIVE_SPANS, [4, 2, 1, 1, 3, 3, 6, 20, 40, 80], FocusWeights(), 4 / 5 * 0.01265625),
        (_FIVE_SPANS, [4, 2, 1, 1, 3, 3, 6, 20, 40, 80], FocusWeights(deviation=False), 3 / 5 * 0.3 + 4 / 5 * 0.3375),
        (_EIGHT_SPANS, [6, 1, 2, 3, 4, 4, 20, 7], FocusWeights(), 1.7 / 8 * (_SIGMAS[0] * 6 + _SIGMAS[1] * 7) / 8 / 2),
        (_EIGHT_SPANS, [6, 1, 2, 3, 4, 4, 20, 7], FocusWeights(deviation=False), 1.7 / 8 * (6 / 8 + 7 / 8) / 2),
    ],
)
def test_dependency_score_on_paper(
    plan: FocusPlan, token_weights: list[int], factors: FocusWeights, expected: float
) -> None:
    key = torch.tensor(token_weights, dtype=torch.float64).log()[None, :, None]
    tokens = len(token_weights)
    collector = _SpanCollector(plan=plan, tokens=tokens)
    collector.observe(torch.ones_like(key), key, MaskPattern(), AttentionSpec(scaling=1.0))
    sums = focus_sums(plan, tokens, collector.layers[0].numpy()[None])
    assert contextual_dependency_score(sums, plan, tokens, factors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("tokens", [0, 48, 51, 52, 54, 56, 123, 125, 768])
@pytest.mark.parametrize(("m", "n", "d", "d_later", "n0"), [(1, 4, 4, 4, 16), (2, 0, 3, 5, 7), (0, 1, 1, 2, 2)])
def test_pairs_are_the_papers(tokens: int, variant: Variant, m: int, n: int, d: int, d_later: int, n0: int) -> None:
    plan = FocusPlan(
        span_length=3,
        first_spans=m,
        local_spans=n,
        earlier_stride=d,
        later_stride=d_later,
        first_scored=n0,
        variant=variant,
    )
    got = [(plan.start(j, tokens), [plan.start(i, tokens) for i in plan.earlier(j)]) for j in plan.later(tokens)]
    program = variant == "program"
    assert got == slow_pairs(tokens, length=3, m=m, n=n, d=d, d_later=d_later, n0=n0, program=program)
    assert all(earlier and earlier[-1] < j - (d * 3 - 1 if program else n * 3) for j, earlier in got)
    assert bool(got) == (tokens >= plan.fewest_tokens)


def test_the_papers_own_case() -> None:
    plan = FocusPlan()
    assert (plan.spans(32768), plan.offset(32768), plan.offset(32770)) == (256, 0, 2)
    assert plan.later(32768) == plan.later(32770) == list(range(16, 256, 4))
    assert (list(plan.earlier(16)), list(plan.earlier(18))) == ([1, 5, 9], [1, 5, 9, 13])
    assert plan.fewest_tokens == 2176


def test_the_programs_own_case() -> None:
    plan = FocusPlan(variant="program")
    assert (plan.later(32768)[0], plan.later(32768)[-1], len(plan.later(32768))) == (19, 255, 60)
    assert (list(plan.earlier(19)), list(plan.earlier(21))) == ([3, 7, 11, 15], [1, 5, 9, 13, 17])
    # The 17th span is scored where tokens stand before the first: its begin is behind more than 17 spans then.
    assert (plan.later(18 * 128), plan.later(18 * 128 + 1), plan.fewest_tokens) == ([], [17], 2305)


def test_plan_that_scores_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        FocusPlan(first_scored=5)


def _ids(tokens: int = 250) -> tuple[int, ...]:
    return text_ids(tokenizer(), LICENCE[2000:6000], max_tokens=tokens)


def _twin(model: Any, ids: tuple[int, ...], variant: Variant, length: int = 16) -> np.ndarray:
    program = variant == "program"
    pairs = slow_pairs(len(ids), length=length, m=1, n=2, d=2, d_later=3, n0=5, program=program)
    return np.array(
        [
            [slow_pfs(matrix, i, j, length, program) for j, earlier in pairs for i in earlier]
            for matrix in eager_matrices(model, ids)
        ]
    )


def _check(loaded: LoadedModel, variant: Variant, rtol: float) -> None:
    ids = _ids()
    got = pairwise_focus_scores(loaded, ids, PLANS[variant])
    want = _twin(loaded.model, ids, variant)
    assert got.dtype == torch.float64 and got.shape == want.shape == (2, want.shape[1])
    np.testing.assert_allclose(got.numpy(), want, rtol=rtol, atol=1e-12)
    assert want.std() > 0.05 * want.mean(), "a flat reference would prove nothing"


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "gpt_oss"])
def test_agrees_with_eager_matrices_on_real_prose(kind: str, variant: Variant) -> None:
    _check(loaded_model(kind), variant, 1e-4)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_float64_model_agrees_as_far_as_the_eager_softmax_goes(kind: str, variant: Variant) -> None:
    # transformers' eager attention takes its softmax in float32, whatever the model's precision.
    changes: dict[str, Any] = {"sliding_window": 75} if kind == "mistral" else {}
    _check(loaded_model(kind, dtype=torch.float64, **changes), variant, 1e-6)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize(
    "pattern", [MaskPattern(), MaskPattern(window=21), MaskPattern(window=3), MaskPattern(chunk=24)]
)
@pytest.mark.parametrize("elements", [100, 2**19])
def test_layer_is_made_of_a_whole_matrix(
    pattern: MaskPattern, variant: Variant, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", elements)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(heads, 69, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    plan = replace(PLANS[variant], span_length=8, local_spans=0, earlier_stride=1)
    collector = _SpanCollector(plan=plan, tokens=69)
    collector.observe(query, key, pattern, AttentionSpec(scaling=0.3, window=pattern.window))
    hidden = torch.tensor([[not pattern.sees(row, column) for column in range(69)] for row in range(69)])
    scores = query @ key.repeat_interleave(2, dim=0).transpose(1, 2) * 0.3
    matrix = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    program = variant == "program"
    pairs = slow_pairs(69, length=8, m=1, n=0, d=1, d_later=3, n0=5, program=program)
    want = [slow_pfs(matrix, i, j, 8, program) for j, earlier in pairs for i in earlier]
    np.testing.assert_allclose(collector.layers[0].numpy(), want, rtol=1e-11, atol=1e-15)


def test_bfloat16_agrees_within_a_percent() -> None:
    half, ids = loaded_model("llama", dtype=torch.bfloat16), _ids()
    got = pairwise_focus_scores(half, ids, PLAN).numpy()
    np.testing.assert_allclose(got, _twin(half.model, ids, "paper"), rtol=3e-2)


def test_tokens_and_flops_are_charged() -> None:
    loaded, ids, work = loaded_model("llama"), _ids(), ForwardWork()
    pairwise_focus_scores(loaded, ids, PLAN, work)
    shape = model_shape(loaded.model.config)
    # Spans 5, 8, 11 and 14 of 16 tokens, which begin after 250 - 15 * 16 = 10: 2 FLOPs a layer, head, query, key, size.
    rows = sum(2 * 2 * 4 * 16 * 16 * (10 + 16 * (j + 1)) for j in (5, 8, 11, 14))
    assert work.tokens == len(ids) == 250
    assert work.flops == span_attention_flops(shape, 250, PLAN)
    assert work.flops - rows == pytest.approx(shape.pass_flops(np.array([250.0]))[0])


@pytest.mark.parametrize("variant", ["paper", "program"])
def test_no_tensor_grows_with_the_square_of_the_length(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, length = loaded_model("llama"), 1600
    ids = torch.randint(5, 400, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 100_000)
    packs_documents(loaded)
    with Largest() as seen:
        pairwise_focus_scores(loaded, ids, PLANS[variant])
    # The largest are the feed-forward's: length x 96; a head's matrix would have length².
    assert 96 * length <= seen.elements < 2 * 96 * length


def test_layer_that_was_not_seen_is_an_error_not_a_zero() -> None:
    loaded = loaded_model("llama")
    layer: Any = loaded.model.get_submodule("model.layers.1.self_attn")
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    with refused("models.no_attention", "1.*2"):
        pairwise_focus_scores(loaded, _ids(), PLAN)
