"""The memory of trainings in a plan: what fits, what would make it fit, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from transformers import LlamaConfig

from gateau_dagster.cli import plan as command
from gateau_dagster.cli.plan import plan_record, print_plan
from gateau_dagster.cli.validate import print_validation
from gateau_dagster.config.training import LoraConfig, TrainingConfig
from gateau_dagster.features.training_planner.training_memory import (
    CARDS,
    GIB,
    TrainingMemory,
    check_training_memory,
    longest_pass,
    planned_memory,
)
from gateau_dagster.models.model_facts import facts_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.memory_plan import TILE_TOKENS, USABLE, ModelSizes, choose_levers, levers_plan
from tests.kit.error_codes import refused
from tests.kit.project import ROOT, change_config, make_project

TOO_SMALL = 0.0004  # GiB


def _state(folder: Path, **training: Any) -> State:
    file = folder / "gateau.yaml"
    if not file.exists():
        make_project(folder, samples=12, shards=2, training=True, selection={"method": "length"})
    change_config(file, training=training)
    return state_of(config=load_project(file))


def _planned(state: State) -> TrainingMemory:
    (found,) = planned_memory(state, state.whole_plan())
    return found


def _printed(state: State, monkeypatch: pytest.MonkeyPatch) -> str:
    text = io.StringIO()
    monkeypatch.setattr(command, "console", lambda: Console(file=text, width=400))
    print_plan(state.config, "checkpoint")
    return text.getvalue()


def test_a_training_that_fits_takes_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(tmp_path, gpu_memory=80)
    found = _planned(state)
    assert found.fits and not found.cures and found.memory is not None
    lines = [line for line in _printed(state, monkeypatch).splitlines() if "Memory of checkpoint" in line]
    assert len(lines) == 1 and "it has 80.0 GiB" in lines[0]
    check_training_memory(state)


def test_a_machine_without_gpu_is_told_of_common_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state(tmp_path, launcher=["env"])
    found = _planned(state)
    assert found.gpu_bytes is None and found.fits and not found.impossible
    assert [*found.longest] == [card * GIB for card in (24, 48, 80, 141)]
    assert [*found.longest.values()] == sorted(found.longest.values())
    assert "The longest pass that fits, in tokens: 24.0 GiB" in _printed(state, monkeypatch)


@pytest.mark.parametrize("ways", [{}, {"batching": "packed", "pack_length": 1024}, {"batch_size": 2}])
def test_one_that_does_not_fit_is_refused_with_its_parts(
    ways: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _state(tmp_path, gpu_memory=TOO_SMALL, **ways)
    found = _planned(state)
    assert found.impossible and not found.fits
    with refused("training.memory") as raised:
        _printed(state, monkeypatch)
    assert all(part in str(raised.value) for part in ("weights", "optimiser", "loss"))
    with refused("training.memory"):
        check_training_memory(state)
    with refused("training.memory"):
        print_validation(state.config)
    (record,) = json.loads(json.dumps(plan_record(state, state.whole_plan())))["memory"]
    assert record["refused"] and record["device_bytes"] == sum(record["memory"]["device"].values())


def test_the_gpus_of_a_variant_alone_count_too(tmp_path: Path) -> None:
    _state(tmp_path)
    own = {"name": "own", "selection": {"method": "random"}, "training": {"gpu_memory": TOO_SMALL}}
    change_config(tmp_path / "gateau.yaml", variants={"also": [own]})
    state = state_of(config=load_project(tmp_path / "gateau.yaml"))
    with refused("training.memory", "variant/checkpoint: "):
        check_training_memory(state, state.whole_plan())
    check_training_memory(state, state.plan_until("checkpoint"))


PACKED: dict[str, Any] = {"batching": "packed", "pack_length": 2048, "max_length": 512}


@pytest.mark.parametrize(
    ("kib", "ways", "named"),
    [
        (700, {"batch_size": 4, "max_length": 512}, ""),
        (1000, {"batch_size": 4, "max_length": 512}, ""),
        (1200, {"batch_size": 4, "max_length": 512}, ""),
        (1000, PACKED, ""),
        (700, PACKED, "lora: {}, pack_length: "),
    ],
)
def test_each_cure_makes_it_fit(kib: int, ways: dict[str, Any], named: str, tmp_path: Path) -> None:
    before = _planned(_state(tmp_path, gpu_memory=kib * 2**-20, **ways))
    assert not before.fits and any(cure.startswith(named) for cure in before.cures)
    for cure in before.cures:
        changes = yaml.safe_load("{" + cure.partition(";")[0] + "}")
        file = tmp_path / "gateau.yaml"
        text = file.read_text(encoding="utf-8")
        assert _planned(_state(tmp_path, **changes)).fits, cure
        file.write_text(text, encoding="utf-8")


def test_the_longest_pass_is_the_longest(tmp_path: Path) -> None:
    state = _state(tmp_path, gpu_memory=1)
    training, found = state.config.training, _planned(state)
    known = facts_of(state.config, "long").config
    assert known is not None
    longest, sizes = found.longest[GIB], ModelSizes.known(known)
    for tokens, fits in ((longest, True), (longest + 1024, False)):
        levers = choose_levers(training, sizes, tokens=tokens, deepspeed=None, device_bytes=GIB)
        planned = levers_plan(training, sizes, levers, tokens=tokens, deepspeed=None)
        assert (planned.device_bytes <= USABLE * GIB) == fits


def test_a_model_with_other_layers_is_planned_but_not_refused(tmp_path: Path) -> None:
    state = _state(tmp_path, gpu_memory=TOO_SMALL)
    (tmp_path / "long" / "config.json").write_text('{"model_type": "mamba"}')
    found = _planned(state)
    assert found.approximate and not found.fits and not found.impossible
    check_training_memory(state)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 1024}
LONGROPE |= {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}


@pytest.mark.parametrize(
    ("model", "tiles", "approximate"),
    [
        (None, TILE_TOKENS, False),
        ({"model_type": "gpt_oss"}, None, False),  # its experts also return their routing
        # A small model has smaller heads, which do not fit these factors: it cannot be built, so nothing is refused.
        ({"model_type": "llama", "rope_parameters": LONGROPE}, TILE_TOKENS, True),
    ],
    ids=["tiled", "not tiled", "not known"],
)
def test_tiles_are_planned_as_the_training_finds_them(
    model: dict[str, Any] | None, tiles: int | None, approximate: bool, tmp_path: Path
) -> None:
    state = _state(tmp_path, gpu_memory=TOO_SMALL)
    if model is not None:
        (tmp_path / "long" / "config.json").write_text(json.dumps(model))
    found = _planned(state)
    assert (found.levers.tile_tokens, found.approximate, found.impossible) == (tiles, approximate, not approximate)


def test_the_page_says_what_fits() -> None:
    """Two rows of the table of docs/how-to/long-training.md, computed again."""
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        vocab_size=128_256,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    sizes, page = ModelSizes.known(config), (ROOT / "docs/how-to/long-training.md").read_text(encoding="utf-8")
    adapters = TrainingConfig(gradient_checkpointing=True, lora=LoraConfig())
    whole = TrainingConfig(gradient_checkpointing=True)
    for label, training, zero in (
        ("LoRA", adapters, "zero2"),
        ("all weights, `zero3_offload`", whole, "zero3_offload"),
    ):
        deepspeed = deepspeed_config(zero, folder=Path())
        fits = [longest_pass(training, sizes, deepspeed=deepspeed, gpu_bytes=card * GIB) for card in CARDS]
        assert f"| Llama-3.1-8B | {label} | {' | '.join(f'{tokens // 1024:,}' for tokens in fits)} |" in page
