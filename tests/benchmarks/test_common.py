"""What the benchmarks share."""

import json
import math
from pathlib import Path
from typing import Any

import common
import common_models
import common_scoring
import torch

from tests.scoring.builders import reference, reference_model


def test_the_straightforward_side_equals_the_slow_reference() -> None:
    loaded = common_models.build_model(common_models.TINY, name="tiny")
    (sample,) = common_models.make_samples(common_models.TINY.vocabulary, 1, tokens=120, response_tokens=9)
    expected: Any = reference(
        reference_model(loaded.model), loaded.tokenizer, sample, max_length=120, segment_length=16
    )
    found = common_scoring.cam(loaded, sample, 120, 16)
    assert common_scoring.difference([common_scoring.perplexity(loaded, sample, 120)], [expected.perplexity]) < 1e-5
    assert max(common_scoring.cam_differences([found], [expected]).values()) < 1e-5
    assert loaded.model.config._attn_implementation == "sdpa"


def test_samples_have_exactly_the_tokens_asked_for() -> None:
    loaded = common_models.build_model(common_models.TINY, name="tiny")
    samples = common_models.make_samples(300, 2, tokens=80, response_tokens=11)
    prompts = [common_models.prompt_of(loaded, sample) for sample in samples]
    assert [(prompt.length, len(prompt.response)) for prompt in prompts] == [(80, 11), (80, 11)]
    assert prompts[0].ids != prompts[1].ids
    assert max(max(prompt.ids) for prompt in prompts) < 300 and 0 not in prompts[0].ids
    batches = list(common_models.segment_batches(prompts[0], segment_length=16, batch_tokens=120))
    assert sorted(token for batch in batches for each in batch for token in each.context) == sorted(prompts[0].context)
    assert all(sum(each.length for each in batch) <= 120 for batch in batches)


def test_differences_are_relative_and_never_hidden() -> None:
    assert math.isclose(common_scoring.difference([1.0, 2.2], [1.0, 2.0]), 0.1)
    assert common_scoring.difference([1.0], [1.0, 2.0]) == math.inf
    assert common_scoring.difference([math.nan], [1.0]) == math.inf
    assert common_scoring.difference([0.5], [0.0]) == 0.5


def test_the_peak_holds_what_was_freed_again() -> None:
    device = torch.device("cpu")
    before, peak = common.memory_held(device), common.PeakMemory(device)
    assert float(torch.ones(2**25).sum()) == 2**25  # 128 MiB
    assert peak.read() - before > 100 * 2**20


def test_tables_spreads_and_json(tmp_path: Path) -> None:
    spread = common.Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (spread.median, spread.lower, spread.upper, spread.count) == (3.0, 2.0, 4.0, 5)
    assert common.ratios([4.0, 9.0], [2.0, 3.0]).median == 2.5
    lines = common.table(["name", "n"], [["a", 1], ["long", 22]]).splitlines()
    assert lines == ["name   n", "----  --", "a      1", "long  22"]
    common.write_json(tmp_path / "new" / "file.json", {"spread": spread})
    assert json.loads((tmp_path / "new" / "file.json").read_text())["spread"]["median"] == 3.0
    assert "NOT MET" in common.verdict("x", 1.0, 2.0, at_most=False)
    assert "met" in common.verdict("x", 1.0, 2.0, at_most=True)


def test_the_machine_has_no_names() -> None:
    described = common.machine()
    assert described["cores"] >= 1 and described["torch"]
    assert not any("/" in str(value) for key, value in described.items() if key != "cpu")
    assert not {"node", "host", "hostname", "user"} & set(described)
