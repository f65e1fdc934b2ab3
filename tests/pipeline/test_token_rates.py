"""Characters per token, by the model's tokenizer on some of the texts."""

import json
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.features.demo import pair
from gateau_dagster.features.demo.prepare import ensure_demo_data, ensure_demo_pair, ensure_demo_tokenizer
from gateau_dagster.models.model_facts import facts_of, local_facts
from gateau_dagster.pipeline import token_rates as module
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import TokenRates, chosen, token_rates
from tests.kit.project import make_project


@pytest.fixture
def state(tmp_path: Path) -> State:
    return state_of(config=load_project(make_project(tmp_path, samples=20, shards=2)))


def test_they_are_remembered_over_an_edit(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = token_rates(state, "long")
    records = [json.loads(line) for line in (tmp_path / "long.jsonl").read_text().splitlines()]
    records[3]["response"] += " again"
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setattr(module, "_measured", lambda *_: pytest.fail("measured again"))
    assert token_rates(state_of(config=state.config), "long") == first
    (tmp_path / ".gateau" / "cache" / "token_rates.json").write_text("{damaged")
    monkeypatch.setattr(module, "_measured", lambda *_: TokenRates(samples=3))
    assert token_rates(state_of(config=state.config), "long").samples == 3


def test_without_a_tokenizer_they_are_assumed(state: State, tmp_path: Path) -> None:
    for file in (tmp_path / "long").glob("tokenizer*"):
        file.unlink()
    assert token_rates(state_of(config=state.config), "long") == TokenRates()


def test_the_sample_is_even_over_lengths_and_near_the_start_of_each_file() -> None:
    lengths = [1, 2, 3, 4, 10**9, 6, 7]
    frame = pl.DataFrame({"sample_id": [str(n) for n in lengths], "file": [0] * 6 + [1], "characters": lengths})
    assert chosen(frame, 3)["characters"].to_list() == [1, 3, 10**9]
    assert chosen(frame, 99)["characters"].to_list() == [1, 2, 3, 4, 7, 10**9], "what stands behind 10^9 is too far"


def test_the_demo_s_pair_is_known_before_it_is_built(tmp_path: Path) -> None:
    config = load_project(f"demo:{tmp_path}")
    ensure_demo_data(config)
    ensure_demo_tokenizer(config)
    for name, window in (("short", 256), ("long", 2048)):
        found = facts_of(config, name).config
        assert found is not None and found.max_position_embeddings == window
        assert local_facts(config, name).tokenizer is not None
    assert not list(tmp_path.rglob("*.safetensors"))


def test_the_demo_s_pair_comes_with_the_tokenizers_that_maps_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "pair_is_current", lambda *_, **__: True)
    config = load_project(f"demo:{tmp_path}")
    ensure_demo_pair(config)
    for name in ("short", "long"):
        assert local_facts(config, name).tokenizer is not None
