"""Screened segments: number and choice against plain loops, and rows that are those of `all` where all are read."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateau_dagster.data.sample import Sample
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.models.flops import Meter, ModelShape
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring import segments as screening
from gateau_dagster.scoring.sample_table import parts_of
from gateau_dagster.scoring.segments import CamRow, fused_order, screened_count, screened_segments
from tests.error_codes import refused
from tests.methods.configured import configured
from tests.scoring.builders import outcomes
from tests.tiny_models import loaded_model, samples, text, tokenizer

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
        assert screened == replace(every, cas=None)
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
