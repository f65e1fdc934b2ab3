"""How much work a plan is: tokens from text lengths, FLOPs from model sizes, time from a measured matrix product."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.plan import Plan
from gateau_dagster.incremental.state import State

# English text and byte-pair vocabularies: about four characters a token. Exact counts come from tokenising.
_CHARACTERS_PER_TOKEN = 4.0
_SHARE_OF_PEAK = 0.4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one asset's part of a plan: samples to score, tokens through the model, FLOPs and seconds (None: unknown)."""

    samples: int
    tokens: int
    flops: float | None
    seconds: float | None


def estimate(state: State, plan: Plan) -> dict[str, Estimate]:
    """Estimates of the assets that a model scores; those that keep their rows count nothing."""
    found: dict[str, Estimate] = {}
    speed: float | None = None
    for work in plan.work:
        if work.asset != "cam" and not work.asset.startswith("perplexity/"):
            continue
        model = "long" if work.asset == "cam" else work.asset.split("/")[1]
        lengths = _lengths(state, work.asset, work.partitions)
        limit = _limit(state.config, model)
        tokens = [_scored_tokens(state.config, work.asset, total, tail, limit) for total, tail in lengths]
        parameters = parameter_count(state.config, model)
        flops = None if parameters is None else 2.0 * parameters * sum(tokens)
        if flops is not None and speed is None:
            speed = matrix_product_speed(state.config)
        seconds = None if flops is None or speed is None else flops / (speed * _SHARE_OF_PEAK)
        found[work.asset] = Estimate(samples=len(lengths), tokens=sum(tokens), flops=flops, seconds=seconds)
    return found


def _lengths(state: State, asset: str, shards: Iterable[str]) -> list[tuple[float, float]]:
    """(all tokens, tokens of instruction and response) of each sample of the shards whose row cannot be kept."""
    wanted = state.index.accepted.filter(pl.col("shard").is_in([int(shard) for shard in shards]))
    scorer = state.node(asset).scorer
    stamps = state.store.stamps((asset, shard) for shard in shards)
    keepable = [key for key, stamp in stamps.items() if stamp is not None and stamp.scorer == scorer]
    for key in keepable:
        wanted = wanted.join(
            state.store.read(*key, columns=["sample_id", "digest"]), on=["sample_id", "digest"], how="anti"
        )
    characters = wanted.select("characters", "tail_characters").iter_rows()
    return [(total / _CHARACTERS_PER_TOKEN, tail / _CHARACTERS_PER_TOKEN) for total, tail in characters]


def _limit(config: Config, model: str) -> int:
    """Tokens of a prompt that the model is shown, as far as that is known without loading it."""
    section = config.models[model]
    if section.context != "window":
        return config.scoring.max_length
    return min(config.scoring.max_length, section.window or _own_window(config, model) or config.scoring.max_length)


def _own_window(config: Config, model: str) -> int | None:
    """`max_position_embeddings` of a local model; None for one that is not here yet or names none."""
    file = config.folder / Path(config.located_model(model).path).expanduser() / "config.json"
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return content.get("max_position_embeddings") or content.get("text_config", {}).get("max_position_embeddings")


def _scored_tokens(config: Config, asset: str, total: float, tail: float, limit: int) -> int:
    """Tokens of the full prompt, and for CAM of the segment prompts too: each holds instruction and response again."""
    full = min(total, limit)
    if asset != "cam":
        return round(full)
    context = max(full - tail, 0.0)
    segments = -(-context // config.scoring.segment_length)
    return round(full + context + segments * tail)


def parameter_count(config: Config, model: str) -> int | None:
    """Parameters of a local model, from the headers of its safetensors files; None for one that is not here yet.

    Raises:
        GateauError: a file is damaged, or only a pointer to its content.
    """
    folder = config.folder / Path(config.located_model(model).path).expanduser()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    try:
        return sum(_parameters_in(file) for file in files)
    except ValueError as error:
        raise GateauError(
            f"models.{model}.path: {error}. Copy or download the model again (where git-lfs keeps it: git lfs pull)."
        ) from error


def _parameters_in(file: Path) -> int:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 0 < size <= file.stat().st_size - 8:
            raise ValueError(f"{file} is no safetensors file")
        header = json.loads(stream.read(size))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total


def matrix_product_speed(config: Config) -> float:
    """FLOP/s of a matrix product of the scoring's type on its device, measured for a fraction of a second."""
    import torch

    from gateau_dagster.scoring.loading import resolve_device

    device = resolve_device(config.scoring.device)
    size = 4096 if device.type == "cuda" else 512
    a = torch.randn(size, size, dtype=getattr(torch, config.scoring.dtype), device=device)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        product = a @ a
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best
