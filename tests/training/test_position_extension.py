"""Inverse frequencies of models that are really built, saved and loaded again, against plain formulas."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.config.models import PositionExtension
from gateau_dagster.errors import GateauError
from gateau_dagster.training.position_extension import extend_positions
from tests.kit.error_codes import refused
from tests.kit.tiny_models import model_config
from tests.models.test_flops import GEMMA4

WINDOW, TARGET = 2048, 12_000
KINDS = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3_text", "gemma2", "glm4")
"""Families, with GLM for its rotation of half of each head."""
SECTIONS = {
    "theta": PositionExtension(method="theta", theta=7e5, target_length=TARGET),
    "ntk": PositionExtension(method="ntk", target_length=TARGET),
    "yarn": PositionExtension(method="yarn", target_length=TARGET),
    "linear": PositionExtension(method="linear", target_length=TARGET),
}
CASES = [(kind, method) for kind in KINDS for method in SECTIONS if kind != "phi3" or method in {"theta", "ntk"}]


def plain(base: float, dimensions: int) -> list[float]:
    return [base ** (-2 * i / dimensions) for i in range(dimensions // 2)]


def yarn(base: float, dimensions: int, *, factor: float, window: int) -> list[float]:
    """Peng et al. 2023, section 3.2: by how often dimension i turns within the window.

    32 times and more: as it is; less than once: interpolated. transformers makes the ramp between them linear in i, and
    rounds its ends outwards.
    """

    def turning(times: float) -> float:
        return dimensions * math.log(window / (2 * math.pi * times)) / (2 * math.log(base))

    first = max(math.floor(turning(32)), 0)
    last = min(math.ceil(turning(1)), dimensions - 1)
    frequencies = []
    for i, frequency in enumerate(plain(base, dimensions)):
        interpolated = min(1.0, max(0.0, (i - first) / (last - first)))
        frequencies.append(frequency * (1 - interpolated) + frequency / factor * interpolated)
    return frequencies


def expected(method: str, base: float, dimensions: int) -> list[float]:
    t = TARGET / WINDOW
    if method == "theta":
        return plain(7e5, dimensions)
    if method == "ntk":
        return plain(base * t ** (dimensions / (dimensions - 2)), dimensions)
    if method == "linear":
        return [frequency / t for frequency in plain(base, dimensions)]
    return yarn(base, dimensions, factor=t, window=WINDOW)


def rotary(model: Any) -> dict[str, torch.Tensor]:
    """Name and value of every buffer of frequencies of a model, and of every attention scaling."""
    embedding = model.model.rotary_emb
    values = {key: value for key, value in embedding.named_buffers() if key.endswith("inv_freq")}
    scaling = {key: torch.tensor(value) for key, value in vars(embedding).items() if key.endswith("attention_scaling")}
    return values | scaling


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_the_built_and_the_loaded_model_have_the_formula_s_frequencies(kind: str, method: str, tmp_path: Path) -> None:
    config = model_config(kind)
    untouched = rotary(AutoModelForCausalLM.from_config(copy.deepcopy(config))) if kind == "gemma3_text" else {}
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    base, dimensions = rope["rope_theta"], int(config.head_dim * rope.get("partial_rotary_factor", 1.0))
    extend_positions(config, SECTIONS[method], name=kind)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    assert model.config.max_position_embeddings == TARGET
    built, loaded = rotary(model), rotary(AutoModelForCausalLM.from_pretrained(tmp_path))
    prefix = "full_attention_" if kind == "gemma3_text" else ""
    wanted = torch.tensor(expected(method, base, dimensions), dtype=torch.float64)
    torch.testing.assert_close(built[f"{prefix}inv_freq"].double(), wanted, rtol=2e-6, atol=0)
    scaling = 0.1 * math.log(TARGET / WINDOW) + 1 if method == "yarn" else 1.0
    assert math.isclose(built[f"{prefix}attention_scaling"].item(), scaling, rel_tol=1e-6)
    assert built.keys() == loaded.keys()
    for name in built:
        assert torch.equal(built[name], loaded[name])
        if prefix and not name.startswith(prefix):
            assert torch.equal(built[name], untouched[name]), "sliding layers never look past their window"


def test_a_base_alone_leaves_the_window() -> None:
    config = model_config("llama")
    extend_positions(config, PositionExtension(method="theta", theta=1e6), name="llama")
    assert (config.rope_parameters["rope_theta"], config.max_position_embeddings) == (1e6, WINDOW)


def test_scaling_goes_on_by_the_same_method() -> None:
    """What was scaled by 4 and is scaled by 2 has the frequencies of a model that is scaled by 8 at once."""
    for method in ("linear", "yarn", "ntk"):
        twice, once = model_config("llama"), model_config("llama")
        for config, target in ((twice, 4 * WINDOW), (twice, 8 * WINDOW), (once, 8 * WINDOW)):
            extend_positions(config, PositionExtension(method=method, target_length=target), name="llama")
        assert twice.max_position_embeddings == once.max_position_embeddings
        stepwise, direct = (rotary(AutoModelForCausalLM.from_config(config)) for config in (twice, once))
        for name in direct:
            torch.testing.assert_close(stepwise[name], direct[name], rtol=2e-6, atol=0)


def test_yarn_counts_from_what_its_factor_reaches_and_derives_its_attention_scaling() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "attention_factor": 3.0}
    config = model_config("qwen2", rope_parameters={**yarn, "original_max_position_embeddings": WINDOW})
    with refused("training.positions_reached", f"reads {4 * WINDOW} positions already"):
        extend_positions(config, PositionExtension(method="yarn", target_length=4 * WINDOW), name="qwen")
    extend_positions(config, PositionExtension(method="yarn", target_length=16 * WINDOW), name="qwen")
    assert config.rope_parameters["factor"] == 16.0
    scaling = rotary(AutoModelForCausalLM.from_config(config))["attention_scaling"].item()
    assert math.isclose(scaling, 0.1 * math.log(16) + 1, rel_tol=1e-6)


ORIGINAL = {"original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= ORIGINAL
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, **FACTORS, **ORIGINAL}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("kind", "rope", "method", "cause", "cure"),
    [
        ("gpt2", None, "ntk", "gpt2 has no rotary embedding", "remove the section"),
        ("mamba", None, "theta", "mamba has no rotary embedding", "remove the section"),
        ("phi3", None, "yarn", "transformers has no yarn scaling for phi3", "use method: ntk or theta"),
        ("phi3", None, "linear", "transformers has no linear scaling for phi3", "use method: ntk or theta"),
        ("llama", LLAMA3, "ntk", "scaled already (rope_type llama3), so ntk", "use method: theta"),
        ("llama", LLAMA3, "yarn", "scaled already (rope_type llama3), so yarn", "use method: theta"),
        ("llama", LINEAR, "yarn", "scaled already (rope_type linear), so yarn", "use method: theta"),
        ("llama", LONGROPE, "theta", "scaled already (rope_type longrope), so theta", "without the extension"),
        ("llama", LONGROPE, "ntk", "scaled already (rope_type longrope), so ntk", "without the extension"),
        ("llama", DYNAMIC, "theta", "scaled already (rope_type dynamic), so theta", "without the extension"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    kind: str, rope: dict[str, Any] | None, method: str, cause: str, cure: str
) -> None:
    config = model_config(kind, **({} if rope is None else {"rope_parameters": copy.deepcopy(rope)}))
    before = config.to_dict()
    with pytest.raises(GateauError) as caught:
        extend_positions(config, SECTIONS[method], name="the model")
    assert cause in str(caught.value) and cure in str(caught.value)
    assert "use method: theta" not in str(caught.value) or method != "theta"
    assert config.to_dict() == before


def test_another_base_goes_under_llama_3_s_scaling() -> None:
    config, built = (
        model_config("llama", rope_parameters=copy.deepcopy(LLAMA3) | {"rope_theta": base}) for base in (5e5, 7e5)
    )
    extend_positions(config, SECTIONS["theta"], name="llama")
    assert config.rope_parameters == built.rope_parameters


def test_a_target_within_the_window_is_refused() -> None:
    config = model_config("llama")
    for method in ("ntk", "yarn", "linear"):
        with refused("training.positions_reached", "2048"):
            extend_positions(config, PositionExtension(method=method, target_length=WINDOW), name="llama")
    assert config.to_dict() == model_config("llama").to_dict()


def test_a_head_of_two_dimensions_has_no_ntk_exponent() -> None:
    config = model_config("llama", head_dim=2)
    with refused("training.positions", "2"):
        extend_positions(config, SECTIONS["ntk"], name="llama")


def test_heads_that_differ_by_layer_rotate_as_those_of_full_attention() -> None:
    with refused("training.positions", "rope_type"):
        extend_positions(model_config("gemma4_text", **GEMMA4), SECTIONS["ntk"], name="gemma")
    plain = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
    config = model_config("gemma4_text", **GEMMA4, rope_parameters=plain)
    own = config.rope_parameters["full_attention"]["rope_theta"]
    extend_positions(config, SECTIONS["ntk"], name="gemma")
    target = SECTIONS["ntk"].target_length
    assert target is not None
    changed = config.rope_parameters["full_attention"]["rope_theta"]
    assert changed == pytest.approx(own * (target / WINDOW) ** (32 / 30))
