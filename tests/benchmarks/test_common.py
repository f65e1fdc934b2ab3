"""What the benchmarks share."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from tests.scoring.builders import reference, reference_model

Script = Callable[[str], ModuleType]


def test_the_straightforward_side_equals_the_slow_reference(script: Script) -> None:
    models, scoring = script("common_models"), script("common_scoring")
    loaded = models.build_model(models.TINY, name="tiny")
    (sample,) = models.make_samples(models.TINY.vocabulary, 1, tokens=120, response_tokens=9)
    expected = reference(reference_model(loaded.model), loaded.tokenizer, sample, max_length=120, segment_length=16)
    found = scoring.cam(loaded, sample, 120, 16)
    assert scoring.difference([scoring.perplexity(loaded, sample, 120)], [expected.perplexity]) < 1e-5
    assert max(scoring.cam_differences([found], [expected]).values()) < 1e-5
    assert loaded.model.config._attn_implementation == "sdpa"


def test_samples_have_exactly_the_tokens_asked_for(script: Script) -> None:
    models = script("common_models")
    loaded = models.build_model(models.TINY, name="tiny")
    samples = models.make_samples(300, 2, tokens=80, response_tokens=11)
    prompts = [models.prompt_of(loaded, sample) for sample in samples]
    assert [(prompt.length, len(prompt.response)) for prompt in prompts] == [(80, 11), (80, 11)]
    assert prompts[0].ids != prompts[1].ids
    assert max(max(prompt.ids) for prompt in prompts) < 300 and 0 not in prompts[0].ids
    batches = list(models.segment_batches(prompts[0], segment_length=16, batch_tokens=120))
    assert sorted(token for batch in batches for each in batch for token in each.context) == sorted(prompts[0].context)
    assert all(sum(each.length for each in batch) <= 120 for batch in batches)


def test_differences_are_relative_and_never_hidden(script: Script) -> None:
    pipeline = script("common_scoring")
    assert math.isclose(pipeline.difference([1.0, 2.2], [1.0, 2.0]), 0.1)
    assert pipeline.difference([1.0], [1.0, 2.0]) == math.inf
    assert pipeline.difference([math.nan], [1.0]) == math.inf
    assert pipeline.difference([0.5], [0.0]) == 0.5


def test_the_peak_holds_what_was_freed_again(script: Script) -> None:
    measure = script("common")
    device = torch.device("cpu")
    before, peak = measure.memory_held(device), measure.PeakMemory(device)
    assert float(torch.ones(2**25).sum()) == 2**25  # 128 MiB
    assert peak.read() - before > 100 * 2**20


def test_tables_spreads_and_json(script: Script, tmp_path: Path) -> None:
    measure = script("common")
    spread = measure.Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (spread.median, spread.lower, spread.upper, spread.count) == (3.0, 2.0, 4.0, 5)
    assert measure.ratios([4.0, 9.0], [2.0, 3.0]).median == 2.5
    lines = measure.table(["name", "n"], [["a", 1], ["long", 22]]).splitlines()
    assert lines == ["name   n", "----  --", "a      1", "long  22"]
    measure.write_json(tmp_path / "new" / "file.json", {"spread": spread})
    assert json.loads((tmp_path / "new" / "file.json").read_text())["spread"]["median"] == 3.0
    assert "NOT MET" in measure.verdict("x", 1.0, 2.0, at_most=False)
    assert "met" in measure.verdict("x", 1.0, 2.0, at_most=True)


def test_the_machine_has_no_names(script: Script) -> None:
    described = script("common").machine()
    assert described["cores"] >= 1 and described["torch"]
    assert not any("/" in str(value) for key, value in described.items() if key != "cpu")
    assert not {"node", "host", "hostname", "user"} & set(described)
