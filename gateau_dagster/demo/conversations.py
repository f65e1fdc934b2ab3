"""Short conversations of the synthetic language, in ShareGPT's form: what is mixed into the training data."""

from pathlib import Path
from typing import TypedDict

import numpy as np

from gateau_dagster.demo.language import (
    NOUNS,
    Words,
    fact_words,
    pick,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)
from gateau_dagster.demo.long_samples import write_jsonl

Turn = TypedDict("Turn", {"from": str, "value": str})
RECALL_SHARE = 0.5


class Conversation(TypedDict):
    """One ShareGPT record."""

    id: str
    conversations: list[Turn]


def demo_short_chat(count: int, seed: int) -> list[Conversation]:
    """`count` conversations of one to three exchanges: recalls of facts just told, and sentences about a noun."""
    return [_conversation(index, seed) for index in range(count)]


def _conversation(index: int, seed: int) -> Conversation:
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
    """`demo_short_chat` as JSON lines in `path`, atomically."""
    write_jsonl(path, demo_short_chat(count, seed))
