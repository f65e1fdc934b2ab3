"""The scoring benchmark on tiny models: both sides agree, and a difference is an error."""

import json
from pathlib import Path

import common_scoring
import pytest
import scoring

SMALLEST = "--layers 2 --hidden 32 --heads 4 --kv-heads 2 --intermediate 48 --vocabulary 300"
OPTIONS = f"{SMALLEST} --tokens 150 --samples 1 --repetitions 2 --segment-length 16".split()


def test_it_measures_both_sides_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "scoring.json"
    status = scoring.main([*OPTIONS, "--response-tokens", "12", "5,9", "--out", str(file)])
    found = json.loads(file.read_text())
    assert status == 0
    assert [case["response_tokens"] for case in found["cases"]] == ["12", "5, 9"]
    for case in found["cases"]:
        assert len(case["seconds"]) == 9 and all(len(times) == 2 for times in case["seconds"].values())
        assert case["ratio"]["eager"]["median"] > 0 < case["ratio"]["sdpa"]["median"]
        assert max(case["largest_difference"].values()) < 1e-4
        assert set(case["largest_difference"]) == {
            *("perplexity_short", "perplexity_long", "segment_perplexity", "segment_attention", "cas")
        }
    printed = capsys.readouterr().out
    assert "times faster with 12 response tokens" in printed and "plain: theta_B attention" in printed


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = common_scoring.context_attention
    monkeypatch.setattr(common_scoring, "context_attention", lambda *given: right(*given) * 1.001)
    assert scoring.main([*OPTIONS, "--response-tokens", "12"]) == 1


def test_the_ratio_is_of_the_wholes_round_by_round() -> None:
    times = {
        "ours: a": [1.0, 2.0],
        "ours: b": [1.0, 2.0],
        "plain: a": [4.0, 4.0],
        "plain: c, eager": [6.0, 20.0],
        "plain: c, sdpa": [2.0, 4.0],
    }
    ratio, wholes = scoring.summary(times)
    assert wholes == {"eager": [10.0, 24.0], "sdpa": [6.0, 8.0], "ours": [2.0, 4.0]}
    assert (ratio["eager"].median, ratio["eager"].lower, ratio["eager"].upper) == (5.5, 5.0, 6.0)
    assert ratio["sdpa"].median == 2.5
