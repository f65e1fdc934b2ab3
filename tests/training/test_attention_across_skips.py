"""A document's tokens see one another across skipped positions, by whichever attention, packed and alone."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from gateau_dagster.models import attention_kernels
from gateau_dagster.models.training_attention import attend_within_documents
from tests.training.packed_rows import (
    KINDS,
    LENGTHS,
    Outcome,
    check_row,
    document_numbers,
    expected,
    explicit_mask,
    gradients,
    make_model,
    make_row,
    own_mask,
    plain_loss,
)

ROWS = (LENGTHS, (63,))


@pytest.mark.parametrize("own", ["eager", "sdpa"])
@pytest.mark.parametrize("lengths", ROWS)
def test_stock_attention_cuts_at_a_skip_and_ours_does_not(own: str, lengths: tuple[int, ...]) -> None:
    row = make_row(lengths, skips=True)
    wanted = expected("llama", row)
    model = make_model("llama")
    model.set_attn_implementation(own)
    cut = model(input_ids=row["input_ids"], position_ids=row["position_ids"], use_cache=False).logits[0]
    assert not torch.allclose(cut, wanted[0], atol=1e-2)
    attend_within_documents(model)
    check_row(model, row, wanted)


@pytest.mark.parametrize("lengths", ROWS)
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_the_variable_length_kernel_is_told_the_batch_s_own_borders(
    kind: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it runs (CUDA, half precision), a twin of it in its place: plain loops over the documents."""
    row = make_row(lengths, skips=True)
    wanted = expected(kind, row, **KINDS[kind])
    model = make_model(kind, **KINDS[kind])
    attend_within_documents(model)
    calls = []

    def twin(query: Any, key: Any, value: Any, starts: Any, _: Any, longest: int, *__: Any, **options: Any) -> Any:
        calls.append(starts)
        assert longest == max(lengths)
        groups = query.shape[1] // key.shape[1]
        outputs = []
        for begin, end in pairwise(starts.tolist()):
            numbers = torch.zeros(end - begin, dtype=torch.int64)
            before, _ = options["window_size"]
            mask = explicit_mask(numbers, window=None if before < 0 else before + 1)[0]
            q = query[begin:end].transpose(0, 1)
            k, v = (tensor[begin:end].transpose(0, 1).repeat_interleave(groups, 0) for tensor in (key, value))
            outputs.append(((q @ k.transpose(1, 2) * options["scale"] + mask).softmax(-1) @ v).transpose(0, 1))
        return torch.cat(outputs)

    monkeypatch.setattr(attention_kernels, "_flash", lambda query: True)
    monkeypatch.setattr(varlen, "varlen_attn", twin)
    check_row(model, row, wanted)
    # A document that is alone and sees all before it is a plain causal sequence: sdpa has it.
    layers = 0 if kind == "llama" and len(lengths) == 1 else 2
    assert len(calls) == layers and all(starts is row["cu_seq_lens_q"] for starts in calls)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("lengths", ROWS)
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_the_variable_length_kernel_itself(
    kind: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 autocast on a GPU errs no more with the kernel than with an explicit mask and eager attention."""
    row = make_row(lengths, skips=True)
    settings = KINDS[kind] | {"dtype": torch.float32}
    wanted = expected(kind, row, **settings)
    calls = []

    def counted(*arguments: Any, real: Callable[..., Any] = varlen.varlen_attn, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    eager, ours = (make_model(kind, **settings).cuda() for _ in range(2))  # pyright: ignore[reportCallIssue]
    eager.set_attn_implementation("eager")
    mask = own_mask(eager, document_numbers(row)).cuda()
    attend_within_documents(ours)
    calls.clear()  # those that tried the model out
    on_gpu = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in row.items()}
    by_mask = {"input_ids": on_gpu["input_ids"], "position_ids": on_gpu["position_ids"], "attention_mask": mask}
    errors = [
        _errors(_autocast(model, on_gpu["labels"], inputs), wanted)
        for model, inputs in ((eager, by_mask), (ours, {name: on_gpu[name] for name in on_gpu if name != "labels"}))
    ]
    assert len(calls) == (0 if kind == "llama" and len(lengths) == 1 else 2)
    for with_mask, with_kernel in zip(*errors, strict=True):
        assert with_kernel <= 2 * with_mask < 0.1


def _autocast(model: PreTrainedModel, labels: torch.Tensor, inputs: dict[str, Any]) -> Outcome:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(**inputs, use_cache=False).logits[0]
    plain_loss(logits.float(), labels[0]).backward()
    return logits.detach(), gradients(model)


def _errors(found: Outcome, wanted: Outcome) -> tuple[float, float]:
    """Lengths of the differences of all logits and of all gradients, as parts of the wanted ones' lengths."""
    names = sorted(wanted[1])
    vectors = [
        [logits.flatten().double().cpu(), torch.cat([found_gradients[name].flatten().double().cpu() for name in names])]
        for logits, found_gradients in (found, wanted)
    ]
    one, two = (float((a - b).norm() / b.norm()) for a, b in zip(*vectors, strict=True))
    return one, two
