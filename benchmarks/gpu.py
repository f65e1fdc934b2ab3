"""Everything worth knowing about scoring and training on a CUDA GPU, in one run of less than nine minutes, one JSON.

    PYTHONPATH=. python benchmarks/gpu.py --out gpu.json
    PYTHONPATH=. python benchmarks/gpu.py --only training            in less than five minutes
    PYTHONPATH=. python benchmarks/gpu.py --only long                rows of 32k to 384k tokens; see --budget-seconds
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
forward and backward pass. Another column also counts the forward pass that checkpointing repeats. A case that does
not fit says "out of memory". Training runs where transformers' Trainer does: on the first GPU, if there is one.

A part that fails, or for which no time is left, says so in the JSON and the others go on. The JSON is written again
after each part: a run that is killed loses the part it was in. Without --out it goes to $OUT/gpu.json, else to
build/benchmarks/gpu.json. Exit status 1 when a part failed or the numbers differ.
"""

import argparse
import gc
import os

# Before torch starts CUDA: less fragmentation, and pages of host memory that are pinned by several threads.
os.environ.setdefault(
    "PYTORCH_CUDA_ALLOC_CONF",
    "expandable_segments:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
)
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import common_models as models
import common_scoring as straightforward
import torch
from common_scoring import Pass, PassKind, cam_differences, difference, make_pass, measure, score
from gpu_training import (
    FULL_TRAINING,
    LONG_TRAINING,
    PREFIX,
    QUICK_LONG_TRAINING,
    QUICK_TRAINING,
    LongSettings,
    free_host_memory,
    measure_case,
    one_rank,
)

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loaded import LoadedModel, Meter

_TRAINING_SECONDS = 240.0
_ATTENTION_WORDS = ("flash", "fmha", "attention", "varlen", "sdpa", "softmax")
PASS_TARGET, SEGMENT_TARGET = 0.5, 0.4  # share of the measured bf16 matrix-product peak
MEMORY_TARGET = 80e9  # bytes: a GPU of 80 GB
FP32_TARGET, BF16_TARGET = 1e-4, 1e-2  # relative

HEADER = ("part", "seconds", "tokens/s", "TFLOP/s", "share of peak", "peak GiB")
TRAINING_HEADER = (
    *("training, a step of", "seconds", "useful tokens/s", "TFLOP/s"),
    *("share of peak", "with recomputation", "peak GiB"),
)
TRAINING_NOTE = """\
A step: forward pass, loss in chunks, backward pass with gradient checkpointing, AdamW; bfloat16 autocast over float32
weights without DeepSpeed, bfloat16 weights with it. LoRA: rank 16, all linear layers. Share of peak counts forward and
backward pass; with recomputation also each layer's second forward pass, for checkpointing. Peak GiB: everything that is
held. Levers: checkpoints in the host's memory, feed-forward layers in tiles. With DeepSpeed: the second step, above
128k tokens the first, which also pins the host's memory.
"""

Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes of everything, in tokens unless a comment tells otherwise."""

    shape: models.Shape = models.SEVEN_BILLION
    grouped: models.Shape = models.GROUPED
    parity: models.Shape = models.SMALL
    parity_tokens: int = 1500
    lengths: tuple[int, ...] = (4096, 16_384, 65_536)
    longest: int = 131_072
    straightforward_length: int = 4096
    response_tokens: int = 200
    segment_length: int = 128
    batch_tokens: int = 16_384
    peak_size: int = 8192  # rows and columns of the matrices whose product is timed
    enough_seconds: float = 6.0  # of repeating one pass


FULL = Settings()
QUICK = Settings(
    shape=models.TINY,
    grouped=models.Shape(layers=2, hidden=32, heads=8, kv_heads=2, intermediate=48, vocabulary=600),
    parity=models.TINY,
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


class Parts:
    """Run parts one by one. What fails or has no time left is recorded; all results are written after each part."""

    def __init__(self, *, file: Path, budget_seconds: float, tiny: bool) -> None:
        self._file = file
        self._started = time.monotonic()
        self._budget = budget_seconds
        self._tiny = tiny
        self.results: dict[str, dict[str, Any]] = {}

    def allow(self, seconds: float) -> None:
        """Start no other part that may outlast this many seconds, nor the whole budget."""
        self._budget = min(self._budget, time.monotonic() - self._started + seconds)

    def run(self, name: str, at_most_seconds: float, work: Callable[[], dict[str, Any]]) -> None:
        """Record the result of a part, or `error` or `skipped` with the reason; and `part_seconds`, its time in all."""
        if torch.cuda.is_available():
            # Whatever the part before held, also by a failed call's frames, is free for this one.
            gc.collect()
            torch.cuda.empty_cache()
        started = time.monotonic()
        left = self._budget - (started - self._started)
        common.say(f"{name} ({left:.0f} s left)")
        if left < at_most_seconds and not self._tiny:
            self.results[name] = {"skipped": f"{left:.0f} s were left, it may take {at_most_seconds:.0f}"}
        else:
            try:
                self.results[name] = work()
            except Exception as error:  # out of memory, a missing kernel: the figure is absent, the run goes on
                self.results[name] = {"error": f"{type(error).__name__}: {common.first_line(error)}"}
        self.results[name]["part_seconds"] = round(time.monotonic() - started, 2)
        for key in ("error", "skipped", "out_of_memory", "left_out"):
            if key in self.results[name]:
                common.say(f"  {key}: {self.results[name][key]}")
        self._write([])

    def finish(self, lines: Sequence[str]) -> None:
        """Add the conclusions."""
        self._write(lines)
        common.say(f"{time.monotonic() - self._started:.0f} s in all; wrote {self._file.name}")

    def _write(self, lines: Sequence[str]) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        content = {"tiny": self._tiny, "seconds": seconds, "parts": self.results, "conclusions": list(lines)}
        common.write_json(self._file, content, announce=False)


class Gpu:
    """The device, and the model that is on it."""

    kinds: tuple[PassKind, ...] = ("plain", "joint", "segments")

    def __init__(self, *, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self._device = device
        self._loaded: LoadedModel | None = None
        self._base = 0

    @property
    def loaded(self) -> LoadedModel:
        """The model. Raises RuntimeError where the part that builds it failed, in all parts that need it."""
        if self._loaded is None:
            raise RuntimeError("there is no model: the part that builds it failed or had no time")
        return self._loaded

    def backends(self) -> dict[str, Any]:
        """Return the backends that attention could use; `kernels` returns those that it used."""
        found: dict[str, Any] = {"device": self._device.type}
        if self._device.type == "cuda":
            found |= {
                "capability": list(torch.cuda.get_device_capability(self._device)),
                "flash_available": torch.backends.cuda.is_flash_attention_available(),
                "flash_sdp_enabled": torch.backends.cuda.flash_sdp_enabled(),
                "cudnn_sdp_enabled": torch.backends.cuda.cudnn_sdp_enabled(),
                "free_bytes": torch.cuda.mem_get_info(self._device)[0],
                "tf32": torch.backends.cuda.matmul.allow_tf32,
            }
        return found

    def matrix_product_peak(self) -> dict[str, Any]:
        """Return bf16 FLOP/s of large square products on random data: the median of bursts, once the clocks settle."""
        size = self.settings.peak_size
        a, b = (torch.randn(size, size, device=self._device, dtype=torch.bfloat16) for _ in range(2))
        flops = 2.0 * size**3

        def burst() -> None:
            for _ in range(20):
                torch.mm(a, b)

        common.seconds(burst, self._device)
        rates = [20 * flops / common.seconds(burst, self._device) for _ in range(15)]
        return {"size": size, "flops_per_second": statistics.median(rates), "best_flops_per_second": max(rates)}

    def parity(self) -> dict[str, Any]:
        """Return the largest relative differences from the straightforward side in float32 on the CPU, by dtype.

        The weights are such that bfloat16 holds them exactly: what differs is the arithmetic, not the model.
        """
        settings = self.settings
        rounded = models.build_model(settings.parity, name="long", dtype=torch.bfloat16, seed=3)
        exact = models.copy_to(rounded, settings.parity, dtype=torch.float32, device="cpu")
        lengths = (settings.parity_tokens, settings.parity_tokens * 2 // 3)
        answer = settings.parity_tokens // 10
        words = settings.parity.vocabulary
        samples = [models.make_samples(words, 1, tokens=each, response_tokens=answer)[0] for each in lengths]
        segment = settings.segment_length
        perplexities = [straightforward.perplexity(exact, sample, max(lengths)) for sample in samples]
        cams = [straightforward.cam(exact, sample, max(lengths), segment) for sample in samples]
        found: dict[str, Any] = {}
        for name in ("float32", "bfloat16"):
            loaded = models.copy_to(rounded, settings.parity, dtype=getattr(torch, name), device=str(self._device))
            for batch_tokens in (settings.batch_tokens, settings.parity_tokens // 2):
                scoring = self._scoring(name, max(lengths), batch_tokens)
                rows, cam_rows = score(loaded, samples, scoring, cam=True)
                worst = {"perplexity": difference([row.perplexity for row in rows], perplexities)}
                worst |= cam_differences(cam_rows, cams)
                before = found.get(name, {})
                found[name] = {each: max(value, before.get(each, 0.0)) for each, value in worst.items()}
        return found

    def build(self, shape: models.Shape) -> dict[str, Any]:
        """Build the model of this shape in bfloat16, on the device, in place of the one before."""
        self._loaded = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

        def make() -> None:
            self._loaded = models.build_model(shape, name="model", dtype=torch.bfloat16, device=str(self._device))

        taken = common.seconds(make, self._device)
        self._base = common.memory_held(self._device)
        parameters = sum(each.numel() for each in self.loaded.model.parameters())
        return {"shape": asdict(shape), "parameters": parameters, "bytes": self._base, "seconds": taken}

    def measure_pass(self, kind: PassKind, length: int, *, once: bool = False) -> dict[str, Any]:
        """Measure one kind of pass over a prompt of this length, or over the segment prompts of that sample."""
        most, enough = (0, 0.0) if once else (10, self.settings.enough_seconds)
        found = measure(self.loaded, self._pass(kind, length), base=self._base, most=most, enough_seconds=enough)
        result = asdict(found) | {"best_seconds": found.best, "median_seconds": statistics.median(found.seconds)}
        return result | common.reserved_bytes(self._device)

    def kernels(self, kind: PassKind, length: int) -> dict[str, Any]:
        """Return the kernels (on a CPU: operators) that took the most time, and those that look like attention."""
        work = self._pass(kind, length).work
        work()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            common.seconds(work, self._device)
        times = _kernel_seconds(profile, self._device)
        total = sum(times.values())
        ranked = sorted(times.items(), key=lambda item: -item[1])
        shares = [{"name": name[:160], "share": round(time / total, 4)} for name, time in ranked if total]
        attention = [each for each in shares if any(word in each["name"].lower() for word in _ATTENTION_WORDS)]
        return {"device_seconds": total, "largest": shares[:15], "attention": attention[:8]}

    def whole_samples(self, count: int, length: int) -> dict[str, Any]:
        """Score both tables of theta_B for some samples, from their text, by the loop that scores a shard."""
        samples = self._samples(count, length)
        scoring = self._scoring("bfloat16", length, self.settings.batch_tokens)
        score(self.loaded, samples[:1], scoring, cam=True)
        memory = common.PeakMemory(self._device)
        work = Meter()
        times = [
            common.seconds(
                lambda meter=meter: score(self.loaded, samples, scoring, cam=True, meter=meter), self._device
            )
            for meter in (work, Meter())
        ]
        totals = (work.perplexity, work.cam)
        common.say(f"  {count} samples of {length} tokens: {min(times):.2f} s")
        return {
            "samples": count,
            "tokens": sum(each.tokens for each in totals),
            "flops": sum(each.flops for each in totals),
            "seconds": times,
            "best_seconds": min(times),
            "total_peak_bytes": memory.read(),
        }

    def straightforward(self) -> dict[str, Any]:
        """Both ways for one sample, theta_B: seconds of each in turns, their ratio, the difference in bfloat16."""
        length, segment = self.settings.straightforward_length, self.settings.segment_length
        samples = self._samples(1, length)
        scoring = self._scoring("bfloat16", length, self.settings.batch_tokens)
        rows, cams = score(self.loaded, samples, scoring, cam=True)
        memory = common.PeakMemory(self._device)
        plain = [straightforward.perplexity(self.loaded, samples[0], length)]
        plain_cam = straightforward.cam(self.loaded, samples[0], length, segment)
        peak = memory.read()
        sides = {
            "ours": lambda: score(self.loaded, samples, scoring, cam=True),
            "plain": lambda: (
                straightforward.perplexity(self.loaded, samples[0], length),
                straightforward.cam(self.loaded, samples[0], length, segment),
            ),
        }
        times = common.interleaved(sides, 3, self._device)
        return {
            "seconds": times["plain"],
            "our_seconds": times["ours"],
            "ratio": common.ratios(times["plain"], times["ours"]).median,
            "straightforward_peak_bytes": peak,
            "differences": {"perplexity": difference([rows[0].perplexity], plain)} | cam_differences(cams, [plain_cam]),
        }

    def _pass(self, kind: PassKind, length: int) -> Pass:
        prompt = models.prompt_of(self.loaded, self._samples(1, length)[0])
        sizes = {"segment_length": self.settings.segment_length, "batch_tokens": self.settings.batch_tokens}
        return make_pass(kind, self.loaded, prompt, **sizes)

    def _samples(self, count: int, length: int) -> list[Sample]:
        vocabulary = self.loaded.model.config.vocab_size
        return models.make_samples(vocabulary, count, tokens=length, response_tokens=self.settings.response_tokens)

    def _scoring(self, dtype: str, length: int, batch_tokens: int) -> ScoringConfig:
        sizes = {"tokens": length, "segment_length": self.settings.segment_length, "batch_tokens": batch_tokens}
        return models.scoring_config(device=str(self._device), dtype=dtype, **sizes)


def _kernel_seconds(profile: Any, device: torch.device) -> dict[str, float]:
    """Return seconds by kernel on a GPU, by operator on a CPU."""
    if device.type != "cuda":
        return {event.key: event.self_cpu_time_total / 1e6 for event in profile.key_averages()}
    # Entries of the host's own operators carry the time of the kernels they start: those would count twice.
    on_device = [event for event in profile.key_averages() if event.device_type.name != "CPU"]
    return {event.key: event.self_device_time_total / 1e6 for event in on_device}


def rows_of(results: Results) -> list[list[object]]:
    """Return one row per pass of scoring that was measured or failed."""
    shown = {"flops", "error", "skipped"}
    rows = {name: found for name, found in results.items() if not name.startswith(PREFIX) and shown & set(found)}
    return [_row(name, found, _peak(results))[:6] for name, found in rows.items()]


def training_rows_of(results: Results) -> list[list[object]]:
    """Return one row per case of training, also where nothing could be measured."""
    cases = {name.removeprefix(PREFIX): found for name, found in results.items() if name.startswith(PREFIX)}
    rows = [_row(name, found, _peak(results)) for name, found in cases.items()]
    return [[*row[:5], row[6], row[5]] for row in rows]


def _row(name: str, found: Mapping[str, Any], peak: float | None) -> list[object]:
    """Return name, seconds, tokens/s, TFLOP/s, share of peak, peak GiB, share with recomputation."""
    if "flops" not in found:
        reasons = {"out_of_memory": "out of memory", "left_out": found.get("left_out"), "error": "failed"}
        return [name, next((shown for key, shown in reasons.items() if key in found), "no time"), *[""] * 5]
    seconds, work = found["best_seconds"], found["flops"]
    again = work + found.get("recomputed_flops", 0.0)
    shares = ["" if peak is None else f"{flops / seconds / peak:.0%}" for flops in (work, again)]
    rates = [f"{seconds:.3f}", f"{found['tokens'] / seconds:.0f}", f"{work / seconds / 1e12:.3g}"]
    return [name, *rates, shares[0], f"{found['total_peak_bytes'] / 2**30:.1f}", shares[1]]


def _peak(results: Results) -> float | None:
    return results.get("matrix_product_peak", {}).get("flops_per_second")


def reasons(results: Results) -> list[str]:
    """Return a line for each part without figures: its reason."""
    keys = ("error", "out_of_memory", "reason", "skipped")
    return [f"{name}: {found[key]}" for name, found in results.items() for key in keys if key in found]


def conclusions(results: Results, settings: Settings) -> tuple[list[str], bool]:
    """Return lines that compare figures with targets; and whether every part worked and the numbers agree."""
    parity = results.get("parity", {})
    wanted = (("float32", FP32_TARGET), ("bfloat16", BF16_TARGET))
    agree = [(name, max(parity[name].values()), target) for name, target in wanted if name in parity]
    lines = [
        common.verdict(f"parity with the CPU, {name}", worst, target, at_most=True) for name, worst, target in agree
    ]
    peak, middle, last = _peak(results), settings.lengths[1], settings.lengths[-1]
    for kind, target in (("plain", PASS_TARGET), ("joint", PASS_TARGET), ("segments", SEGMENT_TARGET)):
        found = results.get(f"{kind} {middle}", {})
        if peak and "flops" in found:
            share = found["flops"] / found["best_seconds"] / peak
            lines.append(common.verdict(f"share of peak, {kind} at {middle}", share, target, at_most=False))
    largest = [results.get(f"{kind} {last}", {}).get("total_peak_bytes", 0) for kind in ("plain", "joint", "segments")]
    if all(largest):
        lines.append(common.verdict(f"bytes at {last} beside the model", max(largest), MEMORY_TARGET, at_most=True))
    ratio = results.get("straightforward", {}).get("ratio")
    if ratio:
        lines.append(f"times faster than the straightforward implementation: {ratio:.2f}")
    failed = [name for name, found in results.items() if "error" in found]
    if failed:
        lines.append(f"failed: {', '.join(failed)}")
    compared = "parity" not in results or len(agree) == len(wanted)  # without the part, no scoring was asked for
    return lines, not failed and compared and all(worst <= target for _, worst, target in agree)


def score_all(gpu: Gpu, parts: Parts) -> None:
    """Run the parts of scoring. The seconds are what each may take on a Hopper GPU, generously: fewer left, no part."""
    settings = gpu.settings
    parts.run("parity", 25, gpu.parity)
    parts.run("model", 20, lambda: gpu.build(settings.shape))
    for length, limit in zip(settings.lengths, (10, 12, 25), strict=False):
        for kind in gpu.kinds:
            parts.run(f"{kind} {length}", limit, lambda kind=kind, length=length: gpu.measure_pass(kind, length))
    for kind in gpu.kinds:
        parts.run(f"kernels of {kind}", 8, lambda kind=kind: gpu.kernels(kind, settings.lengths[0]))
    parts.run("whole samples, short", 15, lambda: gpu.whole_samples(8, settings.lengths[0]))
    parts.run("whole samples, long", 30, lambda: gpu.whole_samples(3, settings.lengths[1]))
    parts.run("straightforward", 20, gpu.straightforward)
    parts.run(f"joint {settings.longest}", 25, lambda: gpu.measure_pass("joint", settings.longest, once=True))
    parts.run("grouped model", 25, lambda: gpu.build(settings.grouped))
    if "skipped" in parts.results["grouped model"]:
        return  # the passes would be those of the model before
    for kind in gpu.kinds:
        name = f"grouped {kind} {settings.lengths[1]}"
        parts.run(name, 25, lambda kind=kind: gpu.measure_pass(kind, settings.lengths[1]))


def train_long(parts: Parts, training: LongSettings) -> None:
    """Run the long rows, in one process group."""
    with one_rank():
        for case in training.cases:
            free_host_memory()
            parts.run(case.name, case.at_most_seconds, lambda case=case: measure_case(case, training))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.benchmark_parser(__doc__, default=Path(os.environ.get("OUT", "build/benchmarks")) / "gpu.json")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tries the script, measures nothing")
    parser.add_argument("--only", choices=["scoring", "training", "long"], help="one kind alone; long only with this")
    parser.add_argument("--budget-seconds", type=float, default=520.0, help="no part starts that may outlast it")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, run the parts, print; the exit status."""
    options = parse(arguments)
    settings = QUICK if options.tiny else FULL
    parts = Parts(file=options.out, budget_seconds=options.budget_seconds, tiny=options.tiny)
    with torch.no_grad():
        gpu = Gpu(settings=settings, device=torch.device(options.device))
        parts.run("machine", 0, common.machine)
        parts.run("attention_backends", 0, gpu.backends)
        parts.run("matrix_product_peak", 10, gpu.matrix_product_peak)
        if options.only in (None, "scoring"):
            score_all(gpu, parts)
    del gpu  # and with it the last model
    if options.only in (None, "training"):
        parts.allow(_TRAINING_SECONDS)
        training = QUICK_TRAINING if options.tiny else FULL_TRAINING
        for case in training.cases:
            parts.run(case.name, case.at_most_seconds, lambda case=case: measure_case(case, training))
    if options.only == "long":
        train_long(parts, QUICK_LONG_TRAINING if options.tiny else LONG_TRAINING)
    if rows := rows_of(parts.results):
        common.show(common.table(HEADER, rows) + "\n")
    if rows := training_rows_of(parts.results):
        common.show(common.table(TRAINING_HEADER, rows) + "\n\n" + TRAINING_NOTE)
    lines, good = conclusions(parts.results, settings)
    lines += reasons(parts.results)
    parts.finish(lines)
    for line in lines:
        common.show(line)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
