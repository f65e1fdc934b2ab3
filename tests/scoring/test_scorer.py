"""Whole sample sets: any batch, order and neighbours give the same rows; one pass for two tables; rejects; progress."""

import dataclasses
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module

from gateau_dagster.config import ModelConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.registry import reads_attention
from gateau_dagster.models import forward, loading
from gateau_dagster.models.loaded import LoadedModel, Meter
from gateau_dagster.models.loading import load_model
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, cam_table, perplexity_asset
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.sample_table import RequestedRow
from gateau_dagster.scoring.scorer import Request, SampleOutcome, score_samples
from gateau_dagster.scoring.segments import CamRow, segment_prompts
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, passages, samples, tokenizer
from tests.methods.configured import configured
from tests.models.test_model_facts import NEXT
from tests.scoring.builders import (
    cam_figures,
    check,
    compare,
    outcomes,
    reference,
    reference_model,
    references,
    running,
    scoring,
)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lengths of the prompts of each packed pass."""
    seen: list[list[int]] = []
    own = forward.response_nll

    def watched(loaded: Any, prompts: Any) -> Any:
        seen.append([prompt.length for prompt in prompts])
        return own(loaded, prompts)

    monkeypatch.setattr(forward, "response_nll", watched)
    return seen


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_no_batch_order_neighbour_or_other_table_changes_a_row(kind: str) -> None:
    loaded, chosen = loaded_model(kind), samples()
    wanted = dict(zip((s.sample_id for s in chosen), references(loaded, scoring(), 4096, chosen), strict=True))
    for tokens, both in ((1, {}), (500, {}), (16_000, {}), (500, {"cam": False}), (500, {"perplexity": False})):
        shuffled = random.Random(tokens).sample(chosen, len(chosen))
        for sample, outcome in zip(shuffled, outcomes(loaded, shuffled, batch_tokens=tokens, **both), strict=True):
            check(sample, outcome, wanted[sample.sample_id], **both)
    for sample in chosen:
        (alone,) = outcomes(loaded, [sample])
        check(sample, alone, wanted[sample.sample_id])


def test_in_bfloat16_a_batch_changes_rounding_only() -> None:
    single, half = loaded_model("llama"), loaded_model("llama", dtype=torch.bfloat16)
    half.model.load_state_dict(single.model.state_dict())
    wanted = outcomes(single, samples())
    for tokens in (1, 16_000):
        for want, found in zip(wanted, outcomes(half, samples(), batch_tokens=tokens), strict=True):
            assert isinstance(want.perplexity, PerplexityRow) and isinstance(found.perplexity, PerplexityRow)
            assert isinstance(want.cam, CamRow) and isinstance(found.cam, CamRow)
            assert found.perplexity.mean_nll == pytest.approx(want.perplexity.mean_nll, rel=1e-2)
            logs = np.log(found.cam.segment_perplexity), np.log(want.cam.segment_perplexity)
            np.testing.assert_allclose(*logs, rtol=1e-2)
            np.testing.assert_allclose(found.cam.segment_attention, want.cam.segment_attention, rtol=1e-2)


def test_nothing_wanted_takes_no_pass(batches: list[list[int]]) -> None:
    (outcome,) = outcomes(loaded_model("llama"), samples()[:1], perplexity=False, cam=False)
    assert outcome == SampleOutcome(sample_id="s0", perplexity=None, cam=None)
    assert not batches


def test_both_tables_take_one_pass_over_the_full_prompt(batches: list[list[int]]) -> None:
    sample = samples()[0]
    full = build_prompt(tokenizer(), sample, max_length=4096)
    segments = [prompt.length for prompt in segment_prompts(full, 32)]
    outcomes(loaded_model("llama"), [sample], batch_tokens=10_000)
    alone = full.length - len(full.context)
    assert batches == [[*segments, alone]]  # the full pass is the attention's


def test_prompts_of_several_samples_share_full_batches(batches: list[list[int]]) -> None:
    outcomes(loaded_model("llama"), samples() * 3, batch_tokens=600)
    lengths = [length for batch in batches for length in batch]
    assert max(lengths) < 300
    assert all(sum(batch) <= 600 for batch in batches)
    # No further prompt would have fitted: FIFO leaves at most one prompt's length of each batch unused.
    assert all(sum(batch) > 600 - max(lengths) for batch in batches[:-1])


def test_full_prompts_share_batches_where_no_attention_is_wanted(batches: list[list[int]]) -> None:
    outcomes(loaded_model("llama"), samples(), cam=False, batch_tokens=16_000)
    lengths = [build_prompt(tokenizer(), sample, max_length=4096).length for sample in samples()]
    assert batches == [lengths]
    outcomes(loaded_model("llama"), samples(), cam=False, batch_tokens=1)
    assert [len(batch) for batch in batches[1:]] == [1] * 5, "a prompt above the bound goes alone"


def test_rejects_stand_in_their_place_and_leave_their_neighbours_alone() -> None:
    silent = dataclasses.replace(samples()[1], response="")
    chosen = [silent, samples()[0], dataclasses.replace(samples()[4], response="word " * 300), samples()[2]]
    made = outcomes(loaded_model("llama"), chosen, max_length=230)
    assert made[0].perplexity == made[0].cam == Reject(sample_id="s1", reason="the response has no tokens")
    for row in (made[2].perplexity, made[2].cam):
        assert isinstance(row, Reject) and "instruction and response alone take" in row.reason
        assert not row.short_of_memory
    for outcome in (made[1], made[3]):
        assert isinstance(outcome.perplexity, PerplexityRow) and isinstance(outcome.cam, CamRow)


def test_figures_that_are_not_finite_reject_their_own_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.token_nll
    marked = build_prompt(tokenizer(), samples()[2], max_length=4096).response[0]

    def spoilt(loaded: Any, states: Any, targets: Any) -> Any:
        nll = own(loaded, states, targets)
        where = [index for index, target in enumerate(targets) if target == marked]
        nll[where] = torch.inf
        return nll

    lone = dataclasses.replace(samples()[1], response="0 1 2")
    assert marked not in build_prompt(tokenizer(), lone, max_length=4096).response
    monkeypatch.setattr(forward, "token_nll", spoilt)
    bad, good = outcomes(loaded_model("llama"), [samples()[2], lone])
    assert bad.perplexity == Reject(
        sample_id="s2", reason="mean NLL of the response is inf: try dtype bfloat16 or float32"
    )
    assert isinstance(bad.cam, Reject) and bad.cam.reason.startswith("given segment 1 alone: mean NLL")
    assert isinstance(good.perplexity, PerplexityRow) and isinstance(good.cam, CamRow)


@pytest.mark.parametrize("kind", ["bloom", "mpt", "mamba"])
def test_model_without_the_interface_is_refused_before_any_pass(kind: str, batches: list[list[int]]) -> None:
    with refused("models.no_attention", f"model type {kind}.*Llama, Qwen or Mistral"):
        outcomes(loaded_model(kind), samples()[:1])
    assert not batches
    (outcome,) = outcomes(loaded_model(kind), samples()[:1], cam=False)
    assert isinstance(outcome.perplexity, PerplexityRow)


def test_outcomes_come_while_samples_are_still_being_read() -> None:
    taken: list[str] = []

    def source() -> Iterator[Request]:
        for index in range(200):
            sample = dataclasses.replace(samples()[index % 5], sample_id=f"s{index}")
            taken.append(sample.sample_id)
            yield Request(sample=sample, perplexity=True, cam=True)

    made = score_samples(
        loaded_model("llama"), source(), max_length=4096, scoring=scoring(batch_tokens=500), meter=Meter()
    )
    assert next(made).sample_id == "s0"
    assert len(taken) < 40  # those in the first batches, and what is read ahead: bounded by tokens
    made.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert not [thread for thread in threading.enumerate() if thread.name == "gateau-read-ahead"]


def test_an_error_of_the_requests_comes_after_the_outcomes_before_it() -> None:
    def source() -> Iterator[Request]:
        yield Request(sample=samples()[0], perplexity=True, cam=False)
        raise OSError("the disk is gone")

    made = score_samples(
        loaded_model("llama"), source(), max_length=4096, scoring=scoring(batch_tokens=1), meter=Meter()
    )
    assert next(made).sample_id == "s0"
    with pytest.raises(OSError, match="the disk is gone"):
        next(made)


@pytest.mark.parametrize("perplexity", [True, False])
def test_the_meter_adds_up_every_pass(perplexity: bool) -> None:
    loaded, meter, shape = loaded_model("llama"), Meter(), model_shape(loaded_model("llama").model.config)
    chosen: list[Sample] = samples()
    outcomes(loaded, chosen, meter=meter, perplexity=perplexity, batch_tokens=700)
    full = Meter()
    for sample in chosen:
        prompt = build_prompt(tokenizer(), sample, max_length=4096)
        rows = len(prompt.response)
        body = float(shape.pass_flops(np.array([prompt.length]), np.array([rows]))[0])
        if perplexity:
            full.perplexity.add(prompt.length, body + shape.head_flops(rows))
        elif prompt.context:
            full.cam.add(prompt.length, body)
        if prompt.context:
            full.cam.add(0, shape.attention_row_flops(rows, prompt.length))
        without_context = [] if perplexity and not prompt.context else [prompt.with_context(())]
        for segment in segment_prompts(prompt, 32) + without_context:
            body = float(shape.pass_flops(np.array([segment.length]), np.array([rows]))[0])
            full.cam.add(segment.length, body + shape.head_flops(rows))
    for got, want in ((meter.perplexity, full.perplexity), (meter.cam, full.cam)):
        assert got.tokens == want.tokens
        assert got.flops == pytest.approx(want.flops, rel=1e-12)
    assert (meter.perplexity.tokens > 0) == perplexity


SPECIAL = ("gpt2", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "granite", "cohere")  # logits or attention
CHAT = {"template": "chat", "segment_length": 50}


# At 230 tokens three samples are cut; mistral's window of 150 hides some of their context.
@pytest.mark.parametrize(
    ("model", "changes", "max_length", "chosen", "visible_tokens", "truncated"),
    [
        *((kind, {}, 4096, samples(), None, 0) for kind in ("llama", "qwen2", "qwen3", "mistral")),
        *((kind, {}, 230, samples(), None, 3) for kind in ("llama", "qwen2", "qwen3", "mistral")),
        *((kind, {}, 200, samples()[:1], None, 1) for kind in SPECIAL),
        ("llama", CHAT, 4096, samples(), None, 0),
        ("llama", CHAT, 230, samples(), None, 3),
        *(("llama", {"segment_length": 20}, 300, samples()[:3], visible, 1) for visible in (40, 110, 4096)),
        ("qwen2 without bos", {"batch_tokens": 300}, 4096, samples()[:1], None, 0),
        *((kind, {}, 4096, passages(), None, 0) for kind in ("llama", "mistral")),
        *((kind, {}, 500, passages(), None, 3) for kind in ("llama", "mistral")),
    ],
)
def test_agrees_with_the_reference(
    model: str,
    changes: dict[str, Any],
    max_length: int,
    chosen: list[Sample],
    visible_tokens: int | None,
    truncated: int,
) -> None:
    kind, _, without_bos = model.partition(" ")
    loaded = loaded_model(kind, bos=not without_bos)
    assert compare(loaded, scoring(**changes), max_length, chosen, visible_tokens) == truncated


def test_is_closer_still_in_a_float64_model() -> None:
    # Not to 1e-15: transformers' eager attention, which the reference runs, rounds its softmax to float32.
    loaded, sample = loaded_model("llama", dtype=torch.float64), samples()[0]
    (want,) = references(loaded, scoring(), 4096, [sample])
    got = cam_figures(loaded, sample)
    assert isinstance(got, CamRow)
    np.testing.assert_allclose(got.segment_attention, want.segment_attention, rtol=1e-6)
    np.testing.assert_allclose(got.segment_perplexity, want.segment_perplexity, rtol=1e-6)


def rows_by(loaded: LoadedModel) -> list[SampleOutcome]:
    return outcomes(loaded, samples(), max_length=256, segment_length=16, batch_tokens=256)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_hooks_change_nothing(kind: str) -> None:
    expected = rows_by(loaded_model(kind))
    spread = loaded_model(kind)
    layers = [f"model.layers.{index}" for index in range(2)]
    places: dict[str, Any] = dict.fromkeys(
        ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", *layers), "cpu"
    )
    dispatch_model(spread.model, places, force_hooks=True)
    hooked = [name for name, module in spread.model.named_modules() if hasattr(module, "_hf_hook")]
    assert {"", "model.layers.1", "lm_head"} <= set(hooked), "accelerate is at work"
    # A hook on the body too, as offloading puts it there.
    add_hook_to_module(spread.model.base_model, ModelHook())
    assert rows_by(spread) == expected
    assert rows_by(spread) == expected, "the body's hook is put back after each use of the output layer"


def test_loading_with_a_device_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_model("llama").model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path))
    plain = load_model(config, dtype="float32", device="cpu", folder=tmp_path)
    original, asked = loading.AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        asked.append(options["device_map"])
        return original(*arguments, **options)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    found = load_model(config, dtype="float32", device="auto", folder=tmp_path, device_map="auto")
    assert asked == ["auto"]
    assert found.device == found.model.get_input_embeddings().weight.device
    if found.device.type == "cpu":
        assert rows_by(found) == rows_by(plain)


def test_a_model_that_the_gpus_together_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = loaded_model("llama").model
    spread.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "cpu"}  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refused("models.too_large", "2.*GPUs"):
        loading._spread_over_gpus(ModelConfig(path="big"), spread)


_LENGTH = 32


@pytest.mark.parametrize(("kind", "options"), [("qwen3_next", NEXT), ("mamba", {})])
def test_rows_are_those_of_the_slow_way_without_attention(kind: str, options: dict[str, Any]) -> None:
    loaded, chosen = loaded_model(kind, **options), [one for one in samples() if len(one.context) < 400]
    table = cam_table(configured(), attention_read=False)
    assert table.shared is not None
    both = {asset: running(600, segment_length=_LENGTH) for asset in (perplexity_asset(THETA_B), CAM)}
    asked = [RequestedRow(sample=one, assets=frozenset(both)) for one in chosen]
    twin = reference_model(loaded.model)
    for one, found in zip(chosen, table.shared.score(loaded, asked, both), strict=True):
        want = reference(twin, loaded.tokenizer, one, max_length=600, segment_length=_LENGTH, seen=False)
        row = found[CAM]
        assert isinstance(row, dict) and (row["segment_attention"], row["cas"]) == ([], None)
        assert row["segment_perplexity"] == pytest.approx(want.segment_perplexity, rel=1e-4)
        assert row["far_probability"] == pytest.approx(want.far_probability, rel=1e-3, abs=1e-7)
        assert (row["far_gain"] is None) == (want.far_gain is None)
        assert row["far_gain"] is None or row["far_gain"] == pytest.approx(want.far_gain, rel=1e-3, abs=1e-7)
        perplexity = found[perplexity_asset(THETA_B)]
        assert isinstance(perplexity, dict) and perplexity["perplexity"] == pytest.approx(want.perplexity, rel=1e-4)


def test_what_is_read_is_refused_with_class_and_cure() -> None:
    table = cam_table(configured())
    with refused("models.no_attention", r"Qwen3NextForCausalLM.*selection\.preset"):
        list(table.score(loaded_model("qwen3_next", **NEXT), samples(), running(600, segment_length=_LENGTH)))


def test_a_model_that_shows_it_has_it_whatever_is_read() -> None:
    both = (cam_table(configured(), attention_read=read) for read in (True, False))
    given = running(600, segment_length=_LENGTH)
    rows = [next(iter(table.score(loaded_model("llama"), samples()[:1], given))) for table in both]
    assert rows[0] == rows[1] and isinstance(rows[0], dict) and rows[0]["cas"] is not None


def _of_other(method: str) -> dict[str, Any]:
    return {"models": {"third": {"path": "a/third"}}, "method": method, "options": {method: {"short": "third"}}}


@pytest.mark.parametrize(
    ("selection", "read"),
    [
        ({}, False),
        ({"preset": "paper"}, True),
        ({"preset": "paper", "method": "hmg"}, False),
        ({"compare": ["cam"], "options": {"cam": {"preset": "official"}}}, True),
        ({"compare": ["gateau_unnormalised"]}, True),
        ({"compare": ["far_gain"]}, False),
        ({"preset": "paper", **_of_other("hmg_non_homologous")}, False),
        ({"preset": "paper", **_of_other("gateau_unextended")}, True),
        ({"segment_lengths": [64]}, False),
        ({"segment_lengths": [64], "preset": "paper"}, True),
    ],
)
def test_who_reads_attention(selection: dict[str, Any], read: bool) -> None:
    assert reads_attention(configured(**selection)) is read
