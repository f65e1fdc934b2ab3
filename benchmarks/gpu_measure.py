"""The measurements of benchmarks/gpu.py, one method each; every one returns what goes into the JSON."""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import common_straightforward as straightforward
import torch
from common_measure import PeakMemory, memory_held, say, seconds
from common_models import Shape, build_model, copy_to, make_samples, prompt_of, scoring_config
from common_passes import Pass, joint_pass, measure, plain_pass, segment_passes
from common_pipeline import cam_differences, difference, score, score_with_meter

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loading import LoadedModel

_ATTENTION_WORDS = ("flash", "fmha", "attention", "varlen", "sdpa", "softmax")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes of everything, in tokens unless said otherwise."""

    shape: Shape
    grouped: Shape
    parity: Shape
    parity_tokens: int
    lengths: tuple[int, ...]
    longest: int
    straightforward_length: int
    response_tokens: int
    segment_length: int
    batch_tokens: int
    peak_size: int  # rows and columns of the matrices whose product is timed
    enough_seconds: float  # of repeating one pass


class Gpu:
    """The device, and the model that is on it."""

    kinds = ("plain", "joint", "segments")

    def __init__(self, *, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self._device = device
        self._loaded: LoadedModel | None = None
        self._base = 0

    @property
    def loaded(self) -> LoadedModel:
        """The model; a part that could not build it fails all that need it."""
        if self._loaded is None:
            raise RuntimeError("there is no model: the part that builds it failed or had no time")
        return self._loaded

    def backends(self) -> dict[str, Any]:
        """What attention could run on; `kernels` says what did."""
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
        """bf16 FLOP/s of large square products on random data: the median of bursts, once the clocks have settled."""
        size = self.settings.peak_size
        a, b = (torch.randn(size, size, device=self._device, dtype=torch.bfloat16) for _ in range(2))
        flops = 2.0 * size**3

        def burst() -> None:
            for _ in range(20):
                torch.mm(a, b)

        seconds(burst, self._device)
        rates = [20 * flops / seconds(burst, self._device) for _ in range(15)]
        return {"size": size, "flops_per_second": statistics.median(rates), "best_flops_per_second": max(rates)}

    def parity(self) -> dict[str, Any]:
        """Largest relative differences from the straightforward implementation in float32 on the CPU, by dtype.

        The weights are such that bfloat16 holds them exactly: what differs is the arithmetic, not the model.
        """
        settings = self.settings
        rounded = build_model(settings.parity, name="long", dtype=torch.bfloat16, seed=3)
        exact = copy_to(rounded, settings.parity, dtype=torch.float32, device="cpu")
        lengths = (settings.parity_tokens, settings.parity_tokens * 2 // 3)
        answer = settings.parity_tokens // 10
        words = settings.parity.vocabulary
        samples = [make_samples(words, 1, tokens=each, response_tokens=answer)[0] for each in lengths]
        segment = settings.segment_length
        perplexities = [straightforward.perplexity(exact, sample, max(lengths)) for sample in samples]
        cams = [straightforward.cam(exact, sample, max(lengths), segment) for sample in samples]
        found: dict[str, Any] = {}
        for name in ("float32", "bfloat16"):
            loaded = copy_to(rounded, settings.parity, dtype=getattr(torch, name), device=str(self._device))
            for batch_tokens in (settings.batch_tokens, settings.parity_tokens // 2):
                scoring = self._scoring(name, max(lengths), batch_tokens)
                rows, cam_rows = score(loaded, samples, scoring, cam=True)
                worst = {"perplexity": difference([row.perplexity for row in rows], perplexities)}
                worst |= cam_differences(cam_rows, cams)
                before = found.get(name, {})
                found[name] = {each: max(value, before.get(each, 0.0)) for each, value in worst.items()}
        return found

    def build(self, shape: Shape) -> dict[str, Any]:
        """The model of this shape in bfloat16, made on the device in place of the one before."""
        self._loaded = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

        def make() -> None:
            self._loaded = build_model(shape, name="model", dtype=torch.bfloat16, device=str(self._device))

        taken = seconds(make, self._device)
        self._base = memory_held(self._device)
        parameters = sum(each.numel() for each in self.loaded.model.parameters())
        return {"shape": asdict(shape), "parameters": parameters, "bytes": self._base, "seconds": taken}

    def measure_pass(self, kind: str, length: int, *, once: bool = False) -> dict[str, Any]:
        """One kind of pass over a prompt of this length, or over the segment prompts of that sample."""
        most, enough = (0, 0.0) if once else (10, self.settings.enough_seconds)
        found = measure(self.loaded, self._pass(kind, length), base=self._base, most=most, enough_seconds=enough)
        result = asdict(found) | {"best_seconds": found.best, "median_seconds": statistics.median(found.seconds)}
        if self._device.type == "cuda":  # with what the allocator keeps at hand
            result["reserved_bytes"] = torch.cuda.max_memory_reserved(self._device)
        return result

    def kernels(self, kind: str, length: int) -> dict[str, Any]:
        """The kernels (on a CPU: the operators) that took the most time, and those that look like attention."""
        work = self._pass(kind, length).work
        work()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            seconds(work, self._device)
        times = _kernel_seconds(profile, self._device)
        total = sum(times.values())
        ranked = sorted(times.items(), key=lambda item: -item[1])
        shares = [{"name": name[:160], "share": round(time / total, 4)} for name, time in ranked if total]
        attention = [each for each in shares if any(word in each["name"].lower() for word in _ATTENTION_WORDS)]
        return {"device_seconds": total, "largest": shares[:15], "attention": attention[:8]}

    def whole_samples(self, count: int, length: int) -> dict[str, Any]:
        """Both tables of theta_B for some samples, from their text, by the loop that scores a shard."""
        samples = self._samples(count, length)
        scoring = self._scoring("bfloat16", length, self.settings.batch_tokens)
        score(self.loaded, samples[:1], scoring, cam=True)
        memory = PeakMemory(self._device)
        meters = []
        times = [
            seconds(lambda: meters.append(score_with_meter(self.loaded, samples, scoring)), self._device)
            for _ in range(2)
        ]
        work = (meters[0].perplexity, meters[0].cam)
        say(f"  {count} samples of {length} tokens: {min(times):.2f} s")
        return {
            "samples": count,
            "tokens": sum(each.tokens for each in work),
            "flops": sum(each.flops for each in work),
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
        memory = PeakMemory(self._device)
        plain = [straightforward.perplexity(self.loaded, samples[0], length)]
        plain_cam = straightforward.cam(self.loaded, samples[0], length, segment)
        peak = memory.read()
        ours, theirs = [], []
        for _ in range(3):
            ours.append(seconds(lambda: score(self.loaded, samples, scoring, cam=True), self._device))
            theirs.append(seconds(lambda: self._straightforward(samples[0], length), self._device))
        worst = {"perplexity": difference([rows[0].perplexity], plain)} | cam_differences(cams, [plain_cam])
        return {
            "seconds": theirs,
            "our_seconds": ours,
            "ratio": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
            "straightforward_peak_bytes": peak,
            "differences": worst,
        }

    def _straightforward(self, sample: Sample, length: int) -> None:
        straightforward.perplexity(self.loaded, sample, length)
        straightforward.cam(self.loaded, sample, length, self.settings.segment_length)

    def _pass(self, kind: str, length: int) -> Pass:
        prompt = prompt_of(self.loaded, self._samples(1, length)[0])
        if kind == "plain":
            return plain_pass(self.loaded, prompt)
        if kind == "joint":
            return joint_pass(self.loaded, prompt)
        settings = self.settings
        return segment_passes(
            self.loaded, prompt, segment_length=settings.segment_length, batch_tokens=settings.batch_tokens
        )

    def _samples(self, count: int, length: int) -> list[Sample]:
        vocabulary = self.loaded.model.config.vocab_size
        return make_samples(vocabulary, count, tokens=length, response_tokens=self.settings.response_tokens)

    def _scoring(self, dtype: str, length: int, batch_tokens: int) -> ScoringConfig:
        return scoring_config(
            device=str(self._device),
            dtype=dtype,
            tokens=length,
            segment_length=self.settings.segment_length,
            batch_tokens=batch_tokens,
        )


def _kernel_seconds(profile: Any, device: torch.device) -> dict[str, float]:
    """Seconds by kernel on a GPU, by operator on a CPU."""
    if device.type != "cuda":
        return {event.key: event.self_cpu_time_total / 1e6 for event in profile.key_averages()}
    # Entries of the host's own operators carry the time of the kernels they start: those would count twice.
    on_device = [event for event in profile.key_averages() if event.device_type.name != "CPU"]
    return {event.key: event.self_device_time_total / 1e6 for event in on_device}
