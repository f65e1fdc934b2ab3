"""s(y) against a plain loop over the logits of each response alone."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.ifd import RESPONSE_ALONE
from gateau_dagster.models import forward, memory
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.response_alone import alone_prompt, response_alone_rows
from tests.scoring.reference import slowly_divided
from tests.scoring.scored import running
from tests.tiny_models import loaded_model, samples, tokenizer


def slow_loss(loaded: LoadedModel, response: str) -> tuple[float, int]:
    """Mean NLL in nats and the number of response tokens."""
    tokenize = loaded.tokenizer
    bos = [] if tokenize.bos_token_id is None else [tokenize.bos_token_id]
    asked, wanted = slowly_divided(tokenize, "### Response: ", response)
    frame = [*bos, *asked]
    logits = loaded.model(torch.tensor([[*frame, *wanted]])).logits[0].double().tolist()
    losses = []
    for place, token in enumerate(wanted):
        row = logits[len(frame) + place - 1]
        largest = max(row)
        losses.append(largest + math.log(math.fsum(math.exp(value - largest) for value in row)) - row[token])
    return math.fsum(losses) / len(losses), len(losses)


def rows(loaded: LoadedModel, chosen: list[Sample], max_length: int = 2048, batch_tokens: int = 200) -> list[Any]:
    return list(response_alone_rows(loaded, chosen, running(max_length, batch_tokens=batch_tokens)))


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_mean_nll_is_that_of_the_response_behind_its_heading(batch_tokens: int, bos: bool) -> None:
    loaded = loaded_model("llama", bos=bos, dtype=torch.float64)
    found = rows(loaded, samples(), batch_tokens=batch_tokens)
    for row, sample in zip(found, samples(), strict=True):
        loss, count = slow_loss(loaded, sample.response)
        assert list(row) == [column.name for column in RESPONSE_ALONE]
        assert (row["sample_id"], row["digest"], row["response_tokens"]) == (sample.sample_id, sample.digest, count)
        assert row["mean_nll"] == pytest.approx(loss, rel=1e-6)  # the model's norms are in float32


def test_neither_context_nor_instruction_matters() -> None:
    loaded = loaded_model("llama")
    others = [dataclasses.replace(sample, context="", instruction="Other.") for sample in samples()]
    for row, other in zip(rows(loaded, samples()), rows(loaded, others), strict=True):
        assert row["mean_nll"] == other["mean_nll"] and row["digest"] != other["digest"]


def test_the_prompt_is_the_heading_and_the_response() -> None:
    prompt = alone_prompt(tokenizer(), samples()[1], max_length=100)
    assert tokenizer().decode(list(prompt.ids)) == f"<s>### Response: {samples()[1].response}"
    assert prompt.response_span == (len(prompt.prefix), prompt.length)


def test_a_response_without_tokens_or_too_long_is_rejected() -> None:
    chosen = [dataclasses.replace(samples()[0], response=""), samples()[2], samples()[3]]
    length = alone_prompt(tokenizer(), samples()[3], max_length=10_000).length
    empty, short, long = rows(loaded_model("llama"), chosen, max_length=length - 1)
    assert empty == Reject(sample_id="s0", reason="the response has no tokens")
    assert short["sample_id"] == "s2"
    assert long == Reject(
        sample_id="s3", reason=f"the response takes {length} tokens, more than the {length - 1} allowed"
    )


def test_what_does_not_fit_into_memory_is_rejected_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.response_nll
    longest = max(alone_prompt(tokenizer(), sample, max_length=10_000).length for sample in samples())

    def tight(loaded: Any, prompts: Any) -> Any:
        if sum(prompt.length for prompt in prompts) >= longest:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, prompts)

    monkeypatch.setattr(forward, "response_nll", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = rows(loaded_model("llama"), samples(), batch_tokens=2 * longest)
    rejected = [row for row in found if isinstance(row, Reject)]
    assert [(one.sample_id, one.short_of_memory) for one in rejected] == [("s3", True)]
    assert rejected[0].reason.startswith(f"out of memory on a prompt of {longest} tokens")


def test_work_is_charged() -> None:
    asked = running(batch_tokens=100)
    list(response_alone_rows(loaded_model("llama"), samples(), asked))
    assert asked.work.tokens == sum(alone_prompt(tokenizer(), one, max_length=9999).length for one in samples())
    assert asked.work.flops > 0
