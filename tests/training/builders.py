"""A tiny Llama, its tokenizer, a ragged training mix, and specifications of trainings on them."""

import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from gateau_dagster.config.training import WEIGHING, TrainingConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.storage.parquet import read_local
from gateau_dagster.tables import TRAINING_MIX, WEIGHTED_MIX, schema
from gateau_dagster.training.batch_plan import PLAN_COLUMNS, BatchPlan, MixDocument, plan_batches
from gateau_dagster.training.dataset import MixRows, TrainingDocument
from gateau_dagster.training.encode import IGNORED, Encoded
from gateau_dagster.training.launch import MODULE, TrainingSpec, training_command, training_environment
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.train import plan_of, read_mix, train
from tests.kit.process_list import descendants
from tests.kit.tiny_models import CHAT_TEMPLATE, model_config

VOCABULARY = 300


@cache
def tokenizer(bos: bool = True, eos: bool = True, chat: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte-level BPE; spells any text exactly."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(  # pyright: ignore
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["### Input: the ### Instruction: what ### Response: the answer is " * 9], trainer)
    options: dict[str, Any] = ({"bos_token": "<s>"} if bos else {}) | ({"eos_token": "</s>"} if eos else {})
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    fast.chat_template = chat
    return fast


def save_model(folder: Path, *, tied: bool = False) -> Path:
    """A randomly initialised Llama with 32 dimensions, and the tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_mix(path: Path, *, rows: int = 11, longest: int = 40, weighted: bool = False) -> Path:
    """Ragged sequences with loss on a random share of the tokens; the first label counts in none but is set in some.
    `weighted`: tokens of long samples have weights of their own."""
    rng, of_weights = np.random.default_rng(7), np.random.default_rng(8)
    kind = WEIGHTED_MIX if weighted else TRAINING_MIX
    columns: dict[str, list[Any]] = {column.name: [] for column in kind}
    for row in range(rows):
        length = int(rng.integers(8, longest + 1)) if row else longest
        ids = rng.integers(5, VOCABULARY, length).astype(np.int32)
        labels = np.where(np.arange(length) >= rng.integers(0, length - 2), ids, IGNORED).astype(np.int32)
        labels[0] = ids[0] if row % 2 else IGNORED
        origin = "long" if row % 3 else "short"
        values = {
            "position": row,
            "sample_id": f"sample-{row}",
            "origin": origin,
            "source": f"{origin} data",
            "input_ids": ids,
            "labels": labels,
            "block_tokens": [2, 1, length - 5, 2],
            "truncated_tokens": 0,
            "weights": (of_weights.uniform(0, 5, length) if row % 3 else np.ones(length)).astype(np.float32),
        }
        for name, column in columns.items():
            column.append(values[name])
    pl.DataFrame(columns, schema=schema(kind)).write_parquet(path)
    return path


def make_plan(lengths: list[int], **changes: Any) -> BatchPlan:
    """Two epochs of padded rows, two a micro batch, one process unless told otherwise."""
    settings: dict[str, Any] = {
        "batching": "padded",
        "epochs": 2.0,
        "max_steps": None,
        "rows_per_batch": 2,
        "accumulation": 2,
        "processes": 1,
        "pack_length": None,
        "balanced": False,
        "seed": 1,
    }
    return plan_batches(lengths, **settings | changes)


def read_plan(path: Path) -> BatchPlan:
    """Return the plan that `write_plan` wrote: the documents by the place of their row."""
    table, metadata = read_local(path)
    sizes = json.loads(metadata[b"gateau_batch_plan"])
    accumulation, processes, per_batch = (sizes[name] for name in ("accumulation", "processes", "rows_per_batch"))
    rows: list[list[MixDocument]] = [[] for _ in range(sizes["steps"] * accumulation * processes * per_batch)]
    for step, passed, rank, row, _, mix_row, epoch in table.select(PLAN_COLUMNS).iter_rows():
        place = (((step - 1) * accumulation + passed) * processes + rank) * per_batch + row
        rows[place].append(MixDocument(row=mix_row, epoch=epoch))
    return BatchPlan(rows=tuple(map(tuple, rows)), **sizes)


def make_spec(
    folder: Path, *, name: str = "run", deepspeed: dict[str, Any] | None = None, **training: Any
) -> TrainingSpec:
    """A training in `folder`, whose model and mix are made once; float32 and four epochs unless told otherwise."""
    if not (folder / "base").exists():
        save_model(folder / "base")
        save_mix(folder / "mix.parquet", weighted=training.get("loss") in WEIGHING)
    settings = {
        "dtype": "float32",
        "epochs": 2.0,
        "learning_rate": 5e-3,
        "gradient_accumulation": 2,
        "batch_size": 2,
        "warmup_ratio": 0.1,
        "save_steps": 3,
        "max_length": 64,
    }
    return TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(folder / "base"),
        output=folder / name / "checkpoint",
        work=folder / name / "work",
        training=TrainingConfig.model_validate(settings | {"deepspeed": deepspeed} | training),
        fingerprint="fingerprint",
        deepspeed=deepspeed,
    )


SAMPLE = Sample(
    sample_id="a", source="s", context="the harbour ledger", instruction="what is it?", response="the answer is 17"
)
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what?"},
    {"role": "assistant", "content": "the answer"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "it is"},
    {"role": "user", "content": "nobody answers this"},
]
LONG = 10_000


def learned(tokens: PreTrainedTokenizerFast, encoded: Encoded) -> list[str]:
    """The texts of the runs of tokens with loss."""
    runs: list[list[int]] = []
    previous = IGNORED
    for token, label in zip(encoded.input_ids, encoded.labels, strict=True):
        assert label in (IGNORED, token)
        if label != IGNORED:
            if previous == IGNORED:
                runs.append([])
            runs[-1].append(int(token))
        previous = label
    return [str(tokens.decode(run)) for run in runs]


LENGTHS = (5, 40, 40, 1, 63)
WINDOW = 16  # of models with sliding windows: less than the longest documents

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW},  # soft caps on scores and logits
    "gemma3_text": {"sliding_window": WINDOW},  # windows in some layers
    "gpt_oss": {"sliding_window": WINDOW, "dtype": torch.float32},  # sinks; experts have no float64 kernel
    "mixtral": {"sliding_window": None, "num_experts_per_tok": 2, "dtype": torch.float32},  # router with gradients
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},  # learned positions
}

Outcome = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Logits [T, V], and the gradient of every parameter."""


def make_model(kind: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A random model with two layers in training mode."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter)
    return model.train()


def make_row(
    lengths: tuple[int, ...] = LENGTHS, *, skips: bool, seed: int = 0, vocabulary: int = 400
) -> dict[str, Any]:
    """A collated row: each document's first label and some others do not count; with `skips`, positions jump."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(5, vocabulary, (1, total), generator=generator)
    labels = ids.masked_fill(torch.rand(1, total, generator=generator) < 0.4, IGNORED)
    positions, begin = [], 0
    for length in lengths:
        labels[0, begin] = IGNORED
        begin += length
        steps = torch.ones(length, dtype=torch.int64)
        if skips:
            jumps = torch.rand(length, generator=generator) < 0.1
            steps += jumps * torch.randint(1, 90, (length,), generator=generator)
            steps[0] = torch.randint(1, 30, (1,), generator=generator)
        positions.append(steps.cumsum(0) - 1)
    borders = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.cat(positions)[None],
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def document_numbers(row: dict[str, Any]) -> torch.Tensor:
    """Which document each token is of: int64 [T]."""
    lengths = row["cu_seq_lens_q"].diff().long()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def documents(row: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The row's documents, each a batch of its own, `labels` included."""
    names = ("input_ids", "labels", "position_ids")
    borders = row["cu_seq_lens_q"].tolist()
    return [{name: row[name][:, begin:end] for name in names} for begin, end in pairwise(borders)]


def explicit_mask(
    numbers: torch.Tensor, *, window: int | None, chunk: int | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """What eager attention adds to its scores, [1, 1, T, T]: token by token, from the definition."""
    total = len(numbers)
    mask = torch.full((1, 1, total, total), torch.finfo(dtype).min, dtype=dtype)
    first = [numbers.tolist().index(number) for number in numbers.tolist()]
    for query in range(total):
        for key in range(first[query], query + 1):
            near = window is None or query - key < window
            if near and (chunk is None or (query - first[query]) // chunk == (key - first[key]) // chunk):
                mask[0, 0, query, key] = 0
    return mask


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Take the gradients off the model, and return those of all parameters that have one."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Between two models' gradients, as a part of the largest of each parameter's."""
    assert one.keys() == other.keys()
    assert one
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max().clamp_min(1e-6)) for name in one)


def own_mask(model: PreTrainedModel, numbers: torch.Tensor) -> Any:
    """An explicit mask for eager attention, one for each kind of layer where there are several."""
    config: Any = model.config
    dtype = model.dtype
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return explicit_mask(numbers, window=window, dtype=dtype)
    masks = {
        "full_attention": explicit_mask(numbers, window=None, dtype=dtype),
        "sliding_attention": explicit_mask(numbers, window=window, dtype=dtype),
    }
    return {kind: masks[kind] for kind in kinds} if len(set(kinds)) > 1 else masks[kinds[0]]


def expected(kind: str, row: dict[str, Any], **changes: Any) -> Outcome:
    """Logits [T, V] and gradients of the mean log-probability of the labels, by eager attention and a full mask."""
    model = make_model(kind, **changes)
    model.set_attn_implementation("eager")
    mask = own_mask(model, document_numbers(row))
    logits = model(
        input_ids=row["input_ids"], position_ids=row["position_ids"], attention_mask=mask, use_cache=False
    ).logits[0]
    plain_loss(logits, row["labels"][0]).backward()
    return logits.detach(), gradients(model)


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:-1], labels[1:])


def check_row(model: PreTrainedModel, row: dict[str, Any], wanted: Outcome) -> None:
    """Logits and gradients of `model`, which attends within documents, are those that are `wanted`."""
    logits = model(**{name: value for name, value in row.items() if name != "labels"}).logits[0]
    # Norms and rotary embeddings compute parts in float32 in a float64 model.
    assert torch.allclose(logits, wanted[0], atol=2e-5, rtol=2e-5)
    plain_loss(logits, row["labels"][0]).backward()
    assert largest_difference(gradients(model), wanted[1]) <= 2e-5


ROOT = Path(__file__).parents[2]


def start(spec: TrainingSpec, path: Path, **environment: str) -> subprocess.Popen[str]:
    """The training in processes of its own, as Dagster starts it; `path`: where its specification is kept."""
    spec.save(path)
    training = spec.training
    command = training_command(
        path,
        processes=training.processes,
        deepspeed=spec.deepspeed is not None,
        launcher=training.launcher,
        hostfile=spec.hostfile,
    )
    added = training_environment(processes=training.processes, cuda=False)
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **added, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[str], *, status: int = 0) -> str:
    """What it wrote; it has to end with `status`."""
    output = process.communicate(timeout=500)[0]
    assert process.returncode == status, output
    return output


def wait_for_step(spec: TrainingSpec, process: subprocess.Popen[str], step: int) -> None:
    """Return as soon as the training has logged `step`."""
    wait_until(lambda: any(metrics["step"] >= step for metrics in read_log(spec.log)), process)


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Return as soon as it happened; the training may not end before."""
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def rank_process(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    """The process of one rank, below the launcher."""
    for child in descendants(process.pid, MODULE):
        if child.environ().get("RANK") == str(rank):
            return child
    raise AssertionError(f"rank {rank} does not run")


def weights_differ(one: TrainingSpec, other: TrainingSpec) -> float:
    """Largest absolute difference between two results."""
    first, second = (load_file(spec.output / "model.safetensors") for spec in (one, other))
    assert first.keys() == second.keys()
    return max(float((first[name].float() - second[name].float()).abs().max()) for name in first)


def agree(spec: TrainingSpec, other: TrainingSpec, *, loss: float = 1e-5, weights: float = 1e-4) -> None:
    """Both have the same loss curve and the same weights, up to these differences."""
    got, wanted = ([step["loss"] for step in log_of(each)] for each in (spec, other))
    assert got == pytest.approx(wanted, abs=loss, rel=0)
    assert weights_differ(spec, other) <= weights


def run(spec: TrainingSpec, *, stop_at: int | None = None) -> list[dict[str, Any]]:
    """Train in this process; return the steps that were reported. `stop_at`: interrupted when this one is."""
    steps: list[dict[str, Any]] = []

    def report(metrics: dict[str, Any]) -> None:
        steps.append(metrics)
        if metrics["step"] == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if stop_at else nullcontext():
        train(spec, report)
    return steps


def poisoned(spec: TrainingSpec) -> TrainingSpec:
    """Sample 7 alone holds a token whose embedding is no number."""
    weights = load_file(Path(spec.base_model) / "model.safetensors")
    weights["model.embed_tokens.weight"][299] = math.nan
    save_file(weights, Path(spec.base_model) / "model.safetensors", metadata={"format": "pt"})
    mix = pl.read_parquet(spec.mix)
    ids = [[5 if token == 299 else token for token in row] for row in mix["input_ids"].to_list()]
    ids[7][2] = 299
    mix.with_columns(pl.Series("input_ids", ids, dtype=pl.List(pl.Int32()))).write_parquet(spec.mix)
    return spec


def compare_with_loop(spec: TrainingSpec, *, weights: float = 1e-4) -> list[float]:
    """The losses, to 1e-5 those of the slow loop; the norms before clipping, which would hide a factor in the
    gradient, to 1e-4 of each; the final weights."""
    losses, norms, wanted = slow_training(spec)
    log = read_log(spec.log)
    assert [step["loss"] for step in log] == pytest.approx(losses, abs=1e-5, rel=0)
    assert [step["grad_norm"] for step in log] == pytest.approx(norms, rel=1e-4)
    trained = load_file(spec.output / "model.safetensors")
    assert trained.keys() == wanted.keys()
    differences = {name: float((trained[name] - wanted[name]).abs().max()) for name in trained}
    assert max(differences.values()) <= weights, differences
    return losses


def result_of(spec: TrainingSpec) -> dict[str, Any]:
    """The output's training_log.json."""
    return json.loads((spec.output / "training_log.json").read_text())


def log_of(spec: TrainingSpec) -> list[dict[str, Any]]:
    """Its steps."""
    return result_of(spec)["steps"]


Weights = dict[str, torch.Tensor]


def slow_training(spec: TrainingSpec) -> tuple[list[float], list[float], Weights]:
    """Loss and gradient norm of every step, and the final weights, float32. What a step learns from, and the positions,
    are the plan's."""
    training = spec.training
    assert training.scheduler == "linear"
    mix = read_mix(spec.mix, weighted=training.weighs_in_mix)
    plan = plan_of(spec, mix)
    rows = MixRows(mix, plan, skip=training.skip, seed=training.seed)
    if training.loss == "exact":
        mix = mix.with_columns(weights=pl.Series(slow_prefix_weights(mix, least=training.row_tokens // 4)))
    model: Any = AutoModelForCausalLM.from_pretrained(spec.base_model, dtype=torch.float32).train()
    model.config.max_position_embeddings = rows.farthest
    groups = decayed_or_not(model, training.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=0.0, betas=training.adam_betas, eps=1e-8)
    warmup = math.ceil(training.warmup_ratio * plan.steps)
    losses, norms = [], []
    for step in range(plan.steps):
        rising, falling = step / max(1, warmup), (plan.steps - step) / (plan.steps - warmup)
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (rising if step < warmup else falling)
        of_step = plan.rows[step * plan.rows_per_step : (step + 1) * plan.rows_per_step]
        whole = training.batching == "concatenated"
        parts = [part for row in of_step for part in row_losses(model, [rows._document(each) for each in row], whole)]
        if training.loss == "sequence":
            loss = sum(nll.mean() for nll in parts) / len(parts)
        elif training.loss in {"longce", "far_gain", "exact"}:
            weights = [each for row in of_step for document in row for each in trained_weights(mix, document.row)]
            nlls = [nll for part in parts for nll in part]
            if training.loss == "far_gain":
                weights = [weight * len(nlls) / sum(weights) for weight in weights]
                assert sum(weights) == pytest.approx(len(nlls))
            loss = sum(weight * nll for weight, nll in zip(weights, nlls, strict=True)) / len(nlls)
        else:
            loss = sum(nll.sum() for nll in parts) / sum(nll.numel() for nll in parts)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)))
        optimiser.step()
        optimiser.zero_grad()
    return losses, norms, {name: value.detach() for name, value in model.named_parameters()}


def slow_prefix_weights(mix: pl.DataFrame, *, least: int) -> list[list[float]]:
    """EXACT's weight of every token: w_b = 1 + 0.15 r_b / mean r, r_b = q_b ** -0.5, over the trained tokens that have
    at least so many before them."""

    def bucket(before: int) -> int:
        begin = 0
        while before >= (begin * 2 or 8):
            begin = begin * 2 or 8
        return begin

    trained = [
        bucket(before)
        for labels in mix["labels"].to_list()
        for before, label in enumerate(labels)
        if before > 0 and label != IGNORED and bucket(before) >= least
    ]
    rarity = {begin: (trained.count(begin) / len(trained)) ** -0.5 for begin in {*trained}}
    mean = sum(rarity[begin] for begin in trained) / len(trained)
    weights = {begin: 1 + 0.15 * value / mean for begin, value in rarity.items()}
    assert sum(weights[begin] - 1 for begin in trained) == pytest.approx(0.15 * len(trained))
    return [[weights.get(bucket(before), 1.0) for before in range(length)] for length in mix["labels"].list.len()]


def trained_weights(mix: pl.DataFrame, row: int) -> list[float]:
    """Return the weights of a document's trained tokens, in order."""
    (found,) = mix.filter(pl.col("position") == row).iter_rows(named=True)
    return [
        weight
        for at, (label, weight) in enumerate(zip(found["labels"], found["weights"], strict=True))
        if at > 0 and label != IGNORED
    ]


def row_losses(model: torch.nn.Module, documents: list[TrainingDocument], whole: bool) -> list[torch.Tensor]:
    """`document_loss` of each document; `whole`: all of them are read as one sequence."""
    if not whole or not documents:
        return [document_loss(model, each) for each in documents]
    ids, labels = (torch.cat([getattr(each, name) for each in documents]) for name in ("input_ids", "labels"))
    sequence = TrainingDocument(row=-1, input_ids=ids, labels=labels, positions=torch.arange(len(ids)))
    trained = [sum(label != IGNORED for label in each.labels.tolist()) for each in documents]
    return list(document_loss(model, sequence).split(trained))


def document_loss(model: torch.nn.Module, document: TrainingDocument) -> torch.Tensor:
    """-log P of every trained token, float32 [trained tokens]."""
    ids = document.input_ids[None]
    # With a mask of ones transformers leaves the attention of a single document whole, whatever its positions.
    output = model(
        input_ids=ids, position_ids=document.positions[None], attention_mask=torch.ones_like(ids), use_cache=False
    )
    log_probabilities = torch.log_softmax(output.logits[0], -1)
    trained = [at for at in range(1, ids.shape[1]) if document.labels[at] != IGNORED]
    return torch.stack([-log_probabilities[at - 1, document.input_ids[at]] for at in trained])


def decayed_or_not(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """As the Trainer does: norms are not decayed."""
    norms = [value for name, value in model.named_parameters() if "norm" in name]
    others = [value for name, value in model.named_parameters() if "norm" not in name]
    return [{"params": others, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]
