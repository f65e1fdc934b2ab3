"""What limits will cut off, and what exceeds a model's positions."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.pipeline.expected_truncation import expected_truncation
from gateau_dagster.pipeline.losses import prompted_models
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.kit.project import make_project, sample, write_samples

COUNT = 20
RECORDS = [sample(number, sentences=2 + 3 * (number % 7)) for number in range(COUNT)]


def state_on(folder: Path, max_length: int = 64, **sections: Any) -> State:
    file = make_project(folder, shards=2, scoring={"max_length": max_length}, **sections)
    write_samples(folder / "long.jsonl", RECORDS)
    return state_of(config=load_project(file))


def test_it_is_near_what_the_prompts_lose(tmp_path: Path) -> None:
    state = state_on(tmp_path)
    tokenizer = local_facts(state.config, "long").tokenizer
    assert tokenizer is not None
    texts = [Sample.of_row({"sample_id": "", **each}) for each in RECORDS]
    prompts = [build_prompt(tokenizer, text, max_length=64) for text in texts]
    lost = [prompt.truncated_tokens for prompt in prompts]
    found = expected_truncation(state, "long")
    assert found.truncation.samples == COUNT
    assert found.truncation.cut == pytest.approx(sum(each > 0 for each in lost), abs=1)
    assert found.truncation.cut_tokens == pytest.approx(sum(lost), rel=0.05)
    assert found.truncation.tokens == pytest.approx(sum(lost) + sum(len(each.context) for each in prompts), rel=0.05)
    assert found.truncation.notable and found.counted and not found.unscorable
    (sentence,) = found.sentences
    assert f"about {found.truncation.cut} of {COUNT} samples cut" in sentence and "scoring.max_length is 64" in sentence


def test_a_model_that_is_to_see_its_window_only_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    found = expected_truncation(state_on(tmp_path, 512), "short")
    assert found.truncation.intended and found.truncation.share > 0.4 and not found.truncation.notable
    assert "models.short sees its window of 64 tokens only (context: window)" in found.sentences[0]
    assert "shortened as configured" in found.sentences[0] and "lost" not in found.sentences[0]
    longer = expected_truncation(state_on(tmp_path / "other", 48), "short")
    assert not longer.truncation.intended, "scoring.max_length is less than the window"


def test_nothing_to_say_where_everything_fits(tmp_path: Path) -> None:
    found = expected_truncation(state_on(tmp_path, 4096), "long")
    assert (found.truncation.cut, found.truncation.cut_tokens, found.sentences) == (0, 0, [])


def test_samples_whose_end_alone_is_too_long_are_counted_as_rejects(tmp_path: Path) -> None:
    state = state_on(tmp_path)
    long = {**sample(100), "response": "word " * 100}
    write_samples(tmp_path / "long.jsonl", [*RECORDS, long])
    found = expected_truncation(state_of(config=state.config), "long")
    tokenizer = local_facts(state.config, "long").tokenizer
    assert tokenizer is not None
    with pytest.raises(UnscorableSampleError):
        build_prompt(tokenizer, Sample.of_row({"sample_id": "", **long}), max_length=64)
    assert (found.unscorable, found.truncation.samples) == (1, COUNT)
    assert "about 1 sample will be rejected" in found.sentences[-1]


@pytest.mark.parametrize(
    ("name", "window", "cure"),
    [
        ("long", {}, "or lower scoring.max_length to 48"),
        ("short", {}, "or give models.short `context: window`, or lower scoring.max_length to 48"),
        ("short", {"context": "window", "window": 100}, "or lower models.short.window to 48"),
    ],
)
def test_prompts_beyond_rotary_positions_are_counted(
    tmp_path: Path, name: str, window: dict[str, Any], cure: str
) -> None:
    models = {"short": {"path": "short"}, "long": {"path": "long"}}
    models[name] |= window
    state = state_on(tmp_path, 512, models=models)
    edit(tmp_path / name, max_position_embeddings=48)
    tokenizer = local_facts(state.config, name).tokenizer
    assert tokenizer is not None
    texts = [Sample.of_row({"sample_id": "", **each}) for each in RECORDS]
    lengths = [build_prompt(tokenizer, text, max_length=window.get("window", 512)).length for text in texts]
    found = expected_truncation(state, name).beyond
    assert found is not None and (found.positions, found.scored) == (48, COUNT)
    assert found.samples == pytest.approx(sum(each > 48 for each in lengths), abs=1)
    assert found.tokens == pytest.approx(sum(max(0, each - 48) for each in lengths), rel=0.05)
    assert (found.longest, found.prompt_tokens) == pytest.approx((max(lengths), sum(lengths)), rel=0.05)
    assert found.cure == cure.removeprefix("or ")
    [*_, (sentence, warned)] = expected_truncation(state, name).lines
    assert warned and sentence.endswith(cure) and f"models.{name}: about {found.samples} of 20 samples" in sentence


def test_positions_that_are_scaled_or_learned_are_not_exceeded(tmp_path: Path) -> None:
    state = state_on(tmp_path, 512)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 32}
    edit(tmp_path / "long", max_position_embeddings=32, rope_parameters=yarn)
    assert expected_truncation(state, "long").beyond is None
    edit(tmp_path / "long", model_type="gpt2", rope_parameters=None, n_positions=32)
    assert expected_truncation(state_of(config=state.config), "long").beyond is None, (
        "learned ones are refused elsewhere"
    )


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_without_a_tokenizer_it_says_so(tmp_path: Path) -> None:
    state = state_on(tmp_path)
    for file in (tmp_path / "long").glob("tokenizer*"):
        file.unlink()
    found = expected_truncation(state, "long")
    assert not found.counted and found.truncation.cut


def test_only_models_that_are_shown_contexts_are_asked(tmp_path: Path) -> None:
    pair = state_on(tmp_path, selection={"compare": ["ifd"]})
    assets = {asset.key: asset for asset in pair.pipeline.assets}
    assert prompted_models(assets.values()) == ["long", "short"]
    assert prompted_models([assets["perplexity/short"], assets["raw_long_sft"]]) == ["short"]
    assert prompted_models([assets["response_alone/long"]]) == []
