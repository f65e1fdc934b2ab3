"""Stored tables as the global steps read them, of any number of samples: for global_steps.py."""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import yaml

from gateau_dagster import tables
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp

SEGMENT_LENGTH, WINDOW = 128, 512


def make_store(folder: Path, *, rows: int, segments: int, shards: int) -> None:
    """A configuration and the stored tables of `rows` samples, of which nearly all have `segments` segments."""
    content = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": shards},
        "models": {"short": {"path": "short"}, "long": {"path": "long"}},
        "scoring": {"segment_length": SEGMENT_LENGTH},
        "training": {"enabled": False},
    }
    (folder / "gateau.yaml").write_text(yaml.safe_dump(content))
    state = State(config=load_project(folder / "gateau.yaml"))
    borders = np.linspace(0, rows, shards + 1).astype(int)
    for number, shard in enumerate(state.shards):
        rng = np.random.default_rng([rows, number])
        for asset, (table, rejected) in _shard_tables(rng, int(np.diff(borders)[number]), segments).items():
            state.store.write(table, asset, shard, Stamp(fingerprint="made", content="made"), rejected)


def _shard_tables(rng: np.random.Generator, rows: int, segments: int) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Each asset's table and rejected samples, as their promised columns say."""
    ids = pl.DataFrame({"sample_id": _hexadecimal(rng, rows, 32), "digest": _hexadecimal(rng, rows, 64)})
    ids = ids.sort("sample_id")
    counts = np.where(rng.random(rows) < 0.01, 1, segments)
    contexts = (counts * SEGMENT_LENGTH - rng.integers(0, SEGMENT_LENGTH, rows)).astype(np.int32)
    long = np.exp(rng.normal(1.5, 0.6, rows))
    short, seen = long * np.exp(rng.gamma(1.0, 0.3, rows)), np.minimum(contexts, WINDOW)
    texts = {name: pl.format(f"{name} of {{}}", "sample_id") for name in ("context", "instruction", "response")}
    made = {
        "raw_long_sft": (ids.with_columns(source=pl.lit("benchmark"), **texts), tables.RAW_LONG_SFT),
        "perplexity/short": (_perplexity(ids, short, contexts, seen), tables.PERPLEXITY),
        "perplexity/long": (_perplexity(ids, long, contexts, contexts), tables.PERPLEXITY),
        "cam": (_cam(ids, rng, counts), tables.CAM),
    }
    return {name: _stored(name, rng, *parts) for name, parts in made.items()}


def _perplexity(ids: pl.DataFrame, values: np.ndarray, contexts: np.ndarray, seen: np.ndarray) -> pl.DataFrame:
    """The columns of `perplexity/<model>` but the tokens; `seen`: tokens of the context that the model is shown."""
    return ids.with_columns(
        perplexity=pl.Series(values),
        mean_nll=pl.Series(np.log(values)),
        context_tokens=pl.Series(seen),
        mean_probability=pl.Series(1 / values),
        response_tokens=pl.Series(contexts // 4 + 1),
        truncated_tokens=pl.Series(contexts - seen),
    )


def _cam(ids: pl.DataFrame, rng: np.random.Generator, counts: np.ndarray) -> pl.DataFrame:
    """The columns of `cam` but the tokens; `counts`: segments of each sample."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    several = pl.Series(counts > 1)

    def lists(values: np.ndarray) -> pl.Series:
        return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values)))

    return ids.with_columns(
        segments=pl.Series(counts),
        segment_perplexity=lists(np.exp(rng.normal(2.0, 0.6, offsets[-1]))),
        segment_attention=lists(rng.random(offsets[-1]) * 1e-3),
        cas=pl.when(several).then(pl.Series(rng.uniform(0.3, 1, counts.size))),
        far_gain=pl.when(several).then(pl.Series(rng.beta(0.3, 3, counts.size))),
    )


def _stored(
    name: str, rng: np.random.Generator, frame: pl.DataFrame, columns: tuple[tables.Column, ...]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A table with the promised columns, and its rejected samples: one in a thousand of those that a model scores."""
    kept = np.ones(frame.height, dtype=bool) if name == "raw_long_sft" else rng.random(frame.height) >= 0.001
    rejected = frame.filter(~kept).select("sample_id", reason=pl.lit("the benchmark rejects it"))
    schema = tables.schema(columns)
    # No global step reads a column of tokens: one of them stands for a whole response.
    by_token = {key: pl.concat_list(pl.lit(0.5)) for key, kind in schema.items() if kind == pl.List(pl.Float32)}
    whole = frame.filter(kept).with_columns(**by_token)
    return whole.select(pl.col(key).cast(kind) for key, kind in schema.items()), rejected


def _hexadecimal(rng: np.random.Generator, rows: int, digits: int) -> pl.Series:
    text = pa.py_buffer(rng.bytes(rows * digits // 2).hex().encode())
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int64) * digits)
    return pl.Series(pa.LargeStringArray.from_buffers(rows, offsets, text))
