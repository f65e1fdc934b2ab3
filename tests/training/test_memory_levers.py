"""Test the levers that save memory: they change no loss and no gradient, and are chosen from arithmetic."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from gateau_dagster.config.training import LoraConfig, TrainingConfig
from gateau_dagster.training.memory_levers import (
    has_offloaded_checkpoints,
    offload_checkpoints,
    tile_feed_forward,
    tile_tokens,
    why_untiled,
)
from gateau_dagster.training.memory_plan import Levers, ModelSizes, choose_levers
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.model import with_adapters
from gateau_dagster.training.response_loss import use_chunked_loss
from gateau_dagster.training.train import training_arguments
from tests.kit.error_codes import refused
from tests.training.builders import (
    KINDS,
    agree,
    finish,
    gradients,
    largest_difference,
    log_of,
    make_model,
    make_row,
    make_spec,
    result_of,
    run,
    start,
    wait_for_step,
    weights_differ,
)

LEVERS: dict[str, Any] = {"offload_activations": "on", "tiled_mlp": 7}
LEVERS |= {"gradient_checkpointing": True, "every_n_layers": 2}
PACKED: dict[str, Any] = {"batching": "packed", "pack_length": 90}


def checkpointed(model: PreTrainedModel, *, offload: bool) -> None:
    model.activation_checkpointing_enable({"use_reentrant": False})
    if offload:
        offload_checkpoints(model)
    assert has_offloaded_checkpoints(model) == offload


def outcome(
    prepare: Callable[[PreTrainedModel], torch.nn.Module | None],
    *,
    kind: str = "llama",
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
    **changes: Any,
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of a packed row and every gradient, after `prepare` has changed the model."""
    model = make_model(kind, dtype=dtype, **changes)
    use_chunked_loss(model)
    run_model = prepare(model) or model
    row = {name: value for name, value in make_row(skips=False).items() if name in ("input_ids", "labels")}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = run_model(**row).loss
    loss.backward()
    return float(loss.detach()), gradients(run_model)  # pyright: ignore[reportArgumentType]


def adapted(model: PreTrainedModel) -> torch.nn.Module:
    trained = with_adapters(model, LoraConfig(rank=4), seed=1)
    torch.manual_seed(2)
    for name, weight in trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return trained


def tile(model: PreTrainedModel, tokens: int = 7, **options: Any) -> None:
    assert why_untiled(model) is None
    tile_feed_forward(model, tokens=tokens, **options)
    assert tile_tokens(model) == tokens


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("gpt_oss", "mixtral")])
def test_tiled_layers_change_no_loss_and_no_gradient(kind: str) -> None:
    changes = {name: value for name, value in KINDS[kind].items() if name != "dtype"}
    loss, by = outcome(lambda model: None, kind=kind, **changes)
    tiled_loss, tiled_by = outcome(tile, kind=kind, **changes)
    assert tiled_loss == pytest.approx(loss, abs=1e-6)
    assert largest_difference(tiled_by, by) <= 1e-6


@pytest.mark.parametrize("tokens", [1, 40, 149, 1000])
@pytest.mark.parametrize("longest", [None, 1200])
def test_a_row_may_have_any_number_of_tiles(tokens: int, longest: int | None) -> None:
    """With `longest` every row has as many tiles as the longest one, some of them without a token."""
    loss, by = outcome(lambda model: None, dtype=torch.float64)
    tiled_loss, tiled_by = outcome(lambda model: tile(model, tokens, longest=longest), dtype=torch.float64)
    assert tiled_loss == pytest.approx(loss, abs=1e-9)
    assert largest_difference(tiled_by, by) <= 1e-9


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(("offload", "tokens"), [(True, None), (False, 9), (True, 9)])
def test_levers_together(lora: bool, offload: bool, tokens: int | None) -> None:
    def plain(model: PreTrainedModel) -> torch.nn.Module:
        return adapted(model) if lora else model

    def prepared(model: PreTrainedModel) -> torch.nn.Module:
        trained = plain(model)
        checkpointed(model, offload=offload)
        if tokens is not None:
            tile(model, tokens)
        return trained

    loss, by = outcome(plain)
    levers_loss, levers_by = outcome(prepared)
    assert any("lora_" in name for name in by) == lora
    assert levers_loss == pytest.approx(loss, abs=1e-6)
    assert largest_difference(levers_by, by) <= 1e-6


def offloaded_and_tiled(model: PreTrainedModel) -> None:
    checkpointed(model, offload=True)
    tile(model)


@pytest.mark.parametrize("prepare", [partial(checkpointed, offload=True), tile, offloaded_and_tiled])
def test_bfloat16_drifts_no_further_with_levers(prepare: Callable[[PreTrainedModel], None]) -> None:
    """Compare distances of bfloat16's gradients from float32's, over all parameters and relative to their length."""
    _, exact = outcome(lambda model: None)
    drifts = []
    for prepared in (lambda model: None, prepare):
        _, by = outcome(prepared, autocast=True)
        total = sum(float((by[name] - exact[name]).square().sum()) for name in exact)
        drifts.append((total / sum(float(each.square().sum()) for each in exact.values())) ** 0.5)
    plain, with_levers = drifts
    assert 1e-4 < with_levers <= plain * 1.02 < 0.1, (with_levers, plain)


def test_layers_that_cannot_be_tiled_stay_as_they_are() -> None:
    model = make_model("gpt2", dtype=torch.float32)
    reason = why_untiled(model)
    assert reason is not None and "dropout" in reason and tile_tokens(model) is None
    shifting = make_model("llama", dtype=torch.float32)
    layer = shifting.model.layers[0].mlp
    plain = layer.forward
    layer.forward = lambda states: plain(states).cumsum(1)
    own = layer.forward
    reason = why_untiled(shifting)
    assert reason is not None and "otherwise" in reason
    assert layer.forward is own and "forward" not in vars(shifting.model.layers[1].mlp)


@pytest.mark.parametrize("changes", [{}, PACKED, {"lora": {"rank": 4}}])
def test_a_training_with_levers_is_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = make_spec(tmp_path, name="plain", max_steps=3, **changes)
    levers = make_spec(tmp_path, name="levers", max_steps=3, **LEVERS, **changes)
    losses, with_levers = ([step["loss"] for step in run(spec)] for spec in (plain, levers))
    assert with_levers == pytest.approx(losses, abs=1e-6)
    used = result_of(levers)["settings"]["model"]
    assert (used["offloaded_activations"], used["mlp_tile_tokens"], used["checkpointed_layers"]) == (True, 7, 1)
    used = result_of(plain)["settings"]["model"]
    assert (used["offloaded_activations"], used["mlp_tile_tokens"], used["checkpointed_layers"]) == (False, None, 0)
    card = (levers.output / "README.md").read_text()
    assert all(f"| {key} |" in card for key in ("offload_activations | on", "tiled_mlp | 7", "every_n_layers | 2"))
    assert "tiled_mlp" not in (plain.output / "README.md").read_text()


def test_a_stopped_training_goes_on_with_other_levers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 8, "save_steps": 3, "gradient_checkpointing": True}
    whole = make_spec(tmp_path, name="whole", **settings)
    run(whole)
    run(make_spec(tmp_path, name="stopped", **settings | LEVERS), stop_at=5)
    spec = make_spec(tmp_path, name="stopped", **settings)
    assert [step["step"] for step in run(spec)] == [4, 5, 6, 7, 8]
    assert weights_differ(whole, spec) <= 1e-6


@pytest.mark.long
@pytest.mark.timeout(1800)  # a training starts twelve times
@pytest.mark.parametrize("batching", [{}, PACKED], ids=["padded", "packed"])
def test_killed_ten_times_and_resumed_with_other_levers(batching: dict[str, Any], tmp_path: Path) -> None:
    """Kill a training at ten random steps, and resume it with other levers, or none, each time.

    Tiles round differently. Measured with packed rows: 2e-6 of a loss, and 5e-6 of a weight that moved by 0.4.
    """
    settings: dict[str, Any] = {"max_steps": 300, "save_steps": 5, "gradient_checkpointing": True, **batching}
    undisturbed = make_spec(tmp_path, name="undisturbed", **settings)
    run(undisturbed)
    levers = [LEVERS, {}, {"offload_activations": "on"}, {"tiled_mlp": 3}]
    random, before = Random(33), 0
    for each in range(10):
        spec = make_spec(tmp_path, name="killed", **settings | levers[each % len(levers)])
        process = start(spec, tmp_path / "spec.json")
        wait_for_step(spec, process, before + random.randint(6, 25))
        process.kill()
        process.communicate(timeout=300)
        assert process.returncode == -SIGKILL and not spec.output.exists()
        before = max(metrics["step"] for metrics in read_log(spec.log))
    assert 60 <= before < 300, "every part made steps, and none ended the training"
    spec = make_spec(tmp_path, name="killed", **settings)
    finish(start(spec, tmp_path / "spec.json"))
    assert [metrics["step"] for metrics in log_of(spec)] == list(range(1, 301))
    agree(spec, undisturbed, loss=1e-5, weights=2e-5)


def test_a_model_without_tiles_is_refused_only_if_they_are_set(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=1, tiled_mlp=3)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    with refused("training.architecture", r"training\.tiled_mlp: GPT2LMHeadModel .* dropout"):
        run(spec)


def test_settings_that_cannot_apply_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"offload_activations: on .* gradient_checkpointing is false"):
        TrainingConfig(offload_activations="on")
    with pytest.raises(ValidationError, match=r"every_n_layers: 2 .* gradient_checkpointing is false"):
        TrainingConfig(every_n_layers=2)
    with pytest.raises(ValidationError, match=r"tiled_mlp: 64 .* lora\.dropout: 0\.1"):
        TrainingConfig(tiled_mlp=64, lora=LoraConfig(dropout=0.1))
    read = TrainingConfig.model_validate({"gradient_checkpointing": True, "offload_activations": True})
    assert read.offload_activations == "on"
    read = TrainingConfig.model_validate({"offload_activations": False, "tiled_mlp": False})
    assert (read.offload_activations, read.tiled_mlp) == ("off", "off")
    assert not {"every_n_layers", "offload_activations", "tiled_mlp"} & set(TrainingConfig().model_dump())
    assert training_arguments(make_spec(tmp_path), steps=1).activation_checkpointing_kwargs is None


ZERO = {"zero_optimization": {"stage": 2}}
GIB = 2**30


@cache
def eight_billion() -> ModelSizes:
    """Qwen3-8B, without weights."""
    config = Qwen3Config(
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        vocab_size=151_936,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    )
    with torch.device("meta"):
        return ModelSizes.of(Qwen3ForCausalLM(config))


@pytest.mark.parametrize(
    ("tokens", "levers"),
    [
        (8_192, Levers()),
        (98_304, Levers()),
        (131_072, Levers(tile_tokens=32_768)),
        (196_608, Levers(offload=True)),
        (262_144, Levers(offload=True, tile_tokens=32_768)),
    ],
)
def test_auto_takes_the_cheapest_levers_that_fit(tokens: int, levers: Levers) -> None:
    training, sizes = TrainingConfig(gradient_checkpointing=True, lora=LoraConfig()), eight_billion()
    choose = partial(choose_levers, sizes=sizes, tokens=tokens, deepspeed=ZERO)
    assert choose(training, device_bytes=80 * GIB) == levers
    assert choose(training, device_bytes=None) == Levers()
    off = training.model_copy(update={"offload_activations": "off", "tiled_mlp": "off"})
    assert choose(off, device_bytes=80 * GIB) == Levers()
    on = training.model_copy(update={"offload_activations": "on", "tiled_mlp": 512})
    assert choose(on, device_bytes=80 * GIB) == Levers(offload=True, tile_tokens=512)
