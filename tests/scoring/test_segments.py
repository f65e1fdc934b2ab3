"""Segments of a context, which are near and which are read, the far-segment gain and CAM: against plain loops."""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.methods.ifd import RESPONSE_ALONE
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.models import forward, memory
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.loaded import LoadedModel, Meter
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring import segments as screening
from gateau_dagster.scoring.cherry_selection import alone_prompt, response_alone_rows
from gateau_dagster.scoring.response_perplexity import PerplexityRow, mean_nll_and_perplexity, probability
from gateau_dagster.scoring.segments import (
    NOTED,
    CamFigures,
    CamRow,
    at_window,
    best_far_segment,
    cam_row,
    contextual_awareness_score,
    counted_tokens,
    cut_segments,
    far_gain,
    fused_order,
    importance_score,
    near_and_far,
    near_segments,
    packed,
    parts_of,
    screened_count,
    screened_segments,
    segment_attention_score,
    segment_gains,
    segment_prompts,
    unpacked,
)
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples, text, tokenizer
from tests.methods.configured import configured
from tests.scoring.builders import outcomes, reference_cas, reference_softmax, running, slowly_divided


@given(st.integers(0, 500), st.integers(1, 200))
def test_segments_cover_the_context_once(tokens: int, length: int) -> None:
    spans = cut_segments(tokens, length)
    assert [t for a, b in spans for t in range(a, b)] == list(range(tokens))
    assert all(b - a == length for a, b in spans[:-1])
    assert len(spans) == -(-tokens // length)


def test_segment_prompts_reuse_the_truncated_contexts_tokens() -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=200)
    assert prompt.truncated_tokens > 0
    cut = segment_prompts(prompt, 30)
    assert sum((p.context for p in cut), ()) == prompt.context
    assert {(p.prefix, p.suffix, p.response) for p in cut} == {(prompt.prefix, prompt.suffix, prompt.response)}


@given(context=st.integers(0, 60), length=st.integers(1, 20), visible_tokens=st.integers(1, 80) | st.none())
def test_the_border_against_looking_at_every_token(context: int, length: int, visible_tokens: int | None) -> None:
    """A theta_A that sees everything leaves the last segment near."""
    seen = 3 + 4 + 5 + 1 if visible_tokens is None else visible_tokens
    shown = {position for position in range(context) if context - position + 3 + 4 + 5 <= seen}
    segments = [range(begin, min(begin + length, context)) for begin in range(0, context, length)]
    near = sum(any(token in shown for token in segment) for segment in segments)
    assert near_segments(context, 3 + 4 + 5, segment_length=length, visible_tokens=visible_tokens) == near


def slow_far_gain(near: list[float], far: list[float], top: Fraction) -> float:
    """Takes the largest gain again and again."""
    gains = [b - a if b > a else 0.0 for a, b in zip(near, far, strict=True)]
    best = []
    while gains and len(best) < max(2, math.ceil(top * len(near))):
        best.append(max(gains))
        gains.remove(best[-1])
    return math.fsum(best) / len(best)


@pytest.mark.parametrize("top", ["1/10", "3/10", "1"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 20, 21, 30, 31, 70, 400])
def test_far_gain_is_that_of_plain_loops(tokens: int, top: str) -> None:
    near, far = np.random.default_rng(tokens).random((2, tokens)).astype(np.float32)
    expected = slow_far_gain([float(p) for p in near], [float(p) for p in far], Fraction(top))
    assert far_gain(near, far, segments=2, top=float(Fraction(top))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("percent", [7, 10, 14, 28, 55])
def test_rounding_counts_no_token_more(percent: int) -> None:
    """0.07·100, 0.14·50, 0.28·25 and 0.55·100 are a little more than whole numbers as floats."""
    sizes = np.arange(1, 2000)
    exact = [max(2, math.ceil(Fraction(percent * int(n), 100))) for n in sizes]
    assert counted_tokens(sizes, top=percent / 100).tolist() == exact


@pytest.mark.parametrize("count", [0, 1, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_near_and_far_segments_are_those_of_plain_loops(count: int, seed: int) -> None:
    rng = np.random.default_rng([count, seed])
    without, segments = rng.exponential(2, 7), list(rng.exponential(2, (4, 7)))
    alone, given = probability(without), probability(np.stack(segments))
    near, far = near_and_far(alone, given, count)
    assert near.dtype == far.dtype == np.float32
    best, gains = best_far_segment(near, given, count), segment_gains(alone, near, given, count)
    p = [[math.exp(-float(nll)) for nll in segment] for segment in segments]
    for token, segment in enumerate(best):
        others = [p[place][token] for place in range(4 - count)]
        closest = max([math.exp(-float(without[token])), *(p[place][token] for place in range(4 - count, 4))])
        assert (near[token], far[token]) == (np.float32(closest), np.float32(max([0.0, *others])))
        gaining = bool(others) and max(others) - closest >= NOTED
        assert segment == (others.index(max(others)) if gaining else None)
    for place, gain in enumerate(gains):
        base = near if place < 4 - count else np.exp(-without)
        expected = math.fsum(max(0.0, p[place][token] - float(base[token])) for token in range(7))
        assert gain == pytest.approx(expected, abs=1e-6)


def test_of_equal_segments_the_first_counts_whatever_the_rounding() -> None:
    nll = np.array([0.2, 0.2])
    segments = probability(np.stack([nll + 5, nll, nll - 1e-7, nll + 1e-7, nll + 9]))
    near = np.exp(-nll - 3).astype(np.float32)
    assert best_far_segment(near, segments, 1) == [1, 1]
    assert best_far_segment(near, segments[::-1], 1) == [1, 1]


def test_a_gain_that_is_rounding_has_no_segment() -> None:
    certain = np.array([1e-7, 1e-7, 2.0])
    near = np.exp(-certain - np.array([1e-4, 0.1, 1e-4])).astype(np.float32)
    assert best_far_segment(near, probability(np.stack([certain, certain])), 0) == [None, 0, None]


def test_without_a_context_nothing_gave_anything() -> None:
    near, none = np.array([0.5, 0.5], dtype=np.float32), np.empty((0, 2), dtype=np.float32)
    assert best_far_segment(near, none, 0) == [None, None]
    assert segment_gains(near, near, none, 0) == []


@settings(max_examples=60, deadline=None)
@given(
    context=st.integers(0, 40),
    tokens=st.integers(1, 9),
    seed=st.integers(0, 99),
    windows=st.tuples(*[st.integers(1, 60) | st.none()] * 2),
)
def test_a_row_becomes_that_of_another_window_to_the_bit(
    context: int, tokens: int, seed: int, windows: tuple[int | None, int | None]
) -> None:
    rng = np.random.default_rng(seed)
    count = -(-context // 4)
    # Coarse, so that probabilities are equal, and some of them 0 and 1.
    unit = float(rng.choice([0.1, 40.0]))
    alone, *nlls = (np.float64(unit) * rng.integers(0, 5, tokens) for _ in range(1 + count))

    def table(window: int | None) -> pl.DataFrame:
        near = near_segments(context, 7, segment_length=4, visible_tokens=window)
        found = CamFigures(
            without_context=alone, segments=nlls, attention=np.ones(context), context=context, tail=7, near=near
        )
        return pl.DataFrame([vars(cam_row(samples()[0], found, segment_length=4))], schema=tables.schema(tables.CAM))

    first, second = map(table, windows)
    derived = at_window(first, segment_length=4, visible_tokens=windows[1])
    assert_frame_equal(derived, second, check_exact=True)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 13)])
def test_packed_probabilities_are_those_that_can_count(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape)
    segments, alone = rng.random(shape, dtype=np.float32), rng.random(shape[1], dtype=np.float32)
    found = unpacked(packed(segments, alone), shape)
    for place, token in np.ndindex(*shape):
        counts = segments[place, token] > alone[token] or segments[place, token] > max([0, *segments[:place, token]])
        assert found[place, token] == (segments[place, token] if counts else 0)


_PAIRS = st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(_PAIRS)
def test_scores_agree_with_the_twin(pairs: list[tuple[float, float]]) -> None:
    perplexity, attention = [p for p, _ in pairs], [a for _, a in pairs]
    np.testing.assert_allclose(importance_score(perplexity), reference_softmax(perplexity), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(segment_attention_score(attention), reference_softmax(attention), rtol=1e-12)
    cas = contextual_awareness_score(perplexity, attention)
    assert cas == pytest.approx(reference_cas(perplexity, attention), rel=1e-12)
    assert cas is not None and 0 < cas <= 1


def test_huge_perplexities_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        scores = importance_score([1e300, 2.0, 1.5e300])
        assert scores.tolist() == [0.0, 0.0, 1.0]
        assert contextual_awareness_score([1e300, 1e300], [0.1, 0.1]) == pytest.approx(1, rel=1e-12)
    for few in ([], [3.0]):
        assert contextual_awareness_score(few, few) is None


@pytest.mark.parametrize(
    ("perplexity", "attention", "message"),
    [
        ([1.0, math.inf], [0.1, 0.2], "not finite"),
        ([1.0, math.nan], [0.1, 0.2], "not finite"),
        ([1.0, 2.0], [0.1], "2 segment perplexities, but 1 attentions"),
    ],
)
def test_values_that_are_not_finite_or_do_not_go_together_are_refused(
    perplexity: list[float], attention: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        contextual_awareness_score(perplexity, attention)


def test_module_needs_no_torch() -> None:
    import subprocess

    code = "import sys, gateau_dagster.scoring.segments; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("row", "columns"), [(CamRow, tables.CAM), (PerplexityRow, tables.PERPLEXITY)])
def test_rows_have_the_promised_columns(row: Any, columns: Sequence[tables.Column]) -> None:
    assert [field.name for field in dataclasses.fields(row)] == [column.name for column in columns]


NLL = [np.array([1.0, 2.0]), np.array([0.5, 0.1])]
ALONE = np.array([0.7, 3.0])


def figures(segments: list[np.ndarray], attention: np.ndarray | None, alone: np.ndarray = ALONE) -> CamFigures:
    near = min(len(segments), 1)
    return CamFigures(without_context=alone, segments=segments, attention=attention, context=4, tail=9, near=near)


HUGE = [np.array([1.0]), np.array([800.0]), np.array([1.0])]


@pytest.mark.parametrize(
    ("found", "length", "message"),
    [
        (figures(HUGE, np.ones(3)), 1, r"given segment 2 alone: .* is 800\.0: its perplexity overflows"),
        (figures(NLL, np.ones(3), np.array([0.1, math.nan])), 2, "without context: mean NLL of the response is nan"),
        (figures(NLL, np.array([0.1, math.nan, 0.1])), 2, "attention to the context is not finite"),
    ],
)
def test_what_is_not_finite_is_named_and_unscorable(found: CamFigures, length: int, message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        cam_row(samples()[0], found, segment_length=length)


@pytest.mark.parametrize(
    ("nll", "message"), [(math.nan, "is nan"), (math.inf, "is inf"), (710.0, "is 710.0: its perplexity overflows")]
)
def test_figures_that_are_not_finite_are_unscorable(nll: float, message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        mean_nll_and_perplexity(np.array([nll]))
    assert math.isfinite(mean_nll_and_perplexity(np.array([709.0]))[1])
    assert mean_nll_and_perplexity(np.array([1.0, 2.0, 6.0])) == (3.0, pytest.approx(math.exp(3)))


def slow_loss(loaded: LoadedModel, response: str) -> tuple[float, int]:
    """Mean NLL in nats and the number of response tokens."""
    tokenize = loaded.tokenizer
    bos = [] if tokenize.bos_token_id is None else [tokenize.bos_token_id]
    asked, wanted = slowly_divided(tokenize, "### Response: ", response)
    frame = [*bos, *asked]
    logits = loaded.model(torch.tensor([[*frame, *wanted]])).logits[0].double().tolist()
    losses = []
    for place, token in enumerate(wanted):
        row = logits[len(frame) + place - 1]
        largest = max(row)
        losses.append(largest + math.log(math.fsum(math.exp(value - largest) for value in row)) - row[token])
    return math.fsum(losses) / len(losses), len(losses)


def rows(loaded: LoadedModel, chosen: list[Sample], max_length: int = 2048, batch_tokens: int = 200) -> list[Any]:
    return list(response_alone_rows(loaded, chosen, running(max_length, batch_tokens=batch_tokens)))


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_mean_nll_is_that_of_the_response_behind_its_heading(batch_tokens: int, bos: bool) -> None:
    loaded = loaded_model("llama", bos=bos, dtype=torch.float64)
    found = rows(loaded, samples(), batch_tokens=batch_tokens)
    for row, sample in zip(found, samples(), strict=True):
        loss, count = slow_loss(loaded, sample.response)
        assert list(row) == [column.name for column in RESPONSE_ALONE]
        assert (row["sample_id"], row["digest"], row["response_tokens"]) == (sample.sample_id, sample.digest, count)
        assert row["mean_nll"] == pytest.approx(loss, rel=1e-6)  # the model's norms are in float32


def test_a_response_without_tokens_or_too_long_is_rejected() -> None:
    chosen = [dataclasses.replace(samples()[0], response=""), samples()[2], samples()[3]]
    length = alone_prompt(tokenizer(), samples()[3], max_length=10_000).length
    empty, short, long = rows(loaded_model("llama"), chosen, max_length=length - 1)
    assert empty == Reject(sample_id="s0", reason="the response has no tokens")
    assert short["sample_id"] == "s2"
    assert long == Reject(
        sample_id="s3", reason=f"the response takes {length} tokens, more than the {length - 1} allowed"
    )


def test_what_does_not_fit_into_memory_is_rejected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.response_nll
    longest = max(alone_prompt(tokenizer(), sample, max_length=10_000).length for sample in samples())

    def tight(loaded: Any, prompts: Any) -> Any:
        if sum(prompt.length for prompt in prompts) >= longest:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, prompts)

    monkeypatch.setattr(forward, "response_nll", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = rows(loaded_model("llama"), samples(), batch_tokens=2 * longest)
    rejected = [row for row in found if isinstance(row, Reject)]
    assert [(one.sample_id, one.short_of_memory) for one in rejected] == [("s3", True)]
    assert rejected[0].reason.startswith(f"out of memory on a prompt of {longest} tokens")


LENGTH = 8
SHAPE = ModelShape(layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11_008, vocabulary=32_000)


def slow_bm25(segments: Sequence[Sequence[int]], query: set[int]) -> list[float]:
    """Robertson's formula with Lucene's idf, segment by segment."""
    average = sum(map(len, segments)) / len(segments)
    scores = []
    for segment in segments:
        counts, score = Counter(segment), 0.0
        for token in query:
            holding = sum(token in other for other in segments)
            idf = math.log(1 + (len(segments) - holding + 0.5) / (holding + 0.5))
            score += idf * counts[token] / (counts[token] + 1.5 * (1 - 0.75 + 0.75 * len(segment) / average))
        scores.append(score)
    return scores


def slow_choice(prompt: Prompt, count: int, near: int, attention: Sequence[float] | None) -> list[int]:
    segments = [prompt.context[place : place + LENGTH] for place in range(0, len(prompt.context), LENGTH)]
    if count >= len(segments):
        return [*range(len(segments))]
    queries = [{*prompt.suffix, *prompt.response}, {*prompt.response}]
    signals = [*([] if attention is None else [attention]), *(slow_bm25(segments, query) for query in queries)]
    fused = Counter[int]()
    for signal in signals:
        best_first = sorted(range(len(segments)), key=lambda place: (-signal[place], -place))
        for rank, place in enumerate(best_first, start=1):
            fused[place] += 1 / (60 + rank)  # pyright: ignore[reportArgumentType]
    order = sorted(range(len(segments)), key=lambda place: (-fused[place], -place))
    chosen = [len(segments) - 1]
    for place in order:
        if place < len(segments) - near and place not in chosen:
            chosen.append(place)
            break
    for place in order:
        if len(chosen) < count and place not in chosen:
            chosen.append(place)
    return sorted(chosen)


def test_bm25_does_not_start_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('JAX takes the memory of the GPU')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in {"bm25s", "jax"}]:
        monkeypatch.delitem(sys.modules, name)
    screening._bm25_index.cache_clear()
    assert screening._bm25([[1, 2], [3, 4]], [[3]])[0].argmax() == 1
    assert "jax" not in sys.modules


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_that_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def ids(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(40, size=rng.integers(1, most)).tolist())

    prompt = Prompt(prefix=ids(5), context=ids(200), suffix=ids(20), response=ids(20))
    segments = math.ceil(len(prompt.context) / LENGTH)
    attention = None if seed % 3 == 0 else rng.random(segments).tolist()
    for near in {0, 1, min(3, segments), segments}:
        for count in (4, 6, 12, 99):
            found = screened_segments(prompt, count=count, segment_length=LENGTH, near=near, attention=attention)
            assert found == slow_choice(prompt, count, near, attention)
            assert len(found) == min(count, segments) and segments - 1 in found


def test_of_equal_segments_the_nearer_comes_first() -> None:
    assert fused_order([[1.0, 1.0, 2.0, 1.0]]) == [2, 3, 1, 0]


@pytest.mark.parametrize("response", [1, 127, 400])
@pytest.mark.parametrize("context", [0, 1, 600, 8_000, 64_000])
@pytest.mark.parametrize("shape", [SHAPE, None])
def test_one_more_segment_would_cost_more_than_a_second_pass(
    context: int, response: int, shape: ModelShape | None
) -> None:
    prompt = Prompt(prefix=(1,), context=(2,) * context, suffix=(3,) * 60, response=(4,) * response)
    segments, (count,) = math.ceil(context / 128), screened_count(parts_of(prompt), 128, shape)

    def cost(tokens: int) -> float:
        if shape is None:
            return float(tokens)
        each = shape.pass_flops(np.array([float(tokens)]), np.array([float(response)]))
        return float(each[0]) + shape.head_flops(response)

    rows = 0.0 if shape is None else shape.attention_row_flops(response, prompt.length)

    def whole(number: float) -> float:
        return rows + cost(prompt.length - context) + number * cost(128 + prompt.length - context)

    assert count <= segments
    assert count <= 4 or whole(count) <= cost(prompt.length)
    assert count == segments or whole(count + 1) > cost(prompt.length)
    assert count == min(segments, max(4, count))


def _cam_rows(**changes: Any) -> list[CamRow]:
    rows = [one.cam for one in outcomes(loaded_model("llama"), samples(), **changes)]
    assert all(isinstance(row, CamRow) for row in rows)
    return rows  # pyright: ignore[reportReturnType]


def test_where_all_segments_are_read_the_row_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "BUDGET", 1e6)
    for every, screened in zip(_cam_rows(), _cam_rows(segments="screened"), strict=True):
        assert screened == replace(every, cas=None, segment_probability=None)
        assert every.segments < 2 or every.cas is not None


@pytest.mark.parametrize("perplexity", [True, False])
def test_a_segment_that_is_left_out_takes_no_pass_and_gives_nothing(
    monkeypatch: pytest.MonkeyPatch, perplexity: bool
) -> None:
    monkeypatch.setattr(screening, "BUDGET", 0.0)
    sample = Sample(sample_id="s", source="t", context=text(1, 300), instruction="Say it.", response=text(1, 20))
    meters = Meter(), Meter()
    (every,), (screened,) = (
        outcomes(loaded_model("llama"), [sample], perplexity=perplexity, segments=how, meter=meter)
        for how, meter in zip(("all", "screened"), meters, strict=True)
    )
    every, screened = every.cam, screened.cam
    assert isinstance(every, CamRow) and isinstance(screened, CamRow)
    prompt = build_prompt(tokenizer(), sample, max_length=4096)
    read = screened_segments(prompt, count=4, segment_length=32, near=1, attention=every.segment_attention)
    assert [place for place, found in enumerate(screened.segment_perplexity) if found is not None] == read
    assert [place for place, gain in enumerate(screened.segment_gain) if gain is not None] == read
    assert every.segments == screened.segments > len(read) == 4
    for place in read:
        assert screened.segment_perplexity[place] == pytest.approx(every.segment_perplexity[place], rel=1e-5)
    assert {segment for segment in screened.far_segment if segment is not None} <= {*read}
    assert np.all(np.array(screened.far_probability) <= np.array(every.far_probability) * (1 + 1e-5))
    assert screened.segment_attention == every.segment_attention and screened.cas is None
    tail = prompt.length - len(prompt.context)
    skipped = sum(len(prompt.context[32 * place :][:32]) + tail for place in range(every.segments) if place not in read)
    assert meters[0].cam.tokens - meters[1].cam.tokens == skipped


@pytest.mark.parametrize(
    "selection",
    [
        {"preset": "paper"},
        {"compare": ["cam"], "options": {"cam": {"preset": "official"}}},
        {"compare": ["gateau_unnormalised"]},
        {"method": "far_gain", "preset": "paper", "segment_lengths": [64]},
    ],
)
def test_what_reads_every_segment_is_refused(selection: dict[str, Any]) -> None:
    with refused("scoring.segments", "all"):
        configured(scoring={"segments": "screened"}, **selection)


def test_only_tables_of_segments_have_the_setting() -> None:
    selection: dict[str, Any] = {"compare": ["far_gain", "ifd"], "segment_lengths": [64]}
    every, screened = (
        all_sample_tables(configured(scoring={"segments": how}, **selection)) for how in ("all", "screened")
    )
    changed = {asset for asset, table in screened.items() if table.settings != every[asset].settings}
    assert changed == {"cam", "cam_at/64"}
    assert changed == {asset for asset, table in screened.items() if table.code_version != every[asset].code_version}
    assert every["cam"].other_efforts.keys() == {"scoring.segments: screened"}
    assert screened["cam"].other_efforts.keys() == {"scoring.segments: all"}
    read_whole = all_sample_tables(configured(preset="paper"))
    assert not read_whole["cam"].other_efforts
