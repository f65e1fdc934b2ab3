"""Ratings and sentence embeddings against plain loops over each text alone."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.methods.car import EMBEDDING, QUALITY
from gateau_dagster.methods.pre_experience import INSTRUCTION_EMBEDDING
from gateau_dagster.models import memory
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.memory import TokenBudget
from gateau_dagster.scoring import cherry_selection
from gateau_dagster.scoring.cherry_selection import instruction_embedding_rows
from gateau_dagster.scoring.text_models import (
    Batch,
    ReadText,
    embedding_rows,
    padded,
    quality_rows,
    read_text,
    read_texts,
)
from tests.kit.error_codes import refused
from tests.kit.tiny_models import encoder, exact_encoder, loaded_model, samples, save_encoder, text
from tests.scoring.builders import running


def rows(loaded: LoadedModel, chosen: list[Sample], batch_tokens: int = 400, **options: Any) -> list[dict[str, Any]]:
    asked = {"label": None, "as_pair": False} | options
    found = list(quality_rows(loaded, chosen, running(batch_tokens=batch_tokens), **asked))
    assert not any(isinstance(one, Reject) for one in found)
    return [dict(one) for one in found]  # pyright: ignore


def slow_logits(loaded: LoadedModel, sample: Sample, as_pair: bool = False) -> list[float]:
    """Return the logits of the text alone, without padding."""
    texts = [sample.instruction, sample.response] if as_pair else [f"{sample.instruction}\n{sample.response}"]
    tokenize: Any = loaded.tokenizer
    given = tokenize(*texts, return_tensors="pt", truncation=True, max_length=loaded.window)
    given = {name: one for name, one in given.items() if name != "token_type_ids" or as_pair}
    return loaded.model(**given).logits[0].double().tolist()


@pytest.mark.parametrize(("kind", "as_pair"), [("bert", False), ("bert", True), ("roberta", False), ("llama", False)])
@pytest.mark.parametrize("batch_tokens", [1, 150, 10_000])
def test_a_text_is_rated_as_alone_whatever_stands_beside_it(
    kind: str, as_pair: bool, batch_tokens: int, tmp_path: Path
) -> None:
    loaded, close = exact_encoder(tmp_path, kind, "reward", window=64)
    found = rows(loaded, samples(), batch_tokens, as_pair=as_pair)
    for row, sample in zip(found, samples(), strict=True):
        assert list(row) == [column.name for column in QUALITY]
        assert (row["sample_id"], row["digest"]) == (sample.sample_id, sample.digest)
        assert row["quality"] == pytest.approx(slow_logits(loaded, sample, as_pair)[0], abs=close)
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

    with refused("models.reward", match="has 2 outputs"):
        next(quality_rows(loaded, never(), running(), label=None, as_pair=False))


def slow_embedding(loaded: LoadedModel, sample: Sample, weighted: bool = False) -> list[float]:
    given = loaded.tokenizer(
        f"{sample.instruction}\n{sample.response}", return_tensors="pt", truncation=True, max_length=loaded.window
    )
    states = loaded.model(input_ids=given["input_ids"]).last_hidden_state[0].double().tolist()
    shares = [place / sum(range(1, len(states) + 1)) for place in range(1, len(states) + 1)]
    if not weighted:
        shares = [1 / len(states)] * len(states)
    mean = [math.fsum(map(math.prod, zip(values, shares, strict=True))) for values in zip(*states, strict=True)]
    norm = math.sqrt(math.fsum(value * value for value in mean))
    return [value / norm for value in mean]


@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
@pytest.mark.parametrize(("batch_tokens", "weighted"), [(1, False), (10_000, False), (10_000, True)])
def test_an_embedding_is_that_of_the_text_alone(kind: str, batch_tokens: int, weighted: bool, tmp_path: Path) -> None:
    loaded, close = exact_encoder(tmp_path, kind, "embedding", window=48)
    asked = running(batch_tokens=batch_tokens)
    found: list[Any] = list(embedding_rows(loaded, samples(), asked, weighted=weighted))
    for row, sample in zip(found, samples(), strict=True):
        assert not isinstance(row, Reject) and list(row) == [column.name for column in EMBEDDING]
        assert row["embedding"] == pytest.approx(slow_embedding(loaded, sample, weighted), abs=close)
        assert math.fsum(value * value for value in row["embedding"]) == pytest.approx(1, rel=1e-12)
        assert row["digest"] == sample.digest


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
    own, loaded = cherry_selection._means, loaded_model("llama")
    want = embedded(samples(), loaded=loaded)
    lengths = sorted(row["prompt_tokens"] for row in want)

    def tight(loaded: Any, documents: Any) -> Any:
        if sum(map(len, documents)) > lengths[-2]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(loaded, documents)

    monkeypatch.setattr(cherry_selection, "_means", tight)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # takes a third of a second
    found = embedded(samples(), loaded=loaded)
    for row, other in zip(found, want, strict=True):
        if other["prompt_tokens"] == lengths[-1]:
            assert isinstance(row, Reject) and row.short_of_memory and f"of {lengths[-1]} tokens" in row.reason
        else:
            assert row["embedding"] == pytest.approx(other["embedding"], abs=1e-5)
    assert TokenBudget(loaded.model, 10_000).tokens <= lengths[-2]


def embedded(chosen: list[Any], max_length: int = 2048, loaded: LoadedModel | None = None) -> list[Any]:
    asked = running(max_length, batch_tokens=10_000)
    return list(instruction_embedding_rows(loaded or loaded_model("llama"), chosen, asked))
