"""Ratings and sentence embeddings against plain loops over each text alone."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.car import EMBEDDING, QUALITY
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.text_models import embedding_rows, mean_pooled, quality_rows
from tests.scoring.scored import running
from tests.tiny_models import encoder, exact_encoder, samples, save_encoder, text


def rows(loaded: LoadedModel, chosen: list[Sample], batch_tokens: int = 400, **options: Any) -> list[dict[str, Any]]:
    asked = {"label": None, "as_pair": False} | options
    found = list(quality_rows(loaded, chosen, running(batch_tokens=batch_tokens), **asked))
    assert not any(isinstance(one, Reject) for one in found)
    return [dict(one) for one in found]  # pyright: ignore


def slow_logits(loaded: LoadedModel, sample: Sample, as_pair: bool = False) -> list[float]:
    """Of the text alone, without padding."""
    texts = [sample.instruction, sample.response] if as_pair else [f"{sample.instruction}\n{sample.response}"]
    tokenize: Any = loaded.tokenizer
    given = tokenize(*texts, return_tensors="pt", truncation=True, max_length=loaded.window)
    given = {name: one for name, one in given.items() if name != "token_type_ids" or as_pair}
    return loaded.model(**given).logits[0].double().tolist()


@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
@pytest.mark.parametrize("batch_tokens", [1, 150, 10_000])
def test_a_text_is_rated_as_alone_whatever_stands_beside_it(kind: str, batch_tokens: int, tmp_path: Path) -> None:
    loaded, close = exact_encoder(tmp_path, kind, "reward", window=64)
    found = rows(loaded, samples(), batch_tokens)
    for row, sample in zip(found, samples(), strict=True):
        assert list(row) == [column.name for column in QUALITY]
        assert (row["sample_id"], row["digest"]) == (sample.sample_id, sample.digest)
        assert row["quality"] == pytest.approx(slow_logits(loaded, sample)[0], abs=close)
    assert len({row["quality"] for row in found}) == len(found)
    assert 0 < sum(row["truncated_tokens"] > 0 for row in found) < len(found)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_text_is_rated_where_the_model_sees_some_of_its_response(kind: str, tmp_path: Path) -> None:
    loaded, _ = exact_encoder(tmp_path, kind, "reward")
    tokenize: Any = loaded.tokenizer
    sample = dataclasses.replace(samples()[0], instruction=text(5, 30), response=text(9, 20))
    alone = len(tokenize(f"{sample.instruction}\n")["input_ids"])
    asked: dict[str, Any] = {"label": None, "as_pair": False}
    (unseen,) = quality_rows(loaded, [sample], running(alone), **asked)
    assert isinstance(unseen, Reject)
    assert unseen.reason == f"the instruction alone fills the {alone} tokens that the model reads: it sees no response"
    (seen,) = quality_rows(loaded, [sample], running(alone + 1), **asked)
    assert not isinstance(seen, Reject) and seen["tokens"] == alone + 1
    (placed,) = embedding_rows(exact_encoder(tmp_path, kind, "embedding")[0], [sample], running(alone))
    assert not isinstance(placed, Reject) and placed["tokens"] == alone, "a text's place is its beginning's"


def test_segments_count_for_a_model_that_was_trained_on_pairs(tmp_path: Path) -> None:
    loaded, close = exact_encoder(tmp_path, "bert", "reward")
    found = rows(loaded, samples(), as_pair=True)
    for row, sample, other in zip(found, samples(), rows(loaded, samples()), strict=True):
        assert row["quality"] == pytest.approx(slow_logits(loaded, sample, as_pair=True)[0], abs=close)
        assert row["quality"] != other["quality"]


def test_a_decoder_without_padding_reads_one_text_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = encoder(save_encoder(tmp_path, "llama", "reward", pad_token_id=None), "reward")
    shapes: list[int] = []
    own = loaded.model.forward

    def forward(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        shapes.append(input_ids.shape[0])
        return own(input_ids=input_ids, attention_mask=attention_mask)

    monkeypatch.setattr(loaded.model, "forward", forward)
    found = rows(loaded, samples(), 10_000)
    assert shapes == [1] * 5
    for row, sample in zip(found, samples(), strict=True):
        assert row["quality"] == pytest.approx(slow_logits(loaded, sample)[0], rel=1e-6)


@pytest.mark.parametrize("label", [2, "good"])
def test_the_label_of_a_head_with_several_outputs_counts_by_its_probability(label: int | str, tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    loaded = encoder(save_encoder(tmp_path, "bert", "reward", labels=3, id2label=names), "reward")
    for row, sample in zip(rows(loaded, samples(), label=label), samples(), strict=True):
        logits = slow_logits(loaded, sample)
        wanted = math.log(math.exp(logits[2]) / sum(map(math.exp, logits)))
        assert row["quality"] == pytest.approx(wanted, rel=1e-5)


def test_the_wrong_head_is_an_error_before_any_sample_is_read(tmp_path: Path) -> None:
    loaded = encoder(save_encoder(tmp_path, "bert", "reward", labels=2), "reward")

    def never() -> Any:
        raise AssertionError("a sample was read")
        yield

    with pytest.raises(GateauError, match="has 2 outputs"):
        next(quality_rows(loaded, never(), running(), label=None, as_pair=False))


def slow_embedding(loaded: LoadedModel, sample: Sample) -> list[float]:
    given = loaded.tokenizer(
        f"{sample.instruction}\n{sample.response}", return_tensors="pt", truncation=True, max_length=loaded.window
    )
    states = loaded.model(input_ids=given["input_ids"]).last_hidden_state[0].double().tolist()
    mean = [math.fsum(values) / len(states) for values in zip(*states, strict=True)]
    norm = math.sqrt(math.fsum(value * value for value in mean))
    return [value / norm for value in mean]


@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_an_embedding_is_that_of_the_text_alone(kind: str, batch_tokens: int, tmp_path: Path) -> None:
    loaded, close = exact_encoder(tmp_path, kind, "embedding", window=48)
    found: list[Any] = list(embedding_rows(loaded, samples(), running(batch_tokens=batch_tokens)))
    for row, sample in zip(found, samples(), strict=True):
        assert not isinstance(row, Reject) and list(row) == [column.name for column in EMBEDDING]
        assert row["embedding"] == pytest.approx(slow_embedding(loaded, sample), abs=close)
        assert math.fsum(value * value for value in row["embedding"]) == pytest.approx(1, rel=1e-12)
        assert row["digest"] == sample.digest


def test_padding_counts_for_nothing() -> None:
    states = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [99.0, 99.0]]])
    assert mean_pooled(states, torch.tensor([[1, 1, 0]])).tolist() == [[0.6, 0.8]]
    assert mean_pooled(states, torch.tensor([[1, 0, 0]])).tolist() == [[1.0, 0.0]]
