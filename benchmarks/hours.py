"""Hours of scoring by samples and GPUs, as `gateau plan --workers N` would tell them: no data, weights or GPU needed.

    python benchmarks/hours.py                        # the table of docs/how-to/machines.md
    python benchmarks/hours.py --tflops 700 --mean-tokens 9000 --gpus 1 4 16

What the estimator knows is used as it is: the passes of `perplexity/short`, `perplexity/long` and `cam`, the FLOPs of a
Llama of 7B parameters, the share of a matrix product's speed that passes reach, shards among workers. What it would
measure is assumed, and printed with the table. A store of your own knows better: `gateau plan --workers 64`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from common import Help

from gateau_dagster.config.execution import RayConfig
from gateau_dagster.data.sample import shard_of
from gateau_dagster.features.estimates.estimator import HALF_WIDTH, MOST, SPREAD, Workers
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.pipeline.token_rates import TokenRates
from gateau_dagster.scoring.pair_tables import cam_effort, perplexity_effort
from gateau_dagster.scoring.sample_table import Numbers, SampleTokens

LLAMA_7B = ModelShape(
    layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11_008, vocabulary=32_000
)
SHARE_OF_PEAK = MOST * LLAMA_7B.hidden / (LLAMA_7B.hidden + HALF_WIDTH)  # of a matrix product's speed
ONE_MACHINE = 8  # GPUs
INSTRUCTION_TOKENS = 40


def contexts(count: int, options: argparse.Namespace) -> Numbers:
    """Return the tokens of `count` contexts: exponentially distributed, the same ones each time, in random order."""
    places = (np.arange(count) + 0.5) / count
    lengths = np.round(-options.mean_tokens * np.log1p(-places))
    return np.asarray(np.random.default_rng(0).permutation(lengths), dtype=np.float64)


def seconds(count: int, options: argparse.Namespace) -> list[Numbers]:
    """Return the time of each shard on one GPU [shards], for the step of theta_A and for that of theta_B."""
    tokens = SampleTokens(
        context=contexts(count, options),
        instruction=np.full(count, float(INSTRUCTION_TOKENS)),
        response=np.full(count, float(options.response_tokens)),
        limit=options.max_length,
        shared=True,  # perplexity/long and cam are one step
        shows_attention=True,
        **TokenRates().around,  # pyright: ignore[reportArgumentType]
    )
    whole = perplexity_effort(tokens).flops(LLAMA_7B)
    segments = cam_effort(tokens, length=options.segment_length).flops(LLAMA_7B)
    speed = options.tflops * 1e12 * SHARE_OF_PEAK
    shards = [shard_of(f"sample {number}", options.shards) for number in range(count)]
    return [np.bincount(shards, step / speed, options.shards).astype(np.float64) for step in (whole, whole + segments)]


def wall_seconds(steps: Sequence[Numbers], gpus: int) -> float:
    """Return the time of the steps, each until its last shard is done; on several machines in pieces, as on Ray."""
    pieces = None if gpus <= ONE_MACHINE else RayConfig(workers=gpus).piece_minutes * 60
    workers = Workers(devices=[f"cuda:{number}" for number in range(gpus)], piece_seconds=pieces)
    return sum(workers.seconds(each.tolist()) for each in steps)


def shown(found: float) -> str:
    """Return seconds as `1,200 h`, `1.2 h` or `12 min`."""
    if found < 3600:
        return f"{found / 60:.0f} min"
    return f"{found / 3600:,.0f} h" if found >= 36_000 else f"{found / 3600:.1f} h"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    add = parser.add_argument
    add("--samples", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="in all")
    add("--gpus", type=int, nargs="+", default=[1, 8, 64, 512], help="that score")
    add("--tflops", type=float, default=600.0, help="of a matrix product on a GPU")
    add("--shards", type=int, default=2000, help="long_sft.shards")
    add("--mean-tokens", type=float, default=16_000, help="of a context")
    add("--response-tokens", type=int, default=200, help="of a response")
    add("--max-length", type=int, default=65_536, help="scoring.max_length")
    add("--segment-length", type=int, default=128, help="scoring.segment_length")
    return parser.parse_args(arguments)


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the table as Markdown, and its assumptions."""
    head = ["samples", "tokens of contexts", *(f"{gpus:,} GPU{'s' * (gpus > 1)}" for gpus in options.gpus)]
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for count in options.samples:
        steps = seconds(count, options)
        tokens = float(np.minimum(contexts(count, options), options.max_length).sum())
        times = [shown(wall_seconds(steps, each)) for each in options.gpus]
        yield f"| {' | '.join([f'{count:,}', f'{tokens / 1e9:,.2g} billion', *times])} |"
    yield ""
    yield (
        f"Assumed: two models of 7B parameters, responses of {options.response_tokens}, segments of "
        f"{options.segment_length}. Contexts have {options.mean_tokens:,.0f} tokens on average, are exponentially "
        f"distributed, and are cut to {options.max_length:,}. A matrix product has {options.tflops:,.0f} TFLOP/s on "
        f"each GPU, of which passes reach {SHARE_OF_PEAK:.0%}. There are {options.shards:,} shards. A GPU of one "
        f"machine takes a whole shard at a time; beyond {ONE_MACHINE} GPUs Ray's workers take about two minutes of "
        f"one. As with any plan before something has run, each time may be {SPREAD} times as long or as short. "
        "Starting workers, loading models, writing tables and training are not counted."
    )


def main(arguments: list[str] | None = None) -> int:
    """Parse, estimate, print; the exit status."""
    sys.stdout.writelines(f"{line}\n" for line in lines(parse(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
