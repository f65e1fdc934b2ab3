"""Embeddings of instructions against plain loops over the hidden states of each alone."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.pre_experience import INSTRUCTION_EMBEDDING
from gateau_dagster.models import memory
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget
from gateau_dagster.scoring import instruction_embedding
from gateau_dagster.scoring.instruction_embedding import instruction_embedding_rows
from tests.scoring.scored import running
from tests.tiny_models import loaded_model, samples


def slow_embedding(loaded: LoadedModel, instruction: str) -> list[float]:
    bos = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    ids = loaded.tokenizer(instruction, add_special_tokens=False)["input_ids"]
    states = loaded.model(torch.tensor([[*bos, *ids]]), output_hidden_states=True).hidden_states[-1]
    rows = states[0, len(bos) :].double().tolist()
    return [math.fsum(values) / len(ids) for values in zip(*rows, strict=True)]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("kind", "batch_tokens"), [("llama", 1), ("llama", 10_000), ("gpt2", 60), ("mamba", 60)])
def test_an_embedding_is_the_mean_state_of_the_instruction_alone(kind: str, batch_tokens: int, bos: bool) -> None:
    loaded = loaded_model(kind, bos=bos, dtype=torch.float64 if kind == "gpt2" else torch.float32)
    found: list[Any] = list(instruction_embedding_rows(loaded, samples(), running(batch_tokens=batch_tokens)))
    for row, sample in zip(found, samples(), strict=True):
        assert list(row) == [column.name for column in INSTRUCTION_EMBEDDING]
        assert (row["sample_id"], row["digest"]) == (sample.sample_id, sample.digest)
        close = 1e-9 if kind == "gpt2" else 1e-5
        assert row["embedding"] == pytest.approx(slow_embedding(loaded, sample.instruction), abs=close)


def test_an_instruction_without_tokens_or_too_long_is_rejected() -> None:
    chosen = [dataclasses.replace(samples()[0], instruction=""), *samples()[1:]]
    lengths = [row["instruction_tokens"] for row in embedded(samples())]
    found = embedded(chosen, max_length=lengths[4])
    assert found[0] == Reject(sample_id="s0", reason="the instruction has no tokens")
    assert found[4] == Reject(
        sample_id="s4",
        reason=f"the instruction takes {lengths[4]} tokens, and bos, more than {lengths[4]} allowed",
    )
    assert [row["sample_id"] for row in found[1:4]] == ["s1", "s2", "s3"]


def test_what_does_not_fit_is_halved_and_rejected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, loaded = instruction_embedding._means, loaded_model("llama")
    want = embedded(samples(), loaded=loaded)
    lengths = sorted(row["instruction_tokens"] for row in want)

    def tight(loaded: Any, documents: Any) -> Any:
        if sum(map(len, documents)) > lengths[-2]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, documents)

    monkeypatch.setattr(instruction_embedding, "_means", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = embedded(samples(), loaded=loaded)
    for row, other in zip(found, want, strict=True):
        if other["instruction_tokens"] == lengths[-1]:
            assert isinstance(row, Reject) and row.short_of_memory and f"of {lengths[-1]} tokens" in row.reason
        else:
            assert row["embedding"] == pytest.approx(other["embedding"], abs=1e-5)
    assert TokenBudget(loaded.model, 10_000).tokens <= lengths[-2]


def test_work_is_charged() -> None:
    asked = running()
    rows: list[Any] = list(instruction_embedding_rows(loaded_model("llama"), samples(), asked))
    assert asked.work.tokens == sum(1 + row["instruction_tokens"] for row in rows), "each behind bos"
    assert asked.work.flops > 0


def embedded(chosen: list[Any], max_length: int = 2048, loaded: LoadedModel | None = None) -> list[Any]:
    asked = running(max_length, batch_tokens=10_000)
    return list(instruction_embedding_rows(loaded or loaded_model("llama"), chosen, asked))
