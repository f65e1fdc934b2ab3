"""Sentence embeddings against plain loops over the states of each text alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.embedding import EMBEDDING
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.text_models import embedding_rows, mean_pooled

from .builders import samples
from .encoder_builders import exact_encoder, running


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
