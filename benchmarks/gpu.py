"""Everything worth knowing about scoring and training on a CUDA GPU, in one run of less than nine minutes, one JSON.

    PYTHONPATH=. python benchmarks/gpu.py --out gpu.json
    PYTHONPATH=. python benchmarks/gpu.py --only training            in less than five minutes
    PYTHONPATH=. python benchmarks/gpu.py --tiny --device cpu        the whole script in about 40 seconds, on a CPU

Parts, in this order: the device; its measured bf16 matrix-product peak; parity with float32 on the CPU; a randomly
initialised 7B-shaped Llama, built on the GPU, at 4k, 16k and 64k tokens (the pass of theta_A, the pass of theta_B with
attention rows, the segment prompts: seconds, FLOP/s, share of the measured peak, peak memory); the kernels that ran;
whole samples through the pipeline's own loop; the straightforward implementation at 4k; one pass at 128k; an 8B shape
with grouped-query heads and a vocabulary of 128k.

Then training, at most four minutes: one optimiser step (forward pass, chunked loss, backward pass with gradient
checkpointing, clipping, AdamW) on packed rows of 8k, 32k and 64k tokens, of one document and of many short ones. A
1B-shaped model is trained whole (float32 weights, bfloat16 autocast), an 8B-shaped one by LoRA (rank 16, all linear
layers, float32 frozen weights), as `training` does on one GPU without DeepSpeed. One row more with Liger's kernels, if
they are installed, and one with all weights of the 8B shape, which needs more than 120 GiB. Share of peak counts the
forward and backward pass, and in a column of its own also the forward pass that checkpointing makes once more. What
does not fit says "out of memory". Training runs where transformers' Trainer does: on the first GPU, if there is one.

A part that fails, or for which no time is left, says so in the JSON and the others go on. The JSON is written again
after each part: a run that is killed loses the part it was in. Without --out it goes to $OUT/gpu.json, else to
build/benchmarks/gpu.json. Exit status 1 when a part failed or the numbers differ.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from common_measure import machine, show, table
from common_models import GROUPED, SEVEN_BILLION, SMALL, TINY, Shape
from gpu_measure import Gpu, Settings
from gpu_parts import Parts
from gpu_report import HEADER, TRAINING_HEADER, TRAINING_NOTE, conclusions, reasons, rows_of, training_rows_of
from gpu_training import run_training
from gpu_training_cases import FULL_TRAINING, QUICK_TRAINING

_TRAINING_SECONDS = 240.0
TINY_GROUPED = Shape(layers=2, hidden=32, heads=8, kv_heads=2, intermediate=48, vocabulary=600)
FULL = Settings(
    shape=SEVEN_BILLION,
    grouped=GROUPED,
    parity=SMALL,
    parity_tokens=1500,
    lengths=(4096, 16_384, 65_536),
    longest=131_072,
    straightforward_length=4096,
    response_tokens=200,
    segment_length=128,
    batch_tokens=16_384,
    peak_size=8192,
    enough_seconds=6.0,
)
QUICK = Settings(
    shape=TINY,
    grouped=TINY_GROUPED,
    parity=TINY,
    parity_tokens=200,
    lengths=(128, 256),
    longest=512,
    straightforward_length=128,
    response_tokens=20,
    segment_length=32,
    batch_tokens=512,
    peak_size=128,
    enough_seconds=0.1,
)


def describe(gpu: Gpu, parts: Parts) -> None:
    """What all figures are set beside."""
    parts.run("machine", 0, machine)
    parts.run("attention_backends", 0, gpu.backends)
    parts.run("matrix_product_peak", 10, gpu.matrix_product_peak)


def score(gpu: Gpu, parts: Parts) -> None:
    """The parts of scoring. The seconds are what each may take on a Hopper GPU, generously: fewer left, no part."""
    settings = gpu.settings
    parts.run("parity", 40, gpu.parity)
    parts.run("model", 60, lambda: gpu.build(settings.shape))
    for length, seconds in zip(settings.lengths, (15, 25, 60), strict=False):
        for kind in gpu.kinds:
            parts.run(f"{kind} {length}", seconds, lambda kind=kind, length=length: gpu.measure_pass(kind, length))
    for kind in gpu.kinds:
        parts.run(f"kernels of {kind}", 15, lambda kind=kind: gpu.kernels(kind, settings.lengths[0]))
    parts.run("whole samples, short", 20, lambda: gpu.whole_samples(8, settings.lengths[0]))
    parts.run("whole samples, long", 30, lambda: gpu.whole_samples(3, settings.lengths[1]))
    parts.run("straightforward", 40, gpu.straightforward)
    parts.run(f"joint {settings.longest}", 50, lambda: gpu.measure_pass("joint", settings.longest, once=True))
    parts.run("grouped model", 40, lambda: gpu.build(settings.grouped))
    for kind in gpu.kinds:
        name = f"grouped {kind} {settings.lengths[1]}"
        parts.run(name, 25, lambda kind=kind: gpu.measure_pass(kind, settings.lengths[1]))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", "build/benchmarks")) / "gpu.json"
    parser.add_argument("--out", type=Path, default=default, help="JSON file")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tries the script, measures nothing")
    parser.add_argument("--only", choices=["scoring", "training"], help="one half alone")
    parser.add_argument("--budget-seconds", type=float, default=520.0, help="no part starts that may outlast it")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run the parts, print; the exit status."""
    options = parse(arguments)
    settings = QUICK if options.tiny else FULL
    parts = Parts(file=options.out, budget_seconds=options.budget_seconds, tiny=options.tiny)
    with torch.no_grad():
        gpu = Gpu(settings=settings, device=torch.device(options.device))
        describe(gpu, parts)
        if options.only != "training":
            score(gpu, parts)
    del gpu  # and with it the last model
    if options.only != "scoring":
        parts.allow(_TRAINING_SECONDS)
        run_training(parts, QUICK_TRAINING if options.tiny else FULL_TRAINING)
    if rows := rows_of(parts.results):
        show(table(HEADER, rows) + "\n")
    if rows := training_rows_of(parts.results):
        show(table(TRAINING_HEADER, rows) + "\n\n" + TRAINING_NOTE)
    lines, good = conclusions(parts.results, settings)
    lines += reasons(parts.results)
    parts.finish(lines)
    for line in lines:
        show(line)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
