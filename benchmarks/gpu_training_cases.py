"""What benchmarks/gpu.py trains: the models, the rows of tokens, and the configuration that asks for it.

What of a model is trained is what one GPU of 139 GiB holds beside a long row. All weights: float32 weights, gradients
and two moments, 16 bytes a parameter: 16 GiB for 1B, 120 GiB for 8B. So the 8B shape is trained by LoRA (rank 16, all
linear layers; 30 GiB of frozen float32 weights), and all its weights are tried once. DeepSpeed's ZeRO has nothing to
share out on one GPU: in its bfloat16 mode too, all weights come to 16 bytes a parameter, unless they wait on the CPU.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from common_models import GROUPED, TINY, Shape

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.config.training_sections import LoraConfig
from gateau_dagster.training.batch_plan import BatchPlan
from gateau_dagster.training.batching import MixDocument
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.encode import IGNORED

PREFIX = "training "  # of the names of the parts
WARM_UP, TIMED = 1, 3  # steps; the first one also makes the optimiser's state
STEPS = WARM_UP + TIMED
ONE_BILLION = Shape(layers=22, hidden=2048, heads=32, kv_heads=4, intermediate=5632, vocabulary=32_000)
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model, and whether low-rank adapters or all its weights are trained."""

    name: str
    shape: Shape
    lora: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of tokens: a single document, or short ones side by side."""

    model: Trained
    tokens: int
    short: bool = False
    liger: bool = False
    at_most_seconds: float = 0.0  # what it may take on a Hopper GPU, generously

    @property
    def name(self) -> str:
        """Of the part."""
        weights = "LoRA" if self.model.lora else "all weights"
        documents = "short documents" if self.short else "one document"
        liger = ", Liger" if self.liger else ""
        return f"{PREFIX}{self.model.name}, {weights}, {self.tokens} tokens, {documents}{liger}"

    @property
    def training(self) -> TrainingConfig:
        """The section `training` that asks for it."""
        return TrainingConfig(
            batching="packed",
            max_length=self.tokens,
            max_steps=STEPS,
            gradient_accumulation=1,
            gradient_checkpointing=True,
            lora=LoraConfig() if self.model.lora else None,
            liger=self.liger,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Sizes of everything, in tokens unless said otherwise."""

    small: Trained
    large: Trained
    lengths: tuple[int, ...]
    at_most_seconds: tuple[float, ...]  # of a case of each length
    response_tokens: int  # the end of a single document, which is trained; of a short one it is the second half
    short_lengths: tuple[int, int]  # the shortest and the longest of the short documents
    enough_seconds: float  # of timed steps of a case

    @property
    def cases(self) -> Iterator[Case]:
        """Both models at all lengths; then Liger's kernels, to set beside the same row without; then all of `large`."""
        for model in (self.small, self.large):
            for tokens, most in zip(self.lengths, self.at_most_seconds, strict=True):
                for short in (False, True):
                    yield Case(model=model, tokens=tokens, short=short, at_most_seconds=most)
        tokens, most = self.lengths[1], self.at_most_seconds[1]
        yield Case(model=self.small, tokens=tokens, short=True, liger=True, at_most_seconds=most)
        whole = Trained(name=self.large.name, shape=self.large.shape)
        yield Case(model=whole, tokens=self.lengths[0], at_most_seconds=most)


FULL_TRAINING = TrainingSettings(
    small=Trained(name="1B", shape=ONE_BILLION),
    large=Trained(name="8B", shape=GROUPED, lora=True),
    lengths=(8192, 32_768, 65_536),
    at_most_seconds=(20, 35, 65),
    response_tokens=512,
    short_lengths=(128, 1024),
    enough_seconds=8.0,
)
QUICK_TRAINING = TrainingSettings(
    small=Trained(name="1B", shape=TINY),
    large=Trained(name="8B", shape=TINY, lora=True),
    lengths=(64, 96, 128),
    at_most_seconds=(0, 0, 0),
    response_tokens=10,
    short_lengths=(8, 24),
    enough_seconds=0.1,
)


def document_lengths(case: Case, settings: TrainingSettings) -> list[int]:
    """Tokens of each document of the row, which they fill."""
    if not case.short:
        return [case.tokens]
    rng, (shortest, longest) = random.Random(_SEED), settings.short_lengths
    lengths: list[int] = []
    while (left := case.tokens - sum(lengths)) > 0:
        drawn = rng.randint(shortest, longest)
        lengths.append(left if left < drawn + shortest else drawn)
    return lengths


def row_of(case: Case, settings: TrainingSettings) -> tuple[MixRows, BatchPlan, int]:
    """The row, once for each step, the plan that says so, and its trained tokens."""
    lengths = document_lengths(case, settings)
    trained = [n // 2 if case.short else settings.response_tokens for n in lengths]
    rng = np.random.default_rng(_SEED)
    ids = [rng.integers(case.model.shape.vocabulary, size=n) for n in lengths]
    labels = [
        np.where(np.arange(len(each)) < len(each) - n, IGNORED, each) for each, n in zip(ids, trained, strict=True)
    ]
    count = len(lengths)
    columns = {"position": range(count), "sample_id": [f"d{index:05d}" for index in range(count)]}
    mix = pl.DataFrame(
        columns | {"input_ids": [each.tolist() for each in ids], "labels": [each.tolist() for each in labels]}
    )
    rows = tuple(tuple(MixDocument(row=index, epoch=step) for index in range(count)) for step in range(STEPS))
    plan = BatchPlan(rows=rows, steps=STEPS, accumulation=1, processes=1, rows_per_batch=1)
    return MixRows(mix, plan), plan, sum(trained)
