"""Scores a sample set with the pipeline and with a straightforward implementation, and checks that the numbers agree.

    .venv/bin/python benchmarks/scoring.py --out build/benchmarks/scoring.json

Both compute the same tables in one process, from the same text, with the same two models, in turns: perplexity under
theta_A, and perplexity and `cam` under theta_B. The straightforward side (benchmarks/common_scoring.py) is what
one writes with Hugging Face's tools: full logits, `output_attentions=True`, segment prompts in padded batches of 32.

The straightforward side has one theta_B, with eager attention, as `output_attentions=True` asks for. With
`--theta-b sdpa` it is more careful: only the pass that needs the matrices is eager.

The ratio depends on the length of the responses: the output layer reads every response token once for each segment,
on both sides. Each of the --response-tokens is measured; lengths with commas between them are one set of samples.
11,37,76,422 are the middles of the quarters of 142 real samples (LongAlign's form; median 58, mean 127), 64 is near
their median, 200 a long answer. Exit status 1 when a figure differs by more than 1e-4 (float32).
"""

import argparse
import math
from dataclasses import asdict, dataclass
from typing import Any

import common
import common_scoring as straightforward
import torch
from common_models import (
    Shape,
    add_shape_options,
    build_model,
    copy_to,
    make_samples,
    prompt_of,
    scoring_config,
    shape_of,
)
from common_scoring import cam_differences, difference, score

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loading import LoadedModel

TARGET = 5.0
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is scored, by which models."""

    short: LoadedModel
    long: LoadedModel
    plain_long: LoadedModel  # the same weights, for the straightforward side
    samples: list[Sample]
    scoring: ScoringConfig


def lengths_of(text: str) -> tuple[int, ...]:
    """Parse `64`, or `11,37,76,422` for samples of several lengths."""
    return tuple(int(part) for part in text.split(","))


def make_case(shape: Shape, arguments: argparse.Namespace, response_tokens: tuple[int, ...]) -> Case:
    """Return two models of the same shape and other weights; samples of exactly the length asked for."""
    count = max(1, round(arguments.samples / len(response_tokens)))
    long = build_model(shape, name="long", seed=2)
    plain_long = copy_to(long, shape, dtype=torch.float32, device="cpu")
    plain_long.model.set_attn_implementation(arguments.theta_b)
    sizes = {"tokens": arguments.tokens, "segment_length": arguments.segment_length}
    return Case(
        short=build_model(shape, name="short", seed=1),
        long=long,
        plain_long=plain_long,
        samples=[
            sample
            for length in response_tokens
            for sample in make_samples(
                shape.vocabulary, count, tokens=arguments.tokens, response_tokens=length, seed=length
            )
        ],
        scoring=scoring_config(device="cpu", dtype="float32", batch_tokens=arguments.batch_tokens, **sizes),
    )


def check(case: Case) -> dict[str, float]:
    """Return the largest relative difference of each column. Also warms up both sides."""
    samples, length, segment = case.samples[-2:], case.scoring.max_length, case.scoring.segment_length
    worst: dict[str, float] = {}
    for name, loaded, plain in (("short", case.short, case.short), ("long", case.long, case.plain_long)):
        rows, cam_rows = score(loaded, samples, case.scoring, cam=name == "long")
        expected = [straightforward.perplexity(plain, sample, length) for sample in samples]
        worst[f"perplexity_{name}"] = difference([row.perplexity for row in rows], expected)
        if cam_rows:
            cams = [straightforward.cam(plain, sample, length, segment) for sample in samples]
            worst |= cam_differences(cam_rows, cams)
    return worst


def measure(case: Case, repetitions: int) -> dict[str, list[float]]:
    """Return seconds of each part on both sides. A part of the pipeline serves two of the straightforward ones."""
    samples, length, segment = case.samples, case.scoring.max_length, case.scoring.segment_length
    prompts = [prompt_of(case.long, sample) for sample in samples]
    plain = case.plain_long
    parts = {
        "ours: theta_A perplexity": lambda: score(case.short, samples, case.scoring, cam=False),
        "plain: theta_A perplexity": lambda: [straightforward.perplexity(case.short, each, length) for each in samples],
        "ours: theta_B perplexity and cam": lambda: score(case.long, samples, case.scoring, cam=True),
        "plain: theta_B perplexity": lambda: [straightforward.perplexity(plain, each, length) for each in samples],
        "plain: theta_B segments": lambda: [
            straightforward.segment_perplexities(plain, each, segment) for each in prompts
        ],
        "plain: theta_B attention": lambda: [
            straightforward.segment_attention(plain, each, segment) for each in prompts
        ],
    }
    return common.interleaved(parts, repetitions, case.long.device)


def summary(times: dict[str, list[float]]) -> tuple[common.Spread, dict[str, list[float]]]:
    """Return the ratio of the whole, round by round, and the seconds of both wholes."""
    wholes = {
        side: [math.fsum(each) for each in zip(*(t for n, t in times.items() if n.startswith(side)), strict=True)]
        for side in ("plain", "ours")
    }
    return common.ratios(wholes["plain"], wholes["ours"]), wholes


def run(shape: Shape, arguments: argparse.Namespace, response_tokens: tuple[int, ...]) -> dict[str, Any]:
    """Check, then measure, one set of samples."""
    shown = ", ".join(map(str, response_tokens))
    common.say(f"responses of {shown} tokens: comparing the numbers")
    case = make_case(shape, arguments, response_tokens)
    worst = check(case)
    times = measure(case, arguments.repetitions)
    ratio, wholes = summary(times)
    rows = [[name, common.Spread.of(values).show()] for name, values in (times | wholes).items()]
    common.show(common.table([f"{len(case.samples)} samples, {shown} response tokens", "seconds (quartiles)"], rows))
    common.show(f"ratio {ratio.show()}; largest relative difference {max(worst.values()):.1e}\n")
    return {"response_tokens": shown, "seconds": times, "ratio": ratio, "largest_difference": worst}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--tokens", type=int, default=4096, help="of each scoring prompt")
    sets = [(11, 37, 76, 422), (64,), (200,), (512,)]
    add("--response-tokens", type=lengths_of, nargs="+", default=sets, help="of each set of samples")
    add("--samples", type=int, default=2, help="in a set")
    add("--repetitions", type=int, default=3, help="rounds of about 30 s on two cores")
    add("--segment-length", type=int, default=128, help="as the paper has it")
    add("--batch-tokens", type=int, default=ScoringConfig().batch_tokens, help="scoring.batch_tokens")
    add("--theta-b", choices=["sdpa", "eager"], default="eager", help="attention of the straightforward theta_B")
    add_shape_options(parser)
    return parser.parse_args(arguments)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    """Parse, check, measure, print; the exit status."""
    options = parse(arguments)
    shape = shape_of(options)
    description = common.machine()
    results = [run(shape, options, response_tokens) for response_tokens in options.response_tokens]
    for result in results:
        name = f"times faster with {result['response_tokens']} response tokens"
        common.show(common.verdict(name, result["ratio"].median, TARGET, at_most=False))
    worst = max(max(result["largest_difference"].values()) for result in results)
    common.show(common.verdict("largest relative difference", worst, TOLERANCE, at_most=True))
    content = {
        "machine": description,
        "settings": common.settings_of(options),
        "shape": asdict(shape),
        "cases": results,
    }
    common.write_json(options.out, content)
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
