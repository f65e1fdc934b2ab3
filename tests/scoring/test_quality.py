"""The reward model's rating of each text against a pass over that text alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.car import QUALITY
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.text_models import quality_rows

from .builders import samples
from .encoder_builders import encoder, exact_encoder, running, save_encoder


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
    loaded, close = exact_encoder(tmp_path, kind, "reward", window=48)
    found = rows(loaded, samples(), batch_tokens)
    for row, sample in zip(found, samples(), strict=True):
        assert list(row) == [column.name for column in QUALITY]
        assert (row["sample_id"], row["digest"]) == (sample.sample_id, sample.digest)
        assert row["quality"] == pytest.approx(slow_logits(loaded, sample)[0], abs=close)
    assert len({row["quality"] for row in found}) == len(found)
    assert 0 < sum(row["truncated_tokens"] > 0 for row in found) < len(found)


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
