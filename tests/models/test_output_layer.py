"""The split at the output layer: the model's own logits, and the model left as it was."""

import dataclasses
from typing import Any

import pytest
import torch

from gateau_dagster.errors import GateauError
from gateau_dagster.models.forward import response_states
from gateau_dagster.models.output_layer import head
from gateau_dagster.models.prompt import build_prompt
from tests.scoring.builders import loaded_model, samples, tokenizer

_KINDS = ["llama", "gpt2", "gemma2", "gemma3_text", "granite", "cohere", "mixtral", "gpt_oss", "bloom", "mpt", "mamba"]


@pytest.mark.parametrize("kind", _KINDS)
def test_head_gives_the_models_own_logits(kind: str) -> None:
    # Gemma caps its logits, Granite and Cohere scale them: a bare lm_head would be wrong for these.
    loaded = loaded_model(kind)
    prompt = build_prompt(tokenizer(), samples()[0], max_length=150)
    start, stop = prompt.response_span
    want = loaded.model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0, start - 1 : stop - 1]
    got = head(loaded, response_states(loaded, [prompt]))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(loaded.model.base_model)


def test_cap_and_scale_are_not_lost() -> None:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("gemma2", {"final_logit_softcapping": 0.5}),
        ("granite", {"logits_scaling": 9.0}),
    ]
    for kind, change in changes:
        plain, changed = loaded_model(kind), loaded_model(kind, **change)
        prompt = build_prompt(tokenizer(), samples()[2], max_length=150)
        states = response_states(plain, [prompt])
        assert not torch.allclose(head(plain, states), head(changed, states))


def test_forward_of_an_offloaded_backbone_is_put_back() -> None:
    loaded = loaded_model("llama")
    backbone: Any = loaded.model.base_model
    hooked = backbone.forward
    backbone.forward = hooked  # as accelerate's hooks do
    head(loaded, torch.zeros(3, 64))
    assert vars(backbone)["forward"] is hooked


def test_model_that_does_not_call_its_backbone_is_refused() -> None:
    loaded = loaded_model("llama")
    body: Any = loaded.model.base_model
    output = type("Output", (), {"logits": torch.zeros(1, 3, 400)})()
    loaded.model.forward = lambda **_: output  # pyright: ignore
    with pytest.raises(GateauError, match="does not keep its output layer apart"):
        head(loaded, torch.zeros(3, 64))
    with pytest.raises(GateauError, match="does not keep its output layer apart"):
        head(dataclasses.replace(loaded, model=body), torch.zeros(3, 64))
