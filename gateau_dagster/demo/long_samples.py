"""Generate the demo's long samples: five kinds, for each of which it is known whether it needs the far context."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gateau_dagster.demo.language import (
    NOUNS,
    SENTENCE_WORDS,
    Fact,
    Words,
    document,
    noisy_response,
    pick,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)

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
