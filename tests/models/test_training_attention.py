"""Attention within documents against eager attention with an explicit mask: logits and gradients."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from gateau_dagster.models import attention_kernels
from gateau_dagster.models.training_attention import NAME, attend_within_documents
from gateau_dagster.training.response_loss import use_chunked_loss
from tests.kit.error_codes import refused
from tests.training.builders import (
    KINDS,
    LENGTHS,
    Outcome,
    check_row,
    document_numbers,
    documents,
    expected,
    explicit_mask,
    gradients,
    largest_difference,
    make_model,
    make_row,
    own_mask,
    plain_loss,
)


@pytest.mark.parametrize(("lengths", "skips"), [(LENGTHS, False), (LENGTHS, True), ((63,), True)])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_an_explicit_mask(kind: str, lengths: tuple[int, ...], skips: bool) -> None:
    row = make_row(lengths, skips=skips)
    model = make_model(kind, **KINDS[kind])
    attend_within_documents(model)
    check_row(model, row, expected(kind, row, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_one_document_at_a_time_gives_the_same_as_all_in_one_row(kind: str) -> None:
    row = make_row(skips=True)
    model = make_model(kind, **KINDS[kind])
    attend_within_documents(model)
    use_chunked_loss(model)
    loss = model(**row, num_items_in_batch=50).loss
    loss.backward()
    packed = gradients(model)
    losses = []
    for document in documents(row):
        length = document["input_ids"].shape[1]
        borders = torch.tensor([0, length], dtype=torch.int32)
        part = model(**document, cu_seq_lens_q=borders, num_items_in_batch=50).loss
        part.backward()
        losses.append(part.item())
    assert loss.item() == pytest.approx(sum(losses), rel=1e-7)
    assert largest_difference(packed, gradients(model)) <= 1e-6


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(kind: str, reentrant: bool) -> None:
    row = make_row(skips=True)
    found = []
    for checkpointing in (False, True):
        model = make_model(kind, **KINDS[kind])
        attend_within_documents(model)
        use_chunked_loss(model)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(**row, num_items_in_batch=9).loss.backward()
        found.append(gradients(model))
    assert largest_difference(found[1], found[0]) <= 1e-12


def test_bfloat16_autocast_stays_near_float32() -> None:
    row = make_row(skips=True)
    losses = {}
    for autocast in (False, True):
        model = make_model("llama", dtype=torch.float32)
        attend_within_documents(model)
        use_chunked_loss(model)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            losses[autocast] = model(**row, num_items_in_batch=50).loss
        losses[autocast].backward()
        assert all(torch.isfinite(gradient).all() for gradient in gradients(model).values())
    assert losses[True].dtype == torch.float32
    assert losses[True].item() == pytest.approx(losses[False].item(), rel=0.02)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("mamba", {}, "does not use transformers' attention interface"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "sees the one before it"),
        ("nemotron", {}, "does not tell its layers where documents begin"),
    ],
)
def test_a_model_that_mixes_documents_is_refused_and_left_as_it_was(
    kind: str, changes: dict[str, Any], reason: str
) -> None:
    model = make_model(kind, dtype=torch.float32, **changes)
    ids = torch.arange(9)[None]
    before = model.eval()(input_ids=ids).logits
    with refused("training.architecture", reason):
        attend_within_documents(model)
    assert torch.equal(model(input_ids=ids).logits, before)


def test_attention_dropout_is_refused() -> None:
    model = make_model("llama", attention_dropout=0.1)
    attend_within_documents(model)
    with refused("training.attention_dropout", r"0\.1.*config\.json"):
        model(**make_row(skips=False))


@pytest.mark.parametrize("borders", [[0, 5], [0, 5, 5, sum(LENGTHS)], [1, sum(LENGTHS)], None])
def test_borders_that_do_not_make_up_the_row_are_refused(borders: list[int] | None) -> None:
    model = make_model("llama")
    attend_within_documents(model)
    row = make_row(skips=False)
    row["cu_seq_lens_q"] = None if borders is None else torch.tensor(borders, dtype=torch.int32)
    with pytest.raises(ValueError, match="documents"):
        model(**row)


def test_it_is_set_once_and_not_written_into_the_model_s_files(tmp_path: Any) -> None:
    model = make_model("llama", dtype=torch.float32)
    attend_within_documents(model)
    attend_within_documents(model)
    assert len(model.base_model._forward_pre_hooks) == 1
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


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
    """Put a twin in the kernel's place, which runs on CUDA in half precision only: plain loops over the documents."""
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


@pytest.mark.cuda
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
