"""Texts in padded batches: whatever stands beside a text, it comes out as it would alone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models import memory
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget
from gateau_dagster.scoring.text_models import Batch, ReadText, padded, read_text, read_texts
from tests.error_codes import refused
from tests.scoring.scored import running
from tests.tiny_models import encoder, samples, save_encoder, text


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return encoder(save_encoder(tmp_path_factory.mktemp("bert"), "bert", "embedding"), "embedding")


class Recorder:
    """A pass that gives each row's sum of ids and its number of tokens, and fails above some number of tokens."""

    def __init__(self, fits: int = 10**9) -> None:
        self.fits, self.shapes = fits, []

    def __call__(self, batch: Batch) -> torch.Tensor:
        shape = tuple(batch["input_ids"].shape)
        self.shapes.append(shape)
        if shape[0] * shape[1] > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        mask = batch["attention_mask"]
        return torch.stack([(batch["input_ids"] * mask).sum(1), mask.sum(1)], dim=1)


def read(loaded: LoadedModel, chosen: list[Sample], vectors: Any, **options: Any) -> list[ReadText | Reject]:
    asked = running(options.pop("max_length", 2048), batch_tokens=options.pop("batch_tokens", 200))
    return list(read_texts(loaded, chosen, asked, as_pair=False, vectors=vectors, **options))


def many(count: int = 30) -> list[Sample]:
    return [
        Sample(sample_id=f"m{number}", source="x", context="", instruction=text(number, 3), response=text(99, number))
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("batch_tokens", [1, 70, 300, 100_000])
def test_one_outcome_a_sample_in_order_and_batches_are_bounded(
    bert: LoadedModel, batch_tokens: int, alone: bool
) -> None:
    recorder = Recorder()
    found = read(bert, many(), recorder, batch_tokens=batch_tokens, alone=alone)
    for one, sample in zip(found, many(), strict=True):
        assert isinstance(one, ReadText) and one.sample == sample
        ids = bert.tokenizer(f"{sample.instruction}\n{sample.response}", verbose=False)["input_ids"]
        assert one.vector.tolist() == [sum(ids), len(ids)] and one.text.ids == tuple(ids)
        assert one.text.truncated_tokens == 0
    assert all(rows * width <= batch_tokens or rows == 1 for rows, width in recorder.shapes)
    assert (max(rows for rows, _ in recorder.shapes) > 1) == (batch_tokens > 1 and not alone)


def test_the_text_loses_its_end_at_the_window(bert: LoadedModel) -> None:
    sample = dataclasses.replace(samples()[1], response=text(5, 400))
    whole = read_text(bert, sample, limit=10**6, as_pair=False)
    cut = read_text(bert, sample, limit=60, as_pair=False)
    assert len(cut.ids) == 60 and cut.truncated_tokens == len(whole.ids) - 60 > 0
    assert cut.ids == (*whole.ids[:59], whole.ids[-1]), "the closing special token stays"
    (one,) = read(bert, [sample], Recorder())
    assert isinstance(one, ReadText) and len(one.text.ids) == bert.window == 128
    (shorter,) = read(bert, [sample], Recorder(), max_length=40)
    assert isinstance(shorter, ReadText) and len(shorter.text.ids) == 40


def test_a_pair_keeps_its_segments_apart(bert: LoadedModel) -> None:
    sample = dataclasses.replace(samples()[1], instruction="the harbour", response="a lighthouse in winter")
    found = read_text(bert, sample, limit=100, as_pair=True)
    tokens = bert.tokenizer.convert_ids_to_tokens(list(found.ids))
    assert tokens == ["[CLS]", "the", "harbour", "[SEP]", "a", "lighthouse", "in", "winter", "[SEP]"]
    assert found.types == (0, 0, 0, 0, 1, 1, 1, 1, 1)
    batch = padded(bert, [found, read_text(bert, sample, limit=5, as_pair=True)])
    assert batch["token_type_ids"].tolist()[0] == list(found.types)
    assert batch["attention_mask"].tolist() == [[1] * 9, [1] * 5 + [0] * 4]
    assert batch["input_ids"].tolist()[1][5:] == [0] * 4
    cut = read_text(bert, dataclasses.replace(sample, response=text(5, 50)), limit=20, as_pair=True)
    assert sum(cut.types) == 20 - 4, "the longer of the two is cut"


def test_a_model_that_knows_no_segments_is_not_told_of_them(tmp_path: Path) -> None:
    one = encoder(save_encoder(tmp_path / "one", "bert", "embedding", type_vocab_size=1), "embedding")
    other = encoder(save_encoder(tmp_path / "other", "llama", "embedding"), "embedding")
    for loaded in (one, other):
        pair = read_text(loaded, samples()[1], limit=100, as_pair=True)
        assert list(padded(loaded, [pair])) == ["input_ids", "attention_mask"]


def test_samples_that_cannot_be_read_are_rejected_with_the_reason(bert: LoadedModel) -> None:
    chosen = many(3)
    chosen[1] = dataclasses.replace(chosen[1], response=" \n")
    assert read(bert, chosen, Recorder())[1] == Reject(sample_id="m2", reason="the response is empty")
    with pytest.raises(UnscorableSampleError, match="cannot be tokenised"):
        read_text(bert, dataclasses.replace(chosen[0], response="half a \ud800"), limit=50, as_pair=False)

    def infinite(batch: Batch) -> torch.Tensor:
        found = Recorder()(batch).float()
        return torch.where(found == found[:, 1:].max(), torch.inf, found)

    rejected = [one for one in read(bert, chosen, infinite) if isinstance(one, Reject)]
    assert [one.reason for one in rejected if one.sample_id == "m3"] == [
        "the model's output is not finite: try dtype float32"
    ]


def test_a_batch_too_large_is_halved_and_what_does_not_fit_alone_is_rejected(
    bert: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    lengths = [len(read_text(bert, sample, limit=128, as_pair=False).ids) for sample in many(12)]
    fits = sorted(lengths)[-2]
    recorder = Recorder(fits)
    found = read(bert, many(12), recorder, batch_tokens=2 * fits)
    assert all(rows * width <= 2 * fits or rows == 1 for rows, width in recorder.shapes)
    widths = [width for _, width in recorder.shapes]
    assert widths == sorted(widths, reverse=True), "the longest first, so that none is wider than was reckoned with"
    for one, length in zip(found, lengths, strict=True):
        if length > fits:
            assert isinstance(one, Reject) and one.short_of_memory
            assert one.reason.startswith(f"out of memory on a prompt of {length} tokens: give the model a smaller")
        else:
            assert isinstance(one, ReadText)
    assert fits / 2 <= TokenBudget(bert.model, 1000).tokens <= fits, "remembered for the next shard"


def test_work_is_counted_without_the_padding(bert: LoadedModel) -> None:
    asked = running(batch_tokens=500)
    found = list(read_texts(bert, many(9), asked, as_pair=False, vectors=Recorder()))
    lengths = [len(one.text.ids) for one in found if isinstance(one, ReadText)]
    assert asked.work.tokens == sum(lengths)
    weights = sum(one.numel() for name, one in bert.model.named_parameters() if "word_embeddings" not in name)
    wanted = sum(2 * weights * length + 4 * 2 * 32 * length * length for length in lengths)
    assert asked.work.flops == pytest.approx(wanted, rel=1e-12)


def test_a_token_that_the_model_does_not_know_is_an_error(tmp_path: Path) -> None:
    small = encoder(save_encoder(tmp_path, "bert", "embedding", vocab_size=20), "embedding")
    with refused("models.vocabulary", "20"):
        read(small, many(3), Recorder())
