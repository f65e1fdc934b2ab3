"""Attention within documents against eager attention with an explicit mask: logits and gradients."""

from typing import Any

import pytest
import torch

from gateau_dagster.models.training_attention import NAME, attend_within_documents
from gateau_dagster.training.response_loss import use_chunked_loss
from tests.error_codes import refused
from tests.training.packed_rows import (
    KINDS,
    LENGTHS,
    check_row,
    documents,
    expected,
    gradients,
    largest_difference,
    make_model,
    make_row,
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
