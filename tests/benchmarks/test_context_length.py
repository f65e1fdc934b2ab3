"""The benchmark of context lengths on a tiny model, its processes replaced by calls."""

import json
from pathlib import Path
from typing import Any

import context_length
import pytest

SMALLEST = "--layers 2 --hidden 32 --heads 4 --kv-heads 2 --intermediate 48 --vocabulary 300"
GIVEN = """--lengths 64 128 --memory-length 128 --eager 64 --time-length 64 --rounds 2 --repetitions 1
--segment-length 16 --response-tokens 8"""
OPTIONS: list[str] = [*f"{SMALLEST} {GIVEN}".split()]


def test_it_measures_each_length_and_draws_its_conclusions(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(context_length.common, "in_a_process", lambda work, *given: work(*given))
    file = tmp_path / "lengths.json"
    assert context_length.main([*OPTIONS, "--out", str(file)]) == 0
    found = json.loads(file.read_text())
    names = {length: [each["name"] for each in passes] for length, passes in found["lengths"].items()}
    assert names == {
        "64": ["perplexity and attention", "segment prompts", "eager output_attentions"],
        "128": ["perplexity and attention", "segment prompts"],
    }
    assert all(len(each["seconds"]) == 2 for passes in found["lengths"].values() for each in passes)
    has_peak = found["lengths"]["64"][2]["peak_bytes"] > 0  # a pass this small may fit into what was held before
    share = {"memory_share"} if has_peak else set()
    assert set(found["conclusions"]) == {"time_ratio_joint", "time_ratio_segments", *share}
    assert capsys.readouterr().out.count("perplexity and attention") == 2


def test_what_fails_is_said_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = context_length.Measured(
        name="segment prompts", tokens=9, flops=1.0, seconds=[1.0], peak_bytes=1, total_peak_bytes=2
    )

    def process(_: object, options: object, length: int) -> list[Any]:
        if length == 64:
            return [measured]
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(context_length.common, "in_a_process", process)
    assert context_length.main(OPTIONS) == 1
    assert "128 tokens: RuntimeError: out of memory" in capsys.readouterr().out


def test_the_figures_that_have_targets() -> None:

    def passes(joint: float, flops: float, peak: int, eager: int) -> list[Any]:
        made = [("perplexity and attention", peak), ("segment prompts", 1), ("eager output_attentions", eager)]
        return [
            context_length.Measured(
                name=name, tokens=1, flops=flops, seconds=[joint + 1, joint], peak_bytes=size, total_peak_bytes=size
            )
            for name, size in made
            if size
        ]

    found = {64: passes(1.0, 10.0, 5, 100), 128: passes(6.0, 40.0, 20, 0)}
    conclusions = context_length.conclusions(found, context_length.parse(OPTIONS))
    assert conclusions["memory_share"] == 20 / 400  # the peak at 128 against four times the eager peak at 64
    assert conclusions["time_ratio_joint"] == 6.0 / 4.0
