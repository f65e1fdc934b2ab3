"""The attention function on documents of any lengths against one matrix for each document."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel, masking_utils

from gateau_dagster.models import attention_kernels, packing
from gateau_dagster.models.attention_kernels import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.last_layers import ReadRows
from gateau_dagster.models.mask_pattern import NAME, MaskPattern, UnknownAttentionError, describe_mask
from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.sequence_parallel import parts_differ
from tests.kit.tiny_models import loaded_model, model_config

HEADS, GROUPS, DIM = 6, 2, 16
_LENGTHS = [(300,), (40, 40, 40), (300, 41, 41, 9, 1, 1)]


def _tensors(length: int, width: int = DIM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a model has them: [1, H, T, D], a view of [1, T, H, D]."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, length, HEADS, DIM), (1, length, GROUPS, DIM), (1, length, GROUPS, width)]
    query, key, value = (torch.randn(shape, generator=generator).transpose(1, 2) for shape in shapes)
    return query, key, value


def _twin(query, key, value, lengths, pattern: MaskPattern, softcap=None, sinks=None) -> torch.Tensor:
    """[1, T, H, D] in float64."""
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).tolist()
    positions = [position for length in lengths for position in range(length)]
    pairs = list(zip(documents, positions, strict=True))
    allowed = torch.tensor([[d == e and pattern.sees(q, k) for e, k in pairs] for d, q in pairs])
    outputs = []
    for head in range(HEADS):
        group = head // (HEADS // GROUPS)
        scores = query[0, head].double() @ key[0, group].double().T * 0.2
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = torch.where(allowed, scores.exp(), 0.0)
        total = weights.sum(-1, keepdim=True) + (0.0 if sinks is None else sinks[head].double().exp())
        outputs.append(weights / total @ value[0, group].double())
    return torch.stack(outputs, dim=1)[None]


def _attend(query, key, value, lengths, pattern, **kwargs) -> torch.Tensor:
    with packing.document_attention(loaded_model("llama"), tuple(lengths)):
        output, _ = AttentionInterface()[NAME](None, query, key, value, pattern, scaling=0.2, **kwargs)
    assert output.shape == (1, query.shape[2], HEADS, value.shape[-1])
    return output


@pytest.mark.parametrize(
    "pattern", [MaskPattern(), MaskPattern(window=7), MaskPattern(window=150), MaskPattern(chunk=40)]
)
@pytest.mark.parametrize("lengths", _LENGTHS)
@pytest.mark.parametrize("special", ["plain", "softcap", "sinks"])
def test_each_document_attends_to_itself(lengths: tuple[int, ...], pattern: MaskPattern, special: str) -> None:
    tensors = _tensors(sum(lengths))
    softcap = 1.5 if special == "softcap" else None
    sinks = torch.linspace(-1, 2, HEADS) if special == "sinks" else None
    got = _attend(*tensors, lengths, pattern, softcap=softcap, s_aux=sinks)
    want = _twin(*tensors, lengths, pattern, softcap, sinks)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_one_document_is_one_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    own = attention_kernels.scaled_dot_product_attention

    def watched(query, key, value, **kwargs):
        calls.append(tuple(key.shape))
        assert kwargs["is_causal"] and kwargs["attn_mask"] is None
        return own(query, key, value, **kwargs)

    monkeypatch.setattr(attention_kernels, "scaled_dot_product_attention", watched)
    _attend(*_tensors(300), (300,), MaskPattern(window=300))
    _attend(*_tensors(120), (40, 40, 40), MaskPattern())
    assert calls == [(1, GROUPS, 300, DIM), (3, GROUPS, 40, DIM)]  # keys of grouped heads as they are


@pytest.mark.parametrize(
    ("mask", "length", "kwargs", "reason"),
    [
        (None, 9, {}, "its masks itself"),
        (torch.ones(1, 1, 9, 9), 9, {}, "its masks itself"),
        (MaskPattern(), 9, {"position_bias": torch.zeros(1)}, "attention with position_bias"),
        (MaskPattern(), 8, {}, "more or less than the prompt"),
    ],
)
def test_what_is_not_known_is_refused(mask: object, length: int, kwargs: dict, reason: str) -> None:
    with pytest.raises(UnknownAttentionError, match=reason):
        _attend(*_tensors(9), (length,), mask, **kwargs)


def test_variable_length_kernel_is_called_as_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    # No such kernel on a CPU: a twin stands in for it, with the kernel's own signature.
    import inspect

    from torch.nn.attention import varlen

    signature, seen = inspect.signature(varlen.varlen_attn), []

    def twin(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        query, key, value = (given[name].transpose(0, 1)[None] for name in ("query", "key", "value"))
        lengths = given["cu_seq_q"].diff().tolist()
        left, right = given["window_size"]
        assert right == 0 and given["max_q"] == given["max_k"] == max(lengths) and given["enable_gqa"]
        seen.append(given["scale"])
        return _twin(query, key, value, lengths, MaskPattern(window=None if left == -1 else left + 1))[0]

    monkeypatch.setattr(varlen, "varlen_attn", twin)
    monkeypatch.setattr(attention_kernels, "_flash", lambda _: True)
    lengths = (40, 33, 9)
    for pattern in (MaskPattern(), MaskPattern(window=7), MaskPattern(chunk=20)):
        tensors = _tensors(sum(lengths), 8)
        got = _attend(*tensors, lengths, pattern)
        torch.testing.assert_close(got, _twin(*tensors, lengths, pattern), rtol=1e-4, atol=1e-5)
    assert seen == [0.2] * 3


@pytest.mark.parametrize(
    "pattern", [MaskPattern(), MaskPattern(window=7), MaskPattern(window=350), MaskPattern(chunk=40)]
)
@pytest.mark.parametrize("special", ["plain", "softcap", "sinks", "narrow", "wide"])
def test_wanted_rows_of_the_last_layer(pattern: MaskPattern, special: str) -> None:
    lengths, spans = (330, 41, 41, 41, 9, 1), ((20, 321), (30, 40), (30, 40), (0, 3), (8, 9), (0, 1))
    tensors = _tensors(sum(lengths), {"narrow": 8, "wide": 24}.get(special, DIM))
    softcap = 1.5 if special == "softcap" else None
    sinks = torch.linspace(-1, 2, HEADS) if special == "sinks" else None
    loaded = loaded_model("llama")
    rows = ReadRows(lengths=lengths, spans=spans, layer=1)
    got = {}
    for number in range(2):
        layer = SimpleNamespace(layer_idx=number)
        with packing.document_attention(loaded, lengths, read=rows):
            options = {"scaling": 0.2, "softcap": softcap, "s_aux": sinks}
            got[number], _ = AttentionInterface()[NAME](layer, *tensors, pattern, **options)
    want = _twin(*tensors, lengths, pattern, softcap, sinks)
    torch.testing.assert_close(got[0].double(), want, rtol=1e-4, atol=1e-5)
    index = rows.index(torch.device("cpu"))
    torch.testing.assert_close(got[1].double()[:, index], want[:, index], rtol=1e-4, atol=1e-5)


def test_wanted_rows_meet_no_more_keys_than_they_see(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    own = attention_kernels.scaled_dot_product_attention

    def watched(query, key, value, **kwargs):
        calls.append((*query.shape[:3], key.shape[2]))
        return own(query, key, value, **kwargs)

    monkeypatch.setattr(attention_kernels, "scaled_dot_product_attention", watched)
    lengths, spans = (330, 41, 41), ((20, 321), (30, 40), (30, 40))
    rows = ReadRows(lengths=lengths, spans=spans, layer=1)
    with packing.document_attention(loaded_model("llama"), lengths, read=rows):
        AttentionInterface()[NAME](SimpleNamespace(layer_idx=1), *_tensors(sum(lengths)), MaskPattern(), scaling=0.2)
    assert calls == [(1, HEADS, 128, 148), (1, HEADS, 128, 276), (1, HEADS, 45, 321), (2, HEADS, 10, 40)]


LENGTH = 23


def _rows_of(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, LENGTH, DIM, generator=generator).to(dtype)
    return query, torch.randn(GROUPS, LENGTH, DIM, generator=generator).to(dtype)


def _rows_twin(query: torch.Tensor, key: torch.Tensor, how: AttentionSpec) -> torch.Tensor:
    """[H, T, T] head by head, row by row, in float64."""
    out = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(HEADS):
        for row in range(LENGTH):
            scores = key[head // (HEADS // GROUPS)].double() @ query[head, row].double() * how.scaling
            if how.softcap:
                scores = how.softcap * torch.tanh(scores / how.softcap)
            allowed = torch.arange(LENGTH) <= row
            if how.window is not None:
                allowed &= torch.arange(LENGTH) > row - how.window
            weights = torch.where(allowed, scores.exp(), 0.0)
            sink = 0.0 if how.sinks is None else how.sinks[head].double().exp()
            out[head, row] = weights / (weights.sum() + sink)
    return out


def _whole(query: torch.Tensor, key: torch.Tensor, how: AttentionSpec, start: int) -> torch.Tensor:
    """[H, LENGTH - start, LENGTH] put together from blocks."""
    out = torch.zeros(GROUPS, HEADS // GROUPS, LENGTH, LENGTH, dtype=torch.float32)
    for heads, rows in row_blocks(query, GROUPS, start, LENGTH, how):
        weights = attention_rows(query, key, heads, rows, how)
        assert weights.dtype == torch.float32
        out[heads, :, rows, how.first_key(rows.start) : rows.stop] = weights
    return out.flatten(0, 1)[:, start:]


@pytest.mark.parametrize("elements", [1, 50, 400, 100_000])
@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_agree_with_the_twin(
    elements: int, window: int | None, softcap: float | None, with_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", elements)
    query, key = _rows_of()
    sinks = torch.linspace(-1, 2, HEADS) if with_sinks else None
    how = AttentionSpec(scaling=0.3, window=window, softcap=softcap, sinks=sinks)
    got = _whole(query, key, how, 7)
    torch.testing.assert_close(got.double(), _rows_twin(query, key, how)[:, 7:], rtol=1e-5, atol=1e-7)
    query, key = _rows_of(torch.bfloat16)  # multiplied and normalised in float32
    got = _whole(query, key, how, 3)
    torch.testing.assert_close(got.double(), _rows_twin(query, key, how)[:, 3:], rtol=1e-5, atol=1e-7)


def test_blocks_cover_the_rows_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    query, _ = _rows_of()
    how = AttentionSpec(scaling=1.0)
    monkeypatch.setitem(
        attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 4 * 3 * 13 + 1
    )  # of 3 heads that share keys and 13 keys
    rows = [slice(3, 7), slice(7, 11), slice(11, 13)]
    assert list(row_blocks(query, GROUPS, 3, 13, how)) == [(slice(g, g + 1), r) for g in range(GROUPS) for r in rows]
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 1)
    assert next(row_blocks(query, GROUPS, 3, 5, how)) == (slice(0, 1), slice(3, 4))
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 1000)
    assert list(row_blocks(query, GROUPS, 3, 13, how)) == [(slice(0, 2), slice(3, 13))]


_LENGTH = 40


@pytest.mark.parametrize(
    ("function", "size", "want"),
    [
        (masking_utils.causal_mask_function, None, MaskPattern()),
        (masking_utils.sliding_window_causal_mask_function(1), 1, MaskPattern(window=1)),
        (masking_utils.sliding_window_causal_mask_function(7), 7, MaskPattern(window=7)),
        (masking_utils.chunked_causal_mask_function(7, torch.tensor([0])), 7, MaskPattern(chunk=7)),
    ],
)
def test_pattern_is_transformers_own_mask(function: Any, size: int | None, want: MaskPattern) -> None:
    got = describe_mask(mask_function=function, local_size=size, batch_size=1, q_length=_LENGTH)
    assert got == want
    seen = torch.tensor([[got.sees(query, key) for key in range(_LENGTH)] for query in range(_LENGTH)])
    index = torch.arange(_LENGTH)
    torch.testing.assert_close(seen, function(torch.tensor(0), torch.tensor(0), index[:, None], index))


@pytest.mark.parametrize(
    ("function", "size", "added"),
    [
        (masking_utils.bidirectional_mask_function, None, False),
        (masking_utils.sliding_window_bidirectional_mask_function(7), 7, False),
        (masking_utils.sliding_window_causal_mask_function(7), 8, False),
        (masking_utils.sliding_window_causal_mask_function(7), None, False),
        (masking_utils.chunked_causal_mask_function(7, torch.tensor([2])), 7, False),
        (masking_utils.causal_mask_function, 7, False),
        (masking_utils.causal_mask_function, None, True),
    ],
)
def test_other_masks_are_refused(function: Any, size: int | None, added: bool) -> None:
    with pytest.raises(UnknownAttentionError, match="neither causal"):
        describe_mask(mask_function=function, local_size=size, use_vmap=added)


def make(kind: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=torch.float32)


@pytest.mark.parametrize(
    "kind", ["llama", "qwen3", "mixtral", "cohere", "granite", "ministral3", "gpt_oss", "gemma2", "gemma3_text"]
)
def test_parts_that_come_out_as_in_the_whole(kind: str) -> None:
    model = make(kind, **({"sliding_window": 3} if kind == "gemma3_text" else {})).train()
    attend_within_documents(model)
    own = model.config._attn_implementation
    assert parts_differ(model) is None
    assert model.config._attn_implementation == own and model.training


def test_heads_that_are_not_those_of_the_configuration() -> None:
    model = make("opt")
    attend_within_documents(model)
    own = model.config._attn_implementation
    assert "heads are not those that its configuration names" in (parts_differ(model) or "")
    assert model.config._attn_implementation == own


def test_positions_that_a_model_makes_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    attend_within_documents(model)
    rotary = model.model.rotary_emb.forward  # pyright: ignore

    def from_zero(states: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return rotary(states, torch.arange(position_ids.shape[1])[None])

    monkeypatch.setattr(model.model.rotary_emb, "forward", from_zero)  # pyright: ignore
    assert parts_differ(model) == "a part of a sequence comes out otherwise than in the whole"
