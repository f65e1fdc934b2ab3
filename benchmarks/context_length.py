"""Time and peak memory of scoring one sample against its length, and of `output_attentions=True` beside it.

    .venv/bin/python benchmarks/context_length.py --out build/benchmarks/context_length.json
    .venv/bin/python benchmarks/context_length.py --device cuda --dtype bfloat16 --lengths 1024 4096 16384 65536 131072

For each length, a separate process measures the pass of theta_B over the full prompt, which gives perplexity and
segment attention, and the passes over the segment prompts; up to --eager tokens also the whole attention matrices.
Memory is the peak above what the process holds once the model is loaded. The rounds are repeated, all lengths
in each; a time is the shortest of them, since other work on the machine can only add.

Two figures are set beside their targets: the peak at --memory-length against what `output_attentions=True` would need
there (its peak at --eager tokens, times the square of the ratio of the lengths), and the time at the greatest length
against the time at --time-length, extrapolated by FLOPs.
"""

import argparse
from dataclasses import replace

import common
import torch
from common_models import add_run_options, build_model, make_samples, prompt_of, shape_of
from common_scoring import Measured, Pass, PassKind, make_pass, measure

from gateau_dagster.config import ScoringConfig
from gateau_dagster.models.loaded import LoadedModel

MEMORY_TARGET = 1 / 20
TIME_TARGET = 1.2
_WARM_UP_TOKENS = 256


@torch.no_grad()
def worker(options: argparse.Namespace, length: int) -> list[Measured]:
    """Measure everything of one length, in this process."""
    shape = shape_of(options)
    loaded = build_model(shape, name="long", dtype=getattr(torch, options.dtype), device=options.device)
    base = common.memory_held(loaded.device)
    for each in _passes(loaded, min(length, _WARM_UP_TOKENS), options):
        each.work()
    limits = {"most": options.repetitions, "enough_seconds": options.enough_seconds}
    return [measure(loaded, each, base=base, **limits) for each in _passes(loaded, length, options)]


def _passes(loaded: LoadedModel, length: int, options: argparse.Namespace) -> list[Pass]:
    answer = min(options.response_tokens, length // 4)
    prompt = prompt_of(loaded, make_samples(options.vocabulary, 1, tokens=length, response_tokens=answer)[0])
    sizes = {"segment_length": options.segment_length, "batch_tokens": options.batch_tokens}
    kinds: list[PassKind] = ["joint", "segments", "eager"]
    return [make_pass(kind, loaded, prompt, **sizes) for kind in kinds if kind != "eager" or length <= options.eager]


def collect(options: argparse.Namespace) -> tuple[dict[int, list[Measured]], dict[int, str]]:
    """Return the shortest times and the largest peaks of all lengths, round after round; and what failed."""
    found: dict[int, list[Measured]] = {}
    failed: dict[int, str] = {}
    for number in range(options.rounds):
        for length in options.lengths:
            if length in failed:
                continue
            common.say(f"round {number + 1}, {length} tokens")
            try:
                passes = common.in_a_process(worker, options, length)
            except Exception as error:  # out of memory, a process that was killed: the other lengths go on
                failed[length] = f"{type(error).__name__}: {common.first_line(error)}"
                found.pop(length, None)
                common.say(f"  {failed[length]}")
            else:
                found[length] = [_joined(*both) for both in zip(found.get(length, passes), passes, strict=True)]
    return found, failed


def _joined(before: Measured, after: Measured) -> Measured:
    """Return two rounds of the same pass as one."""
    if before is after:
        return before
    peaks = {name: max(getattr(each, name) for each in (before, after)) for name in ("peak_bytes", "total_peak_bytes")}
    return replace(before, seconds=before.seconds + after.seconds, **peaks)


def conclusions(found: dict[int, list[Measured]], options: argparse.Namespace) -> dict[str, float]:
    """Return the two figures that have a target, as far as their lengths were measured."""
    joint, segments, eager = (
        {length: each for length, passes in found.items() for each in passes if each.name.startswith(name)}
        for name in ("perplexity", "segment", "eager")
    )
    made: dict[str, float] = {}
    at, reference = options.memory_length, max(eager, default=0)
    if at in joint and reference and eager[reference].peak_bytes:  # a tiny pass may stay below what was held before
        peak = max(joint[at].peak_bytes, segments[at].peak_bytes)
        made["memory_share"] = peak / (eager[reference].peak_bytes * (at / reference) ** 2)
    last, first = max(joint, default=0), options.time_length
    if first in joint and last > first:
        for name, measured in (("joint", joint), ("segments", segments)):
            expected = measured[first].best * measured[last].flops / measured[first].flops
            made[f"time_ratio_{name}"] = measured[last].best / expected
    return made


def rows_of(found: dict[int, list[Measured]]) -> list[list[object]]:
    """Return the table's rows, pass by pass."""
    return [
        [
            each.name,
            length,
            f"{each.best:.3f}",
            f"{each.tokens / each.best:.0f}",
            f"{each.flops / each.best / 1e9:.0f}",
            f"{each.peak_bytes / 2**20:.0f}",
        ]
        for name in dict.fromkeys(each.name for passes in found.values() for each in passes)
        for length, passes in found.items()
        for each in passes
        if each.name == name
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.benchmark_parser(__doc__)
    add = parser.add_argument
    lengths = [1024, 2048, 4096, 8192, 16_384, 32_768]
    add("--lengths", type=int, nargs="+", default=lengths, help="of the prompt")
    add("--eager", type=int, default=4096, help="greatest length with output_attentions")
    add("--memory-length", type=int, default=16_384, help="where the peak is compared")
    add("--time-length", type=int, default=8192, help="where the extrapolation starts")
    add("--response-tokens", type=int, default=200, help="at most a quarter of the prompt")
    add("--segment-length", type=int, default=128)
    add("--batch-tokens", type=int, default=ScoringConfig().batch_tokens, help="scoring.batch_tokens")
    add("--rounds", type=int, default=2, help="processes per length")
    add("--repetitions", type=int, default=3, help="most timed calls in a process")
    add("--enough-seconds", type=float, default=20.0, help="no new call starts after this time")
    add_run_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    description = common.machine()
    found, failed = collect(options)
    common.show(common.table(["pass", "tokens", "seconds", "tokens/s", "GFLOP/s", "peak MiB"], rows_of(found)))
    for length, reason in failed.items():
        common.show(f"{length} tokens: {reason}")
    made = conclusions(found, options)
    for name, value in made.items():
        target = MEMORY_TARGET if name == "memory_share" else TIME_TARGET
        common.show(common.verdict(name.replace("_", " "), value, target, at_most=True))
    content = {"machine": description, "settings": common.settings_of(options), "lengths": found}
    common.write_json(options.out, content | {"failed": failed, "conclusions": made})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
