"""The embedded demo's inputs on disk: the data at once, the pair when a model is first needed."""

import json
from pathlib import Path

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.inputs import DEMO_SCHEME, PAIR_FOLDER, demo_folder, demo_shape
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.local import write_if_other


def ensure_demo_data(config: Config) -> None:
    """Writes the demo's samples, conversations and the pair's shapes if missing; nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.demo.conversations import write_demo_short_chat
    from gateau_dagster.demo.long_samples import write_demo_samples
    from gateau_dagster.demo.recipe import PAIR_SHAPES

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
    """Puts the pair's tokenizers beside their shapes; does nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.demo.language import build_tokenizer
    from gateau_dagster.demo.recipe import PAIR_SHAPES

    ensure_demo_data(config)
    for name, shape in PAIR_SHAPES.items():
        folder = demo_shape(DEMO_SCHEME + name, config.work_folder, config.demo)
        if not (folder / "tokenizer.json").exists():
            build_tokenizer(shape["max_position_embeddings"]).save_pretrained(folder)


def ensure_demo_pair(config: Config, progress: Progress = silent) -> None:
    """Builds the demo's homologous pair if it is missing, about a minute; does nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.demo.pair import build_pair, pair_is_current

    folder = demo_folder(config.work_folder, config.demo) / PAIR_FOLDER
    if not pair_is_current(folder, seed=config.demo.seed):

        def building(done: float, total: float | None, unit: str, note: str = "") -> None:
            progress(done, total, unit, f"building the demo's pair: {note}")

        build_pair(folder, seed=config.demo.seed, progress=building)


def is_demo_store(store: Path) -> bool:
    """Return whether a local store's samples are those of the embedded demo, as far as its first shard tells."""
    from gateau_dagster.demo.long_samples import KINDS

    first = min(store.glob("raw_long_sft/*.parquet"), default=None)
    try:
        sources = set() if first is None else {*pl.read_parquet(first, columns=["source"])["source"]}
    except (OSError, pl.exceptions.PolarsError):
        return False
    return bool(sources) and sources <= {*KINDS}
