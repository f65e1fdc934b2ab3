"""What each head of theta_B attends to while it answers, and what each segment alone says: for cam_study.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from common_selection import Tables
from torch import Tensor

from gateau_dagster.models.attention_rows import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.forward import response_nll
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.models.packing import packed_states
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.segments import cut_segments, segment_prompts

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """One sample; K heads of all layers in order, R response tokens, N segments, n_far of them unseen by theta_A.

    mass, peak: [K, R + 1, N], attention of a row to a segment's tokens, their sum and the largest. Row t predicts
    response token t, row R is that of the last response token. alone [N, R], full, short, without [R]: probability of
    each response token given a segment alone, everything (theta_B), theta_A's sight, no context. tokens [N]: of each
    segment.
    """

    mass: Array
    peak: Array
    alone: Array
    full: Array
    short: Array
    without: Array
    tokens: Array
    n_far: Array  # [] one number

    @property
    def far(self) -> slice:
        """The far segments, the first ones."""
        return slice(0, int(self.n_far))


@dataclass(kw_only=True)
class _Observer:
    """Sums and maxima over segments of the weights of the rows [start, stop), layer by layer."""

    rows: tuple[int, int]
    borders: Sequence[tuple[int, int]]  # of the segments, in tokens of the prompt
    mass: list[Tensor] = field(default_factory=list)
    peak: list[Tensor] = field(default_factory=list)

    def observe(self, query: Tensor, key: Tensor, pattern: MaskPattern, how: AttentionSpec) -> None:
        """Add a layer's query [H, T, D] and key [H_kv, T, D]."""
        assert pattern == MaskPattern(), "the synthetic pair attends to everything before"
        shape = (query.shape[0], self.rows[1] - self.rows[0], len(self.borders))
        mass, peak = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        groups = query.shape[0] // key.shape[0]
        for heads, some in row_blocks(query, key.shape[0], *self.rows, how):
            weights = attention_rows(query, key, heads, some, how).flatten(0, 1).double()
            place = (
                slice(heads.start * groups, heads.stop * groups),
                slice(some.start - self.rows[0], some.stop - self.rows[0]),
            )
            for number, (begin, end) in enumerate(self.borders):
                mass[(*place, number)] = weights[..., begin:end].sum(dim=-1)
                peak[(*place, number)] = weights[..., begin:end].amax(dim=-1)
        self.mass.append(mass)
        self.peak.append(peak)


def attended(loaded: LoadedModel, prompt: Prompt, segment_length: int) -> tuple[Array, Array]:
    """`mass` and `peak` of Heads."""
    start, stop = prompt.response_span
    offset = prompt.context_span[0]
    borders = [(offset + a, offset + b) for a, b in cut_segments(len(prompt.context), segment_length)]
    observer = _Observer(rows=(start - 1, stop), borders=borders)
    packed_states(loaded, [prompt.ids], observer.observe)
    return torch.cat(observer.mass).numpy(), torch.cat(observer.peak).numpy()


def measured(known: Tables, file: Path) -> list[Heads]:
    """Of every sample of `known`, in order: from `file`, else computed and kept there."""
    if not file.exists():
        found = [_measure(known, index) for index in range(len(known.samples))]
        arrays = {f"{i}.{each.name}": getattr(one, each.name) for i, one in enumerate(found) for each in fields(one)}
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f"part-{file.name}")
        np.savez(scratch, allow_pickle=False, **arrays)
        scratch.replace(file)
    with np.load(file) as kept:
        names = [each.name for each in fields(Heads)]
        return [Heads(**{name: kept[f"{i}.{name}"] for name in names}) for i in range(len(known.samples))]


def _measure(known: Tables, index: int) -> Heads:
    sample, length = known.samples[index], known.case.segment_length
    (long, most), (short, sight) = known.model("long"), known.model("short")
    prompt = build_prompt(long.tokenizer, sample, max_length=most)
    seen = build_prompt(short.tokenizer, sample, max_length=sight)
    segments = segment_prompts(prompt, length)
    *alone, without, full = _probabilities(long, [*segments, prompt.with_context(()), prompt])
    mass, peak = attended(long, prompt, length)
    return Heads(
        mass=mass,
        peak=peak,
        alone=np.array(alone),
        full=full,
        short=_probabilities(short, [seen])[0],
        without=without,
        tokens=np.array([len(segment.context) for segment in segments], dtype=np.float64),
        n_far=np.array((len(prompt.context) - len(seen.context)) // length),
    )


def _probabilities(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[Array]:
    """P(y_i | c, x, y_<i) of every response token, [|y|] a prompt."""
    found = np.exp(-response_nll(loaded, prompts).cpu().numpy())
    return np.split(found, np.cumsum([len(prompt.response) for prompt in prompts])[:-1])
