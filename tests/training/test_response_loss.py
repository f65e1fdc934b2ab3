"""The chunked loss against cross entropy over all logits: value, gradients, memory, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.response_loss import LogitChange, summed_nll, use_chunked_loss
from tests.kit.error_codes import refused
from tests.training.builders import gradients, largest_difference, make_model, make_row

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("qwen2", {}),
    ("phi", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "tie_word_embeddings": False}),  # a bias in its output layer
    ("gemma2", {"final_logit_softcapping": 2.0}),
    ("granite", {}),
    ("cohere", {}),
]


def batch(rows: int = 2) -> dict[str, Tensor]:
    """Rows of one length with labels here and there."""
    both = [make_row((37,), skips=False, seed=seed) for seed in range(rows)]
    return {name: torch.cat([row[name] for row in both]) for name in ("input_ids", "labels")}


@pytest.mark.parametrize(("kind", "changes"), KINDS)
def test_value_and_gradients_are_those_of_the_model_s_own_loss(kind: str, changes: dict[str, Any]) -> None:
    own, ours = make_model(kind, **changes), make_model(kind, **changes)
    use_chunked_loss(ours, chunk=7)
    inputs = batch()
    wanted = own(**inputs, num_items_in_batch=torch.tensor(60)).loss
    loss = ours(**inputs, num_items_in_batch=torch.tensor(60)).loss
    # transformers brings the logits to float32 before its loss.
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    wanted.backward()
    loss.backward()
    assert largest_difference(gradients(ours), gradients(own)) <= 1e-5


def by_hand(
    states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, weights: Tensor, change: LogitChange
) -> Tensor:
    """The definition, row by row."""
    total = states.new_zeros(())
    for state, target, factor in zip(states, targets, weights, strict=True):
        logits = change.scale * (weight @ state + bias)
        if change.softcap is not None:
            logits = change.softcap * torch.tanh(logits / change.softcap)
        total = total - factor * torch.log(torch.exp(logits[target]) / torch.exp(logits).sum())
    return total


@pytest.mark.parametrize("chunk", [1, 4, 5, 11, 64, None])
@pytest.mark.parametrize("change", [LogitChange(), LogitChange(scale=0.3), LogitChange(scale=1.7, softcap=2.0)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_sum_is_that_of_the_definition(
    chunk: int | None, change: LogitChange, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((11, 6), (23, 6), (23,))
    wanted_of = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    ours_of = [tensor.detach().to(dtype).requires_grad_() for tensor in wanted_of]
    targets = torch.randint(23, (11,), generator=generator)
    weights = torch.rand(11, generator=generator, dtype=torch.float64)
    wanted = by_hand(wanted_of[0], wanted_of[1], wanted_of[2], targets, weights, change)
    loss = summed_nll(ours_of[0], ours_of[1], ours_of[2], targets, weights, change=change, chunk=chunk)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(wanted.item(), rel=tolerance)
    (wanted * 0.37).backward()
    (loss * 0.37).backward()
    for one, other in zip(ours_of, wanted_of, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad.double(), other.grad, rtol=10 * tolerance, atol=10 * tolerance)


def test_a_second_backward_pass_is_refused() -> None:
    states, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    loss = summed_nll(states, weight, None, torch.tensor([0, 1, 2, 3]))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("length", [1, 6])
def test_a_row_without_labels_has_loss_0_and_gradients_0_everywhere(length: int) -> None:
    model = make_model("llama")
    use_chunked_loss(model)
    ids = torch.zeros((1, length), dtype=torch.int64)
    loss = model(input_ids=ids, labels=torch.full_like(ids, IGNORED), num_items_in_batch=50).loss
    assert loss.item() == 0
    loss.backward()
    found = gradients(model)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    assert all((gradient == 0).all() for gradient in found.values())


def test_without_count_it_is_the_mean_and_without_labels_the_model_is_what_it_was() -> None:
    model = make_model("llama")
    inputs = batch(rows=1)
    before = model(**inputs)
    use_chunked_loss(model)
    assert model(**inputs).loss.item() == pytest.approx(before.loss.item(), rel=1e-6)
    assert torch.equal(model(input_ids=inputs["input_ids"]).logits, before.logits)
    with torch.no_grad():
        assert model(**inputs).loss.item() == pytest.approx(before.loss.item(), rel=1e-6)


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    model = make_model("llama")
    model.get_parameter("lm_head.weight").requires_grad_(False)
    use_chunked_loss(model)
    model(**batch()).loss.backward()
    assert "lm_head.weight" not in gradients(model)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_sums_in_float32(half: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    states, weight = (torch.randn(shape, generator=generator) for shape in ((300, 8), (50, 8)))
    targets = torch.randint(50, (300,), generator=generator)
    found = []
    for dtype in (torch.float32, half):
        inputs = [tensor.to(half).to(dtype).requires_grad_() for tensor in (states, weight)]
        loss = summed_nll(inputs[0], inputs[1], None, targets, chunk=3)
        assert loss.dtype == torch.float32
        (loss * 1e-3).backward()
        found.append((loss.item(), [tensor.grad.float() for tensor in inputs if tensor.grad is not None]))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-2)
    for one, other in zip(found[1][1], found[0][1], strict=True):
        assert float((one - other).norm() / other.norm()) <= 2e-2


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bert", {"is_decoder": True}, "in a way not known here"),
        ("mixtral", {"output_router_logits": True}, "output_router_logits adds a term"),
    ],
)
def test_a_loss_of_another_kind_is_refused_and_the_model_left_as_it_was(
    kind: str, changes: dict[str, Any], reason: str
) -> None:
    model = make_model(kind, dtype=torch.float32, **changes).eval()
    inputs = batch()
    before = model(**inputs).loss
    with refused("training.architecture", reason):
        use_chunked_loss(model)
    assert torch.equal(model(**inputs).loss, before)


def test_an_output_layer_that_was_exchanged_is_refused() -> None:
    model = make_model("llama")
    use_chunked_loss(model)
    model.set_output_embeddings(torch.nn.Linear(64, 400, bias=False, dtype=torch.float64))
    with refused("training.architecture"):
        model(**batch())


_PEAK = """
import resource, sys, torch
from gateau_dagster.training.response_loss import summed_nll
tokens, vocabulary, hidden = 16_384, 32_000, 64
states = torch.randn(tokens, hidden, requires_grad=True)
weight = torch.randn(vocabulary, hidden, requires_grad=True)
targets = torch.randint(vocabulary, (tokens,))
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "chunked":
    loss = summed_nll(states, weight, None, targets)
else:
    loss = torch.nn.functional.cross_entropy((states @ weight.t()).float(), targets, reduction="sum")
(loss / tokens).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
"""


@pytest.mark.long
def test_it_needs_an_eighth_of_the_memory_at_16k_tokens_and_32k_vocabulary() -> None:
    peaks = {}
    for way in ("plain", "chunked"):
        command = [sys.executable, "-c", _PEAK, way]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        peaks[way] = int(run.stdout) / 1024
    assert peaks["plain"] > 3000  # MB: the logits, their softmax and its gradient
    assert peaks["chunked"] <= peaks["plain"] / 8
