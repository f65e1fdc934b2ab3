"""Scores a sample set with the pipeline and with a straightforward implementation, and checks that the numbers agree.

    .venv/bin/python benchmarks/scoring.py --out build/benchmarks/scoring.json

Both compute the same tables in one process, from the same text, with the same two models, in turns: perplexity under
theta_A, and perplexity and `cam` under theta_B. The straightforward side (benchmarks/common_scoring.py) is what
one writes with Hugging Face's tools: full logits, `output_attentions=True`, segment prompts in padded batches of 32.

The straightforward side has one theta_B, with eager attention, as `output_attentions=True` asks for. Beside it is a
more careful one: only the pass that needs the matrices is eager, the others are sdpa.

The ratio depends on the length of the responses: the output layer reads every response token once for each segment,
on both sides. Each of the --response-tokens is measured; lengths with commas between them are one set of samples.
11,37,76,422 are the middles of the quarters of 142 real samples (LongAlign's form; median 58, mean 127), 64 is near
their median, 200 a long answer. Exit status 1 when a figure differs by more than 1e-4 (float32).

`scoring.segments: screened` is measured beside `all`. Its FLOPs are also counted for models of 7B parameters at lengths
as LongAlign's: exponentially distributed with a mean of 16,000 tokens, cut to 65,536 (as in hours.py), and at single
ones. Its target is 2 passes over the prompt.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

import common
import common_scoring as straightforward
import numpy as np
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
from hours import INSTRUCTION_TOKENS, LLAMA_7B, contexts

from gateau_dagster.config import ScoringConfig
from gateau_dagster.config.models import SegmentChoice
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.pipeline.token_rates import TokenRates
from gateau_dagster.scoring.pair_tables import cam_effort, perplexity_effort
from gateau_dagster.scoring.sample_table import PlannedWork, SampleTokens

TARGET = 5.0
TOLERANCE = 1e-4
ATTENTION = ("eager", "sdpa")
SHOWN = ("all", "screened", "read")  # of planned_flops


@dataclass(frozen=True, kw_only=True)
class Case:
    """Samples, and the models that score them."""

    short: LoadedModel
    long: LoadedModel
    plain_long: dict[str, LoadedModel]  # the same weights, for the straightforward side, by attention
    samples: list[Sample]
    scoring: ScoringConfig


def lengths_of(text: str) -> tuple[int, ...]:
    """Parse `64`, or `11,37,76,422` for samples of several lengths."""
    return tuple(int(part) for part in text.split(","))


def make_case(shape: Shape, arguments: argparse.Namespace, response_tokens: tuple[int, ...]) -> Case:
    """Return two models of the same shape and other weights; samples of exactly the length asked for."""
    count = max(1, round(arguments.samples / len(response_tokens)))
    long = build_model(shape, name="long", seed=2)
    plain_long = {}
    for attention in ATTENTION:
        plain_long[attention] = copy_to(long, shape, dtype=torch.float32, device="cpu")
        plain_long[attention].model.set_attn_implementation(attention)
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
    pairs = [("short", case.short, case.short), *(("long", case.long, plain) for plain in case.plain_long.values())]
    for name, loaded, plain in pairs:
        rows, cam_rows = score(loaded, samples, case.scoring, cam=name == "long")
        expected = [straightforward.perplexity(plain, sample, length) for sample in samples]
        found = {f"perplexity_{name}": difference([row.perplexity for row in rows], expected)}
        if cam_rows:
            cams = [straightforward.cam(plain, sample, length, segment) for sample in samples]
            found |= cam_differences(cam_rows, cams)
        worst |= {name: max(value, worst.get(name, 0.0)) for name, value in found.items()}
    return worst


def measure(case: Case, repetitions: int) -> dict[str, list[float]]:
    """Return seconds of each part on both sides. A part of the pipeline serves two of the straightforward ones."""
    samples, length, segment = case.samples, case.scoring.max_length, case.scoring.segment_length
    prompts = [prompt_of(case.long, sample) for sample in samples]
    screened = case.scoring.model_copy(update={"segments": "screened"})
    parts: dict[str, Callable[[], object]] = {
        "ours: theta_A perplexity": lambda: score(case.short, samples, case.scoring, cam=False),
        "ours: theta_B perplexity and cam": lambda: score(case.long, samples, case.scoring, cam=True),
        "screened: theta_B perplexity and cam": lambda: score(case.long, samples, screened, cam=True),
        "plain: theta_A perplexity": lambda: [straightforward.perplexity(case.short, each, length) for each in samples],
    }
    for attention, plain in case.plain_long.items():
        parts |= {
            f"plain: theta_B perplexity, {attention}": partial(
                lambda model: [straightforward.perplexity(model, each, length) for each in samples], plain
            ),
            f"plain: theta_B segments, {attention}": partial(
                lambda model: [straightforward.segment_perplexities(model, each, segment) for each in prompts], plain
            ),
        }
    parts["plain: theta_B attention"] = lambda: [
        straightforward.segment_attention(case.plain_long["eager"], each, segment) for each in prompts
    ]
    return common.interleaved(parts, repetitions, case.long.device)


def summary(times: dict[str, list[float]]) -> tuple[dict[str, common.Spread], dict[str, list[float]]]:
    """Return the ratios of the wholes, round by round, by the straightforward theta_B; and the wholes' seconds."""
    sides = {"ours": [name for name in times if name.startswith("ours")]}
    for attention in ATTENTION:
        other = [f", {each}" for each in ATTENTION if each != attention]
        sides[attention] = [name for name in times if name.startswith("plain") and not name.endswith(tuple(other))]
    wholes = {
        side: [math.fsum(each) for each in zip(*(times[name] for name in names), strict=True)]
        for side, names in sides.items()
    }
    return {each: common.ratios(wholes[each], wholes["ours"]) for each in ATTENTION}, wholes


def run(shape: Shape, arguments: argparse.Namespace, response_tokens: tuple[int, ...]) -> dict[str, Any]:
    """Check, then measure, one set of samples."""
    shown = ", ".join(map(str, response_tokens))
    common.say(f"responses of {shown} tokens: comparing the numbers")
    case = make_case(shape, arguments, response_tokens)
    worst = check(case)
    times = measure(case, arguments.repetitions)
    ratio, wholes = summary(times)
    named = {f"whole: {side}": values for side, values in wholes.items()}
    rows = [[name, common.Spread.of(values).show()] for name, values in (times | named).items()]
    common.show(common.table([f"{len(case.samples)} samples, {shown} response tokens", "seconds (quartiles)"], rows))
    shown_ratios = ", ".join(f"{attention} {each.show()}" for attention, each in ratio.items())
    common.show(f"ratio: {shown_ratios}; largest relative difference {max(worst.values()):.1e}\n")
    return {"response_tokens": shown, "seconds": times, "ratio": ratio, "largest_difference": worst}


def planned_flops(segment_length: int) -> list[dict[str, Any]]:
    """Return by lengths the FLOPs of theta_B's tables, of those of a pass over each prompt, and the segments read."""
    spread = np.minimum(contexts(10_000, argparse.Namespace(mean_tokens=16_000)), 65_536.0)
    shown = {f"{tokens:,}": np.array([float(tokens)]) for tokens in (4_000, 8_000, 16_000, 32_000, 64_000)}
    found = []
    for name, lengths in {"LongAlign's": spread, **shown}.items():
        for response in (64, 127, 200, 400):
            tokens = SampleTokens(
                context=lengths,
                instruction=np.full_like(lengths, INSTRUCTION_TOKENS),
                response=np.full_like(lengths, response),
                limit=2**17,
                shared=np.full(lengths.size, True),  # the pass over the prompt is perplexity's
                shows_attention=True,
                shape=LLAMA_7B,
                **TokenRates().around,
            )
            prompt = float(perplexity_effort(tokens).flops(LLAMA_7B).sum())
            sides: dict[SegmentChoice, PlannedWork] = {
                side: cam_effort(tokens, length=segment_length, segments=side) for side in get_args(SegmentChoice)
            }
            segments = {side: float(sum(each.count.sum() for each in work.passes[1:3])) for side, work in sides.items()}
            found.append(
                {"context_tokens": name, "response_tokens": response}
                | {side: 1 + float(work.flops(LLAMA_7B).sum()) / prompt for side, work in sides.items()}
                | {"read": segments["screened"] / segments["all"]}
            )
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--tokens", type=int, default=4096, help="of each scoring prompt")
    sets = [(11, 37, 76, 422), (64,), (200,)]
    add("--response-tokens", type=lengths_of, nargs="+", default=sets, help="of each set of samples")
    add("--samples", type=int, default=2, help="in a set")
    add("--repetitions", type=int, default=3, help="rounds of about 30 s on two cores")
    add("--segment-length", type=int, default=128, help="as the paper has it")
    add("--batch-tokens", type=int, default=ScoringConfig().batch_tokens, help="scoring.batch_tokens")
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
        common.show(common.verdict(name, result["ratio"][ATTENTION[0]].median, TARGET, at_most=False))
    flops = planned_flops(options.segment_length)
    rows = [
        [each["context_tokens"], str(each["response_tokens"]), *(f"{each[name]:.2f}" for name in SHOWN)]
        for each in flops
    ]
    common.show(common.table(["tokens of contexts", "of responses", *SHOWN], rows))
    most = max(each["screened"] for each in flops if each["context_tokens"] == "LongAlign's")
    common.show(common.verdict("FLOPs of screened scoring in passes over the prompt", most, 2.0, at_most=True))
    worst = max(max(result["largest_difference"].values()) for result in results)
    common.show(common.verdict("largest relative difference", worst, TOLERANCE, at_most=True))
    content = {
        "machine": description,
        "settings": common.settings_of(options),
        "shape": asdict(shape),
        "cases": results,
        "flops": flops,
    }
    common.write_json(options.out, content)
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
