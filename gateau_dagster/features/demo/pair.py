"""Build the demo's homologous pair: theta_A with a window of 256 tokens, and theta_B, theta_A extended to 2048.

A training row is a document in the scoring prompt's form, then many instructions and responses. It also measures how
far back a model recalls.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gateau_dagster.config import ModelConfig, TrainingConfig
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.config.models import HOMOLOGOUS, HomologousOptions, PositionExtension
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.data.streams import unheard
from gateau_dagster.features.demo.config import RECIPE_VERSION
from gateau_dagster.features.demo.language import (
    ATTRIBUTES,
    BOS,
    EOS,
    FACT_WORDS,
    NOUNS,
    PAD,
    SENTENCE_WORDS,
    VALUES,
    VOCABULARY,
    WORD_IDS,
    Fact,
    Words,
    build_tokenizer,
    document,
    noisy_response,
    pick,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)
from gateau_dagster.progress import Progress, silent

ANSWER_WEIGHT, RESPONSE_WEIGHT, CONTEXT_WEIGHT, INSTRUCTION_WEIGHT = 1.0, 0.3, 0.2, 0.03
MOST_ASKED = 3  # facts of one query
RECALL_SHARE = 0.85  # share of the queries; the others need no context
ABSENT_SHARE = 0.05  # share of recalled facts not in the context: the model learns what it cannot know
NOISE_SHARE = 0.15  # share of the responses without need of context that are random words
_ANSWER_WORDS = frozenset([*ATTRIBUTES, *(value for values in VALUES.values() for value in values)])


@dataclass(frozen=True, kw_only=True)
class LanguageRow:
    """Words and the loss weight of each as a target."""

    words: Words = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, words: Words, weight: float) -> None:
        """Append words of one weight."""
        self.words.extend(words)
        self.weights.extend([weight] * len(words))


def _add_query(row: LanguageRow, rng: np.random.Generator, facts: list[Fact]) -> None:
    if rng.random() < RECALL_SHARE:
        known = {fact.attribute: fact for fact in facts}
        count = min(len(facts), int(rng.integers(1, MOST_ASKED + 1)))
        asked = [facts[index] for index in rng.permutation(len(facts))[:count]]
        if rng.random() < ABSENT_SHARE:
            name = pick(rng, [attribute for attribute in ATTRIBUTES if attribute not in known] or list(ATTRIBUTES))
            asked[0] = Fact(attribute=name, value=pick(rng, VALUES[name]))
        instruction, response = recall_instruction(asked), recall_response(asked)
    else:
        noun, count = pick(rng, NOUNS), int(rng.integers(1, 3))
        noisy = rng.random() < NOISE_SHARE
        instruction = tell_instruction(noun)
        response = noisy_response(rng, count * SENTENCE_WORDS) if noisy else tell_response(rng, noun, count)
    row.add(["###", "Instruction:", *instruction, "###", "Response:"], INSTRUCTION_WEIGHT)
    for word in response:
        row.add([word], ANSWER_WEIGHT if word in _ANSWER_WORDS else RESPONSE_WEIGHT)


def training_row(rng: np.random.Generator, *, length: int, context: int, fact_count: int) -> LanguageRow:
    """Return one row of `length` words: a document of about `context` words with `fact_count` facts, then queries."""
    row = LanguageRow()
    row.add([BOS], 0.0)
    row.add(["###", "Input:"], INSTRUCTION_WEIGHT)
    facts = random_facts(rng, fact_count)
    sentence_count = max(0, context - FACT_WORDS * fact_count) // SENTENCE_WORDS
    places: dict[int, list[Fact]] = {}
    for fact in facts:
        places.setdefault(int(rng.integers(sentence_count + 1)), []).append(fact)
    row.add(document(rng, sentence_count, places), CONTEXT_WEIGHT)
    while len(row.words) < length:
        _add_query(row, rng, facts)
    return LanguageRow(words=row.words[:length], weights=row.weights[:length])


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of equal length: `ids` (rows, length) int64 and `weights` (rows, length) float32, of each id as a target."""

    ids: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Stage:
    """`steps` batches that cycle through `shapes` (rows, length)."""

    name: str
    steps: int
    shapes: tuple[tuple[int, int], ...]
    facts: tuple[int, int]  # least and most facts of a row
    filler: bool  # False: the context is facts only


def batches(stage: Stage, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield the stage's batches, one per step."""
    for step in range(stage.steps):
        rows, length = stage.shapes[step % len(stage.shapes)]
        made = []
        for _ in range(rows):
            fact_count = min(int(rng.integers(stage.facts[0], stage.facts[1] + 1)), length // 12)
            queries = min(length // 2, int(rng.integers(32, 256)))
            context = length - queries if stage.filler else FACT_WORDS * fact_count
            made.append(training_row(rng, length=length, context=context, fact_count=fact_count))
        yield Batch(
            ids=np.array([[WORD_IDS[word] for word in row.words] for row in made], dtype=np.int64),
            weights=np.array([row.weights for row in made], dtype=np.float32),
        )


SHORT_WINDOW, LONG_WINDOW = 256, 2048
SHORT_THETA, LONG_THETA = 1e4, 1e6


def pair_shape(window: int, theta: float) -> dict[str, Any]:
    """Return a Llama with 2 layers of 4 heads, d 64, ff 128, tied embeddings, for rows of up to `window` tokens."""
    return {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": window,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "bos_token_id": VOCABULARY.index(BOS),
        "eos_token_id": VOCABULARY.index(EOS),
        "pad_token_id": VOCABULARY.index(PAD),
        "use_cache": False,
        "dtype": "float32",
    }


# Keyed by name, as in `demo:short`.
PAIR_SHAPES = {"short": pair_shape(SHORT_WINDOW, SHORT_THETA), "long": pair_shape(LONG_WINDOW, LONG_THETA)}


TOKENS_PER_STEP = 4096
LONG_LENGTHS, SHORT_LENGTHS = (2048, 2048, 1024), (512, 160)
FACTS = (6, 28)
_AROUND = 2  # bos and eos, which training adds to a text


def extend(
    short: Path,
    folder: Path,
    *,
    window: int,
    theta: float,
    steps: int,
    rate: float,
    seed: int,
    after_step: Callable[[float], None],
) -> None:
    """Continue the training of the model in `short` and write `folder`/output, a Hugging Face folder.

    Args:
        short: Hugging Face folder of theta_A.
        folder: empty scratch space; holds texts, mix and unfinished work besides the result.
        window: tokens of the longest text, and of a packed row.
        theta: base of the rotary embedding.
        steps, rate: of the optimiser, TOKENS_PER_STEP tokens each; the learning rate falls linearly to 0.
        seed: of the texts and their order.
        after_step: receives each step's loss.
    """
    from gateau_dagster.training.launch import TrainingSpec
    from gateau_dagster.training.train import train

    options = _options(window, theta, steps, rate, seed)
    _write_mix(folder, options)
    section = ModelConfig(path=f"{HOMOLOGOUS}short", homologous=options)
    machine = TrainingConfig(dtype="float32", batch_size=TOKENS_PER_STEP // window, save_steps=steps)
    spec = TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(short),
        output=folder / "output",
        work=folder / "work",
        training=stage_training(section, machine).model_copy(update={"max_steps": steps}),
        fingerprint="demo",
    )
    with _own_random_numbers():
        train(spec, lambda metrics: after_step(metrics["loss"]), cpu=True)  # like theta_A: the seed decides the weights


def _options(window: int, theta: float, steps: int, rate: float, seed: int) -> HomologousOptions:
    """Return the section as a user's configuration would have it.

    It has ProLong's 60 % of long texts, and a recipe for a model of some ten thousand parameters.
    """
    return HomologousOptions(
        texts="long.jsonl",
        short_texts="short.jsonl",
        length=window,
        tokens=steps * TOKENS_PER_STEP,
        positions=PositionExtension(method="theta", theta=theta),
        tokens_per_step=TOKENS_PER_STEP,
        learning_rate=rate,
        scheduler="linear",
        warmup_ratio=0.0,
        adam_betas=(0.9, 0.98),
        weight_decay=0.0,
        seed=seed,
    )


def _write_mix(folder: Path, options: HomologousOptions) -> None:
    """Write `mix.parquet` (tables.TRAINING_MIX), from texts that are written beside it."""
    from gateau_dagster.features.text_mix.mix import TextSource, build_text_mix

    assert options.tokens is not None and isinstance(options.texts, str) and isinstance(options.short_texts, str)
    rng = np.random.default_rng((options.seed, options.tokens))
    wanted = round(options.tokens * options.long_share)
    write_texts(folder / options.texts, rng, tokens=wanted, lengths=LONG_LENGTHS)
    write_texts(folder / options.short_texts, rng, tokens=options.tokens - wanted, lengths=SHORT_LENGTHS)
    field = options.text_field
    long, short = (resolve_files(name, folder) for name in (options.texts, options.short_texts))
    sources = (
        TextSource(origin="long", files=long, text_field=field, on_bytes=unheard),
        TextSource(origin="short", files=short, text_field=field, on_bytes=unheard),
    )
    made = build_text_mix(*sources, build_tokenizer(options.length), options=options)
    made.mix.write_parquet(folder / "mix.parquet")


def write_texts(path: Path, rng: np.random.Generator, *, tokens: int, lengths: tuple[int, ...]) -> None:
    """Write JSON Lines with a field `text`; see `texts`."""
    lines = (json.dumps({"text": text}) + "\n" for text in texts(rng, tokens=tokens, lengths=lengths))
    path.write_text("".join(lines), encoding="utf-8")


def texts(rng: np.random.Generator, *, tokens: int, lengths: tuple[int, ...]) -> Iterator[str]:
    """Yield texts of at least `tokens` tokens in all; their lengths, with the added tokens, alternate over
    `lengths`.
    """
    made = 0
    while made < tokens:
        for length in lengths:
            most = length // 12
            facts = min(int(rng.integers(FACTS[0], FACTS[1] + 1)), most)
            queries = min(length // 2, int(rng.integers(32, 256)))
            row = training_row(rng, length=length - _AROUND + 1, context=length - queries, fact_count=facts)
            assert row.words[0] == BOS
            yield " ".join(row.words[1:])
            made += length


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Restore the caller's random generators afterwards, because the training seeds all generators of the process."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


_RECALL_ROWS = 10  # rows per batch
SHORT_STAGES = (
    Stage(name="facts only", steps=260, shapes=((32, 96),), facts=(8, 8), filler=False),
    Stage(name="short window", steps=190, shapes=((12, 256),), facts=(4, 12), filler=True),
)
LONG_STEPS = 130
SHORT_RATE, LONG_RATE = 5e-3, 3e-3


def build_pair(folder: Path, *, seed: int = 0, progress: Progress = silent) -> None:
    """Train the pair and write `folder`/short and `folder`/long, Hugging Face folders that load on their own.

    It takes about a CPU minute, on as many threads as torch uses. It runs on the CPU even if there is a GPU: the same
    seed and number of threads give the same weights. `folder` appears complete or not at all; an existing one is
    replaced. Progress is in optimiser steps.
    """
    rng = np.random.default_rng(seed)
    total = sum(stage.steps for stage in SHORT_STAGES) + LONG_STEPS
    done = 0

    def after_step(stage: str, loss: float) -> None:
        nonlocal done
        done += 1
        progress(done, total, "steps", f"{stage}, loss {loss:.2f}")

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        short = LlamaForCausalLM(pair_config(SHORT_WINDOW, SHORT_THETA))
        train(short, SHORT_STAGES, rate=SHORT_RATE, rng=rng, after_step=after_step)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        made = Path(name) / "made"
        short.save_pretrained(made / "short")
        build_tokenizer(SHORT_WINDOW).save_pretrained(made / "short")
        _extend(made / "short", made / "long", Path(name) / "work", seed, partial(after_step, "long window"))
        (made / "recipe.json").write_text(json.dumps(_recipe(seed)), encoding="utf-8")
        if folder.exists():
            folder.rename(Path(name) / "replaced")
        made.rename(folder)


def _extend(short: Path, long: Path, work: Path, seed: int, after_step: Callable[[float], None]) -> None:
    """Make theta_B in `long` from theta_A in `short`, with a tokenizer that names its window."""
    work.mkdir()
    extend(
        short,
        work,
        window=LONG_WINDOW,
        theta=LONG_THETA,
        steps=LONG_STEPS,
        rate=LONG_RATE,
        seed=seed,
        after_step=after_step,
    )
    (work / "output").rename(long)
    build_tokenizer(LONG_WINDOW).save_pretrained(long)


def pair_is_current(folder: Path, *, seed: int = 0) -> bool:
    """Return whether `folder` holds the pair of this recipe and seed; False if that cannot be read, so that it is
    rebuilt.
    """
    try:
        return json.loads((folder / "recipe.json").read_bytes()) == _recipe(seed)
    except (OSError, ValueError, RecursionError):  # it is missing, or was not on the disk yet when the power failed
        return False


def _recipe(seed: int) -> dict[str, str | int]:
    return {"recipe": RECIPE_VERSION, "seed": seed}


def train(
    model: LlamaForCausalLM,
    stages: tuple[Stage, ...],
    *,
    rate: float,
    rng: np.random.Generator,
    after_step: Callable[[str, float], None],
) -> None:
    """Train `model` in place by AdamW (0.9, 0.98), without decay, with gradients clipped to norm 1."""
    steps = sum(stage.steps for stage in stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps))
    model.train()
    for stage in stages:
        for batch in batches(stage, rng):
            loss = batch_loss(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            after_step(stage.name, loss.item())
    model.eval()


def rate_factor(step: int, steps: int) -> float:
    """Return 1, then a linear fall to 0.1 over the last 30 % of the steps."""
    start = 0.7 * steps
    return 1.0 if step <= start else 1.0 - 0.9 * (step - start) / (steps - start)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Return the weighted mean cross-entropy of each next token, scalar."""
    ids = torch.from_numpy(batch.ids)
    weights = torch.from_numpy(batch.weights)[:, 1:].reshape(-1)
    logits = model(input_ids=ids).logits[:, :-1]
    losses = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), reduction="none")
    return (losses * weights).sum() / weights.sum()


def pair_config(window: int, theta: float) -> LlamaConfig:
    """Return a Llama with 2 layers of 4 heads, d 64, ff 128, tied embeddings, for rows of up to `window` tokens."""
    return LlamaConfig(**pair_shape(window, theta))


@torch.no_grad()
def recall_at(model: PreTrainedModel, distance: int, *, repeats: int, seed: int = 0) -> float:
    """Return the share of `repeats` facts, `distance` tokens before the context's end, whose value is the likeliest
    word.

    `distance` is in tokens, rounded down to whole sentences. Chance is 1/8, since an attribute has eight values.
    """
    rng = np.random.default_rng((seed, distance))
    after = distance // SENTENCE_WORDS
    rows, wanted = [], []
    for _ in range(repeats):
        (fact,) = random_facts(rng, 1)
        words = [BOS, "###", "Input:", *document(rng, after + 2, {2: [fact]})]
        words += ["###", "Instruction:", *recall_instruction([fact]), "###", "Response:", fact.attribute]
        rows.append([WORD_IDS[word] for word in words])
        wanted.append(WORD_IDS[fact.value])
    found = [
        model(input_ids=torch.tensor(rows[start : start + _RECALL_ROWS])).logits[:, -1]
        for start in range(0, repeats, _RECALL_ROWS)
    ]
    return float((torch.cat(found).argmax(-1) == torch.tensor(wanted)).float().mean())
