"""Write the demo's inputs: samples and short conversations immediately, the pair when a model is first needed."""

import json
from pathlib import Path
from typing import TypedDict

import numpy as np
import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.inputs import DEMO_SCHEME, PAIR_FOLDER, demo_folder, demo_shape
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
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.local import write_if_other

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
    if config.demo is None:
        return
    from gateau_dagster.demo.long_samples import write_demo_samples
    from gateau_dagster.demo.pair import PAIR_SHAPES

    demo, folder = config.demo, demo_folder(config.work_folder, config.demo)
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
    if config.demo is None:
        return
    from gateau_dagster.demo.language import build_tokenizer
    from gateau_dagster.demo.pair import PAIR_SHAPES

    ensure_demo_data(config)
    for name, shape in PAIR_SHAPES.items():
        folder = demo_shape(DEMO_SCHEME + name, config.work_folder, config.demo)
        if not (folder / "tokenizer.json").exists():
            build_tokenizer(shape["max_position_embeddings"]).save_pretrained(folder)


def ensure_demo_pair(config: Config, progress: Progress = silent) -> None:
    """Build the demo's homologous pair if it is missing, in about a minute; do nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.demo.pair import build_pair, pair_is_current

    folder = demo_folder(config.work_folder, config.demo) / PAIR_FOLDER
    if not pair_is_current(folder, seed=config.demo.seed):

        def building(done: float, total: float | None, unit: str, note: str = "") -> None:
            progress(done, total, unit, f"building the demo's pair: {note}")

        build_pair(folder, seed=config.demo.seed, progress=building)


def is_demo_store(store: Path) -> bool:
    """Return whether a local store's samples are those of the embedded demo, judged by its first shard."""
    from gateau_dagster.demo.long_samples import KINDS

    first = min(store.glob("raw_long_sft/*.parquet"), default=None)
    try:
        sources = set() if first is None else {*pl.read_parquet(first, columns=["source"])["source"]}
    except (OSError, pl.exceptions.PolarsError):
        return False
    return bool(sources) and sources <= {*KINDS}
