"""Attention within documents against eager attention with an explicit mask: logits and gradients."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from transformers import PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.scoring import attention_kernels
from gateau_dagster.training.document_attention import NAME, attend_within_documents
from gateau_dagster.training.response_loss import use_chunked_loss

from .packed_rows import (
    LENGTHS,
    WINDOW,
    document_numbers,
    documents,
    explicit_mask,
    gradients,
    largest_difference,
    make_model,
    make_row,
)

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW},  # soft caps on scores and logits
    "gemma3_text": {"sliding_window": WINDOW},  # windows in some layers
    "gpt_oss": {"sliding_window": WINDOW, "dtype": torch.float32},  # sinks; experts have no float64 kernel
    "mixtral": {"sliding_window": None, "num_experts_per_tok": 2, "dtype": torch.float32},  # router with gradients
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},  # learned positions
}


def own_mask(model: PreTrainedModel, numbers: torch.Tensor) -> Any:
    """An explicit mask for eager attention, one for each kind of layer where there are several."""
    config: Any = model.config
    dtype = model.dtype
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return explicit_mask(numbers, window=window, dtype=dtype)
    masks = {
        "full_attention": explicit_mask(numbers, window=None, dtype=dtype),
        "sliding_attention": explicit_mask(numbers, window=window, dtype=dtype),
    }
    return {kind: masks[kind] for kind in kinds} if len(set(kinds)) > 1 else masks[kinds[0]]


def expected(kind: str, row: dict[str, Any], **changes: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits [T, V] and gradients of the mean log-probability of the labels, by eager attention and a full mask."""
    model = make_model(kind, **changes)
    model.set_attn_implementation("eager")
    mask = own_mask(model, document_numbers(row))
    logits = model(
        input_ids=row["input_ids"], position_ids=row["position_ids"], attention_mask=mask, use_cache=False
    ).logits[0]
    plain_loss(logits, row["labels"][0]).backward()
    return logits.detach(), gradients(model)


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:-1], labels[1:])


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_an_explicit_mask(kind: str, skips: bool) -> None:
    row = make_row(skips=skips)
    wanted, wanted_gradients = expected(kind, row, **KINDS[kind])
    model = make_model(kind, **KINDS[kind])
    attend_within_documents(model)
    packed = {name: value for name, value in row.items() if name != "labels"}
    logits = model(**packed).logits[0]
    # Norms and rotary embeddings compute parts in float32 in a float64 model.
    assert torch.allclose(logits, wanted, atol=2e-5, rtol=2e-5)
    plain_loss(logits, row["labels"][0]).backward()
    assert largest_difference(gradients(model), wanted_gradients) <= 2e-5


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


def test_stock_attention_cuts_at_a_skip_and_ours_does_not() -> None:
    row = make_row((30,), skips=True)
    wanted, _ = expected("llama", row)
    stock = make_model("llama")
    stock.set_attn_implementation("sdpa")
    cut = stock(input_ids=row["input_ids"], position_ids=row["position_ids"], use_cache=False).logits[0]
    assert not torch.allclose(cut, wanted, atol=1e-2)


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


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_the_variable_length_kernel_is_told_the_batch_s_own_borders(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it runs (CUDA, half precision), a twin of it in its place: plain loops over the documents."""
    row = make_row(skips=True)
    wanted, _ = expected(kind, row, **KINDS[kind])
    model = make_model(kind, **KINDS[kind])
    attend_within_documents(model)
    calls = []

    def twin(query: Any, key: Any, value: Any, starts: Any, _: Any, longest: int, *__: Any, **options: Any) -> Any:
        calls.append(starts)
        assert longest == max(LENGTHS)
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
    packed = {name: value for name, value in row.items() if name != "labels"}
    assert torch.allclose(model(**packed).logits[0], wanted, atol=2e-5, rtol=2e-5)
    assert len(calls) == 2 and all(starts is row["cu_seq_lens_q"] for starts in calls)


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
    with pytest.raises(GateauError, match=reason):
        attend_within_documents(model)
    assert torch.equal(model(input_ids=ids).logits, before)


def test_attention_dropout_is_refused() -> None:
    model = make_model("llama", attention_dropout=0.1)
    attend_within_documents(model)
    with pytest.raises(GateauError, match=r"drops 0\.1 of its attention weights.*config\.json"):
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
