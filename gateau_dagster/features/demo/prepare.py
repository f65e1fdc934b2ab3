"""Define the demo: its configuration, which is used when the user gives none, its samples and its conversations.

Of the five kinds of long samples it is known whether they need the far context. Samples and conversations are written
immediately, the pair when a model is first needed.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl

from gateau_dagster.config import Config, ModelConfig, ScoringConfig, SelectionConfig, TrainingConfig
from gateau_dagster.config.inputs import LongSftConfig, ShortChatConfig
from gateau_dagster.config.models import PositionExtension
from gateau_dagster.features.demo.config import DEMO_SCHEME, PAIR_FOLDER, SECTION, DemoConfig, demo_folder, demo_shape
from gateau_dagster.features.demo.language import (
    ATTRIBUTES,
    NOUNS,
    SENTENCE_WORDS,
    VALUES,
    Fact,
    Words,
    build_tokenizer,
    document,
    fact_words,
    noisy_response,
    pick,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.local import write_if_other

KINDS = ("no_context", "near_fact", "far_fact", "far_facts", "noisy")
FAR_KINDS = ("far_fact", "far_facts")
CONTEXT_SENTENCES = (62, 168)  # about 500 to 1400 tokens with the facts
NEAR_SENTENCES = 6  # near facts are among the last 48 filler tokens: in the last segment, and in theta_A's window
FAR_SENTENCES = 48  # far facts have at least 384 filler tokens after them: theta_A's window is 256
DISTRACTORS = (4, 10)  # number of facts that no question asks for, anywhere in the context


def _place(rng: np.random.Generator, sentence_count: int, asked: list[Fact], others: list[Fact], far: bool) -> Words:
    low, high = (0, sentence_count - FAR_SENTENCES) if far else (sentence_count - NEAR_SENTENCES, sentence_count)
    slots: dict[int, list[Fact]] = {}
    for fact in asked:
        slots.setdefault(int(rng.integers(low, high + 1)), []).append(fact)
    for fact in others:
        slots.setdefault(int(rng.integers(sentence_count + 1)), []).append(fact)
    return document(rng, sentence_count, slots)


def _parts(rng: np.random.Generator, kind: str) -> tuple[Words, Words, Words]:
    """Return context, instruction and response; every kind's contexts have the same lengths and distractors."""
    sentence_count = int(rng.integers(CONTEXT_SENTENCES[0], CONTEXT_SENTENCES[1] + 1))
    facts = random_facts(rng, int(rng.integers(DISTRACTORS[0], DISTRACTORS[1] + 1)) + 3)
    count = {"near_fact": int(rng.integers(1, 4)), "far_fact": 1, "far_facts": int(rng.integers(2, 4))}.get(kind, 0)
    context = _place(rng, sentence_count, facts[:count], facts[3:], far=kind in FAR_KINDS)
    if count:
        return context, recall_instruction(facts[:count]), recall_response(facts[:count])
    noun, length = pick(rng, NOUNS), int(rng.integers(1, 3))
    noisy = kind == "noisy"
    response = noisy_response(rng, length * SENTENCE_WORDS) if noisy else tell_response(rng, noun, length)
    return context, tell_instruction(noun), response


def demo_samples(count: int, seed: int) -> list[dict[str, str]]:
    """Return `count` records with id, source (the kind), context, instruction and response; the kinds alternate."""
    return [_sample(index, seed) for index in range(count)]


def _sample(index: int, seed: int) -> dict[str, str]:
    # Use a generator per sample, so that the first n of a larger set are the set of n.
    rng = np.random.default_rng((seed, index))
    kind = KINDS[index % len(KINDS)]
    context, instruction, response = _parts(rng, kind)
    return {
        "id": f"demo-{seed}-{index:05d}",
        "source": kind,
        "context": " ".join(context),
        "instruction": " ".join(instruction),
        "response": " ".join(response),
    }


def write_jsonl(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    """Write one JSON object per line; the file is complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_demo_samples(path: Path, count: int, seed: int) -> None:
    """Write `demo_samples` as JSON lines to `path`, atomically."""
    write_jsonl(path, demo_samples(count, seed))


Turn = TypedDict("Turn", {"from": str, "value": str})
RECALL_SHARE = 0.5


class ShareGPTRecord(TypedDict):
    """One ShareGPT record."""

    id: str
    conversations: list[Turn]


def demo_short_chat(count: int, seed: int) -> list[ShareGPTRecord]:
    """Return `count` conversations of one to three exchanges: recalls of given facts, and sentences about a noun."""
    return [_conversation(index, seed) for index in range(count)]


def _conversation(index: int, seed: int) -> ShareGPTRecord:
    rng = np.random.default_rng((seed, index))
    turns: list[Turn] = []
    for _ in range(int(rng.integers(1, 4))):
        asked, answered = _exchange(rng)
        turns.append({"from": "human", "value": asked})
        turns.append({"from": "gpt", "value": " ".join(answered)})
    return {"id": f"chat-{seed}-{index:05d}", "conversations": turns}


def _exchange(rng: np.random.Generator) -> tuple[str, Words]:
    if rng.random() >= RECALL_SHARE:
        noun = pick(rng, NOUNS)
        return " ".join(tell_instruction(noun)), tell_response(rng, noun, 1)
    facts = random_facts(rng, int(rng.integers(2, 6)))
    asked = facts[: int(rng.integers(1, 3))]
    told = [word for index in rng.permutation(len(facts)) for word in fact_words(facts[index])]
    return f"{' '.join(told)}\n\n{' '.join(recall_instruction(asked))}", recall_response(asked)


def write_demo_short_chat(path: Path, count: int, seed: int) -> None:
    """Write `demo_short_chat` as JSON lines to `path`, atomically."""
    write_jsonl(path, demo_short_chat(count, seed))


def ensure_demo_data(config: Config) -> None:
    """Write the demo's samples, conversations and the pair's shapes if missing; do nothing for another
    configuration.
    """
    demo = SECTION.of(config)
    if demo is None:
        return
    from gateau_dagster.features.demo.pair import PAIR_SHAPES

    folder = demo_folder(config.work_folder, demo)
    if not (folder / "samples.jsonl").exists():
        write_demo_samples(folder / "samples.jsonl", demo.samples, demo.seed)
    if not (folder / "conversations.jsonl").exists():
        write_demo_short_chat(folder / "conversations.jsonl", demo.conversations, demo.seed)

    for name, shape in PAIR_SHAPES.items():
        write_if_other(
            demo_shape(DEMO_SCHEME + name, config.work_folder, demo) / "config.json",
            json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape}, indent=1),
        )


def ensure_demo_tokenizer(config: Config) -> None:
    """Write the pair's tokenizers beside their shapes; do nothing for another configuration."""
    demo = SECTION.of(config)
    if demo is None:
        return
    from gateau_dagster.features.demo.pair import PAIR_SHAPES

    ensure_demo_data(config)
    for name, shape in PAIR_SHAPES.items():
        folder = demo_shape(DEMO_SCHEME + name, config.work_folder, demo)
        if not (folder / "tokenizer.json").exists():
            build_tokenizer(shape["max_position_embeddings"]).save_pretrained(folder)


def ensure_demo_pair(config: Config, progress: Progress = silent) -> None:
    """Build the demo's homologous pair if it is missing, in about a minute; do nothing for another configuration."""
    demo = SECTION.of(config)
    if demo is None:
        return
    ensure_demo_tokenizer(config)  # evidence maps and the viewer read the tokenizer beside the shape
    from gateau_dagster.features.demo.pair import build_pair, pair_is_current

    folder = demo_folder(config.work_folder, demo) / PAIR_FOLDER
    if not pair_is_current(folder, seed=demo.seed):

        def building(done: float, total: float | None, unit: str, note: str = "") -> None:
            progress(done, total, unit, f"building the demo's pair: {note}")

        build_pair(folder, seed=demo.seed, progress=building)


def is_demo_store(store: Path) -> bool:
    """Return whether a local store's samples are those of the embedded demo, judged by its first shard."""
    first = min(store.glob("raw_long_sft/*.parquet"), default=None)
    try:
        sources = set() if first is None else {*pl.read_parquet(first, columns=["source"])["source"]}
    except (OSError, pl.exceptions.PolarsError):
        return False
    return bool(sources) and sources <= {*KINDS}


_EVALUATION = {
    "heldout": {"samples": 40, "buckets": [768, 1024, 1280]},
    "needle": {
        "lengths": [256, 512, 1024, 1536],
        "depths": [0.0, 0.25, 0.5, 0.75, 1.0],
        "repeats": 4,
        # The sentences of the demo's language.
        "fact": " note {key} {value} . ",
        "question": "recall {key}",
        "answer": "{key} {value} .",
        "pairs": [{"key": name, "values": list(VALUES[name])} for name in ATTRIBUTES],
    },
}


def embedded_demo(folder: Path, demo: DemoConfig | None = None) -> Config:
    """Return the demo's configuration: a tiny homologous pair, and samples with known dependencies."""
    of_features: dict[str, Any] = {SECTION.key: demo or DemoConfig()}
    if "evaluation" in Config.model_fields:
        of_features["evaluation"] = _EVALUATION
    return Config(
        folder=folder,
        long_sft=LongSftConfig(path="demo:samples", shards=4),
        short_chat=ShortChatConfig(path="demo:conversations"),
        models={
            "short": ModelConfig(path="demo:short", context="window"),
            "long": ModelConfig(path="demo:long"),
        },
        scoring=ScoringConfig(max_length=2048, segment_length=128, dtype="float32"),
        # GATEAU's halves and the plain baselines: they load no model, and read tables that the pair computes anyway.
        # The best samples all need far text, so half of the choice is drawn from the others.
        selection=SelectionConfig(
            rule="mix",
            use={"far": 0.5},
            fraction=0.3,
            compare=["hmg", "cam", "perplexity", "length", "random"],
            ground_truth=list(FAR_KINDS),
            evidence=True,
        ),
        # theta_A, since theta_B finds every fact already: nothing could be seen to improve.
        training=TrainingConfig(
            model="short",
            positions=PositionExtension(method="theta", theta=1e6, target_length=2048),
            max_length=2048,
            epochs=3,
            learning_rate=1e-3,
            batch_size=2,
            gradient_accumulation=2,
            dtype="float32",
        ),
        **of_features,
    )
