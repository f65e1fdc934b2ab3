"""Embeddings and perplexities of prompts against plain loops over each prompt alone."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.pre_experience import INSTRUCTION_EMBEDDING
from gateau_dagster.models import memory
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget
from gateau_dagster.scoring import instruction_embedding
from gateau_dagster.scoring.instruction_embedding import instruction_embedding_rows
from tests.scoring.scored import running
from tests.tiny_models import loaded_model, samples


def slow_ids(loaded: LoadedModel, sample: Sample) -> list[int]:
    bos: list[Any] = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    given = (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        f"response that appropriately completes the request.\n\n### Instruction:\n{sample.instruction}\n\n### Input:\n"
        f"{sample.context}\n\n### Response:"
    )
    alone = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        f"\n\n### Instruction:\n{sample.instruction}\n\n### Response:"
    )
    ids: Any = loaded.tokenizer(given if sample.context else alone, add_special_tokens=False)["input_ids"]
    return [*bos, *ids]


@torch.no_grad()
def slow_measures(loaded: LoadedModel, ids: list[int]) -> tuple[list[float], float]:
    """As the authors' program: the mean of hidden_states[-1], and exp of the loss of the ids as labels."""
    made = loaded.model(torch.tensor([ids]), output_hidden_states=True)
    rows = made.hidden_states[-1][0].double().tolist()
    logs = torch.log_softmax(made.logits[0].double(), dim=-1).tolist()
    loss = math.fsum(-logs[place][token] for place, token in enumerate(ids[1:])) / (len(ids) - 1)
    return [math.fsum(values) / len(ids) for values in zip(*rows, strict=True)], math.exp(loss)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("kind", "batch_tokens"), [("llama", 1), ("llama", 10_000), ("gpt2", 600), ("mamba", 600)])
def test_a_row_is_what_the_whole_prompt_comes_to_alone(kind: str, batch_tokens: int, bos: bool) -> None:
    loaded = loaded_model(kind, bos=bos, dtype=torch.float64 if kind == "gpt2" else torch.float32)
    found: list[Any] = list(instruction_embedding_rows(loaded, samples(), running(batch_tokens=batch_tokens)))
    assert any(not sample.context for sample in samples())
    for row, sample in zip(found, samples(), strict=True):
        assert list(row) == [column.name for column in INSTRUCTION_EMBEDDING]
        assert (row["sample_id"], row["digest"]) == (sample.sample_id, sample.digest)
        ids = slow_ids(loaded, sample)
        close = 1e-9 if kind == "gpt2" else 1e-5
        embedding, perplexity = slow_measures(loaded, ids[:512])
        assert row["prompt_tokens"] == min(512, len(ids))
        assert row["embedding"] == pytest.approx(embedding, abs=close)
        assert row["perplexity"] == pytest.approx(perplexity, rel=close)


def test_a_long_prompt_loses_its_right_end() -> None:
    loaded = loaded_model("llama")
    long = dataclasses.replace(samples()[0], context="a word and another " * 400)
    ids = slow_ids(loaded, long)
    assert len(ids) > 600
    for most, max_length in ((512, 2048), (512, 512), (90, 90)):
        [row] = embedded([long], max_length=max_length, loaded=loaded)
        embedding, perplexity = slow_measures(loaded, ids[:most])
        assert row["prompt_tokens"] == most
        assert row["embedding"] == pytest.approx(embedding, abs=1e-5)
        assert row["perplexity"] == pytest.approx(perplexity, rel=1e-5)


def test_a_text_that_cannot_be_tokenised_is_rejected_alone() -> None:
    found = embedded([dataclasses.replace(samples()[0], instruction="\ud800"), *samples()[1:]])
    assert isinstance(found[0], Reject) and "cannot be tokenised" in found[0].reason
    assert [row["sample_id"] for row in found[1:]] == [sample.sample_id for sample in samples()[1:]]


def test_what_does_not_fit_is_halved_and_rejected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, loaded = instruction_embedding._means, loaded_model("llama")
    want = embedded(samples(), loaded=loaded)
    lengths = sorted(row["prompt_tokens"] for row in want)

    def tight(loaded: Any, documents: Any) -> Any:
        if sum(map(len, documents)) > lengths[-2]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, documents)

    monkeypatch.setattr(instruction_embedding, "_means", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = embedded(samples(), loaded=loaded)
    for row, other in zip(found, want, strict=True):
        if other["prompt_tokens"] == lengths[-1]:
            assert isinstance(row, Reject) and row.short_of_memory and f"of {lengths[-1]} tokens" in row.reason
        else:
            assert row["embedding"] == pytest.approx(other["embedding"], abs=1e-5)
    assert TokenBudget(loaded.model, 10_000).tokens <= lengths[-2]


def test_work_is_charged() -> None:
    asked = running()
    rows: list[Any] = list(instruction_embedding_rows(loaded_model("llama"), samples(), asked))
    assert asked.work.tokens == sum(row["prompt_tokens"] for row in rows)
    assert asked.work.flops > 0


def embedded(chosen: list[Any], max_length: int = 2048, loaded: LoadedModel | None = None) -> list[Any]:
    asked = running(max_length, batch_tokens=10_000)
    return list(instruction_embedding_rows(loaded or loaded_model("llama"), chosen, asked))
