"""A random Llama of one layer over the synthetic language's words, samples in that language, tables of benchmarks."""

import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.evaluation.benchmark import Materials, Question
from gateau_dagster.features.evaluation.benchmarks.heldout import HELDOUT
from gateau_dagster.features.evaluation.benchmarks.needle import NEEDLE
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.models.loaded import LoadedModel
from tests.kit.project import configured

WORDS = ("the", "note", "recall", ".", "of")


@cache
def loaded(seed: int = 0) -> LoadedModel:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(512)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return LoadedModel(model=model, tokenizer=tokenizer, window=512, device=torch.device("cpu"), name=f"tiny-{seed}")


def vocabulary() -> list[str]:
    """Every ordinary word, in order of id."""
    words = loaded().tokenizer.get_vocab()
    return [word for word in sorted(words, key=words.__getitem__) if word.isalnum()]


def sample(index: int, *, context: int, response: int = 4) -> Sample:
    rng = random.Random(index)
    words = vocabulary()
    texts = [" ".join(rng.choices(words, k=count)) for count in (context, 3, response)]
    return Sample(sample_id=f"s{index:02d}", source="test", context=texts[0], instruction=texts[1], response=texts[2])


def slow_nll(model: LoadedModel, one: Sample, max_length: int = sys.maxsize) -> float:
    """Mean NLL of the response: the prompt written down from the design's formula, the whole matrix of logits."""
    parts = ["### Input: ", one.context, f"\n\n### Instruction: {one.instruction}\n\n### Response: ", one.response]
    before, context, after, response = (model.tokenizer.encode(part, add_special_tokens=False) for part in parts)
    bos = [model.tokenizer.bos_token_id]
    while len(bos + before + context + after + response) > max_length:
        context = context[1:]
    ids = torch.tensor([bos + before + context + after + response])
    with torch.no_grad():
        logits = model.model(input_ids=ids).logits[0].double()
    start = ids.shape[1] - len(response)
    return -sum(torch.log_softmax(logits[start + i - 1], -1)[t].item() for i, t in enumerate(response)) / len(response)


def heldout_table() -> pl.DataFrame:
    """`evaluation/heldout`: one range and all; the checkpoint is better by 1."""
    rows = [
        (bucket, model, 3, math.log(ppl), ppl)
        for bucket, base in (("0–512", 4.0), ("all", 5.0))
        for model, ppl in (("base", base), ("checkpoint", base - 1))
    ]
    return pl.DataFrame(rows, schema=tables.schema(HELDOUT), orient="row")


def needle_table() -> pl.DataFrame:
    """`evaluation/needle`: a grid of two lengths and two depths."""
    rows = [
        (model, length, depth, 2, accuracy, 0.7)
        for model, accuracy in (("base", 0.25), ("checkpoint", 0.75))
        for length in (512, 1024)
        for depth in (0.0, 1.0)
    ]
    return pl.DataFrame(rows, schema=tables.schema(NEEDLE), orient="row")


# What benchmarks that are scored are given in tests: files, answers, materials.


def write_jsonl(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


JUDGE = {"base_url": "http://localhost/v1", "model": "judge", "key": None}


def project(folder: Path, *names: str, judge: Any = None, **options: Any) -> Config:
    """A project in `folder` that asks for these benchmarks, all with these options."""
    sections = {"benchmarks": [*names], **dict.fromkeys(names, options), **({} if judge is None else {"judge": judge})}
    return configured(evaluation=sections).model_copy(update={"folder": folder})


def chosen(config: Config) -> Any:
    """The benchmark that runs."""
    (found,) = scored_benchmarks(config).values()
    return found


def materials(
    config: Config,
    *,
    model: Callable[[str], LoadedModel] | None = None,
    tables_of: Mapping[str, pl.DataFrame] | None = None,
) -> Materials:
    """`tables_of`: what may be read, by asset."""
    known = tables_of or {}

    def shards(asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        yield known[asset].select(columns)

    def none(name: str) -> LoadedModel:
        raise AssertionError(f"the model {name} is not needed")

    return Materials(config=config, reads={*known}, shards=shards, samples=lambda _: (), model=model or none)


def answers(said: Mapping[str, str | Sequence[str]]) -> pl.DataFrame:
    """tables.ANSWERS: by question, what was answered to its first turn, or to each."""
    rows = [
        (question, turn, "", "", answer, 1, 0, 1, "stop", 0.0)
        for question, given in said.items()
        for turn, answer in enumerate([given] if isinstance(given, str) else given)
    ]
    return pl.DataFrame(rows, schema=tables.schema(tables.ANSWERS), orient="row")


def values(config: Config, questions: Sequence[Question], said: Mapping[str, str]) -> dict[str, float]:
    """Return the values of the answers, by question."""
    graded = chosen(config).grade(questions, answers(said), None)
    assert graded.table.schema == tables.schema(tables.SCORES)
    return dict(graded.table.select("question_id", "value").iter_rows())


def asked(config: Config, given: Materials | None = None) -> list[Question]:
    """The benchmark's questions; their ids are unique."""
    found = [*chosen(config).questions(given or materials(config))]
    assert len({each.question_id for each in found}) == len(found)
    return found


def digests(config: Config, name: str, given: Materials | None = None) -> dict[str, str]:
    """Return the digests of a benchmark's questions by their ids: answers to equal ones are shared."""
    benchmark: Any = scored_benchmarks(config)[name]
    return {each.question_id: each.digest for each in benchmark.questions(given or materials(config))}
