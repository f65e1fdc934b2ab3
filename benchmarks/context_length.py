"""Time and peak memory of scoring one sample against its length, and of `output_attentions=True` beside it.

    .venv/bin/python benchmarks/context_length.py --out build/benchmarks/context_length.json
    .venv/bin/python benchmarks/context_length.py --device cuda --dtype bfloat16 --lengths 1024 4096 16384 65536 131072

For each length, a process of its own measures the pass of theta_B over the full prompt, which gives perplexity and
segment attention, and the passes over the segment prompts; up to --eager tokens also the whole attention matrices.
Memory is the peak above what the process holds once the model is loaded. The rounds are repeated, all lengths
in each; a time is the shortest of them, since other work on the machine can only add.

Two figures are set beside their targets: the peak at --memory-length against what `output_attentions=True` would need
there (its peak at --eager tokens, times the square of the ratio of the lengths), and the time at the greatest length
against the time at --time-length, extrapolated by FLOPs.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict

import torch
from common_measure import machine, memory_held, say, show, table, verdict, write_json
from common_models import Shape, add_run_options, build_model, make_samples, prompt_of, shape_of
from common_passes import Measured, Pass, eager_pass, joint_pass, measure, segment_passes

from gateau_dagster.config import ScoringConfig
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.prompt import Prompt

MEMORY_TARGET = 1 / 20
TIME_TARGET = 1.2
_WARM_UP_TOKENS = 256


@torch.no_grad()
def worker(shape: Shape, options: argparse.Namespace, length: int) -> list[Measured]:
    """Everything for one length, in this process."""
    loaded = build_model(shape, name="long", dtype=getattr(torch, options.dtype), device=options.device)
    base = memory_held(loaded.device)
    for each in _passes(loaded, min(length, _WARM_UP_TOKENS), options):
        each.work()
    limits = {"most": options.repetitions, "enough_seconds": options.enough_seconds}
    return [measure(loaded, each, base=base, **limits) for each in _passes(loaded, length, options)]


def _passes(loaded: LoadedModel, length: int, options: argparse.Namespace) -> list[Pass]:
    prompt = _prompt(loaded, length, options)
    batches = {"segment_length": options.segment_length, "batch_tokens": options.batch_tokens}
    passes = [joint_pass(loaded, prompt), segment_passes(loaded, prompt, **batches)]
    return [*passes, eager_pass(loaded, prompt)] if length <= options.eager else passes


def _prompt(loaded: LoadedModel, tokens: int, options: argparse.Namespace) -> Prompt:
    answer = min(options.response_tokens, tokens // 4)
    return prompt_of(loaded, make_samples(options.vocabulary, 1, tokens=tokens, response_tokens=answer)[0])


def in_a_process(options: argparse.Namespace, length: int) -> list[Measured] | str:
    """What a fresh process measures for this length, or the last line of what stopped it."""
    settings = {**vars(options), "out": None}
    command = [sys.executable, __file__, "--worker", json.dumps({"length": length, "options": settings})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else f"ended with {done.returncode}"
    return [Measured(**each) for each in json.loads(done.stdout.splitlines()[-1])]  # libraries may write before it


def collect(options: argparse.Namespace) -> tuple[dict[int, list[Measured]], dict[int, str]]:
    """All lengths, round after round: the shortest times and the largest peaks; and what failed."""
    found: dict[int, list[Measured]] = {}
    failed: dict[int, str] = {}
    for number in range(options.rounds):
        for length in options.lengths:
            result = in_a_process(options, length) if length not in failed else failed[length]
            if isinstance(result, str):
                failed[length] = result
                found.pop(length, None)
                say(f"round {number + 1}, {length} tokens: {result}")
                continue
            found[length] = _joined(found[length], result) if length in found else result
            shown = ", ".join(f"{each.name} {each.best:.2f} s" for each in result)
            say(f"round {number + 1}, {length} tokens: {shown}")
    return found, failed


def _joined(before: list[Measured], after: list[Measured]) -> list[Measured]:
    """Two rounds of the same passes as one."""
    return [
        Measured(
            name=a.name,
            tokens=a.tokens,
            flops=a.flops,
            seconds=a.seconds + b.seconds,
            peak_bytes=max(a.peak_bytes, b.peak_bytes),
            total_peak_bytes=max(a.total_peak_bytes, b.total_peak_bytes),
        )
        for a, b in zip(before, after, strict=True)
    ]


def conclusions(found: dict[int, list[Measured]], options: argparse.Namespace) -> dict[str, float]:
    """The two figures that have a target, as far as their lengths were measured."""
    joint = {length: each for length, passes in found.items() for each in passes if each.name.startswith("perplexity")}
    segments = {length: each for length, passes in found.items() for each in passes if each.name.startswith("segment")}
    eager = {length: each for length, passes in found.items() for each in passes if each.name.startswith("eager")}
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
    """The table's rows."""
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
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lengths = [1024, 2048, 4096, 8192, 16_384, 32_768]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, help="of the prompt, default 1k to 32k")
    parser.add_argument("--eager", type=int, default=4096, help="greatest length with output_attentions, default 4096")
    parser.add_argument("--memory-length", type=int, default=16_384, help="default 16384")
    parser.add_argument("--time-length", type=int, default=8192, help="where the extrapolation starts, default 8192")
    parser.add_argument("--response-tokens", type=int, default=200, help="default 200, at most a quarter of the prompt")
    parser.add_argument("--segment-length", type=int, default=128)
    parser.add_argument("--batch-tokens", type=int, default=ScoringConfig().batch_tokens, help="scoring.batch_tokens")
    parser.add_argument("--rounds", type=int, default=2, help="processes a length, default 2")
    parser.add_argument("--repetitions", type=int, default=3, help="most timed calls in a process, default 3")
    parser.add_argument("--enough-seconds", type=float, default=20.0, help="then no further call, default 20")
    add_run_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    if options.worker is not None:
        task = json.loads(options.worker)
        given = argparse.Namespace(**task["options"])
        show(json.dumps([asdict(each) for each in worker(shape_of(given), given, task["length"])]))
        return 0
    description = machine()
    found, failed = collect(options)
    show(table(["pass", "tokens", "seconds", "tokens/s", "GFLOP/s", "peak MiB"], rows_of(found)))
    for length, reason in failed.items():
        show(f"{length} tokens: {reason}")
    made = conclusions(found, options)
    for name, value in made.items():
        target = MEMORY_TARGET if name == "memory_share" else TIME_TARGET
        show(verdict(name.replace("_", " "), value, target, at_most=True))
    settings = {key: value for key, value in vars(options).items() if key not in {"out", "worker"}}
    content = {"machine": description, "settings": settings, "lengths": found, "failed": failed, "conclusions": made}
    write_json(options.out, content)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
