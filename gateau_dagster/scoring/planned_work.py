"""What a table takes before anything runs: the passes of each sample, from its token counts. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gateau_dagster.models.flops import ModelShape

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """Tokens of scoring prompts, float64 [samples]: `tail` is all but the context, `response` a part of it.

    All are 0 for a prompt whose tail alone is too long. A context loses its left end.
    """

    context: Numbers
    tail: Numbers
    response: Numbers

    @property
    def prompt(self) -> Numbers:
        """The whole of it."""
        return self.context + self.tail


@dataclass(frozen=True, kw_only=True)
class SampleTokens:
    """Token counts of some samples under one model: float64 [samples], or one number for all.

    context, instruction, response: of the texts, nothing cut off.
    frame: of the scoring prompt around the texts; opening: that part of it which ModelConfig.opening is.
    alone: of the prompt around a response without context and instruction. bos: 1 where the tokenizer has one.
    special: of what a model that reads instruction and response as a whole is shown besides.
    limit: tokens that the model is shown.
    """

    context: Numbers
    instruction: Numbers
    response: Numbers
    frame: int
    opening: int
    alone: int
    bos: int
    special: int
    limit: int

    def prompts(self, *, opening: bool) -> PromptParts:
        """The scoring prompts, with or without what stands before them by configuration."""
        around = self.frame if opening else self.frame - self.opening
        tail = self.instruction + self.response + around
        fits = (tail <= self.limit) & (self.response > 0)
        return PromptParts(
            context=np.where(fits, np.minimum(self.context, self.limit - tail), 0.0),
            tail=np.where(fits, tail, 0.0),
            response=np.where(fits, self.response, 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedPasses:
    """Passes of the same kind: of each sample `count`, over `length` tokens each; float64 [samples].

    read: tokens of a document's end that are predicted; the last layer computes only the rows that predict them. None:
        all its rows.
    head: whether the output layer runs for `read`.
    packed: whether many stand in one row, as segment prompts do, which a device takes at a speed of its own.
    """

    count: Numbers
    length: Numbers
    read: Numbers | None
    head: bool
    packed: bool

    def linear(self, shape: ModelShape) -> Numbers:
        """FLOPs of the matrices, without the output layer [samples]."""
        return self.count * shape.linear_pass_flops(self.length, self.read)

    def attention(self, shape: ModelShape) -> Numbers:
        """FLOPs of the attention [samples]."""
        return self.count * shape.attention_pass_flops(self.length, self.read)

    def output(self, shape: ModelShape) -> Numbers:
        """FLOPs of the output layer [samples]."""
        if not self.head or self.read is None:
            return np.zeros_like(self.count)
        return self.count * shape.head_flops(1.0) * self.read


class ObservedRows(Protocol):
    """Attention weights that are computed once more to be looked at."""

    def flops(self, shape: ModelShape) -> Numbers:
        """In all layers [samples]."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """Attention weights that are computed once more to be looked at: `queries` over `keys`; float64 [samples]."""

    queries: Numbers
    keys: Numbers

    def flops(self, shape: ModelShape) -> Numbers:
        """In all layers [samples]."""
        return self.queries * shape.attention_row_flops_each(self.keys)


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """All that a table takes of some samples. `reads_context`: whether their contexts have to be tokenised."""

    passes: Sequence[PlannedPasses]
    rows: Sequence[ObservedRows] = ()
    reads_context: bool = True

    @property
    def tokens(self) -> Numbers:
        """Tokens through the model [samples]."""
        return np.sum([one.count * one.length for one in self.passes], axis=0)

    def flops(self, shape: ModelShape) -> Numbers:
        """For a decoder that computes its last layer where it is read only, as most do [samples]."""
        parts = [one.linear(shape) + one.attention(shape) + one.output(shape) for one in self.passes]
        return np.sum([*parts, *(one.flops(shape) for one in self.rows)], axis=0)


def segment_passes(parts: PromptParts, *, segment_length: int, alone: Numbers) -> list[PlannedPasses]:
    """The prompts with each segment alone (Eq. 3), and those without context of the samples where `alone` is 1."""
    segments = np.ceil(parts.context / segment_length)
    whole, last = np.maximum(segments - 1, 0), np.minimum(segments, 1)
    lengths = (
        (whole, np.minimum(parts.context, segment_length) + parts.tail),
        (last, last * (parts.context - whole * segment_length + parts.tail)),
        (alone, parts.tail),
    )
    return [
        PlannedPasses(count=count, length=length, read=parts.response, head=True, packed=True)
        for count, length in lengths
    ]


def whole_prompts(parts: PromptParts, *, count: Numbers, head: bool) -> PlannedPasses:
    """Passes over whole prompts, each a row of its own."""
    return PlannedPasses(count=count, length=parts.prompt, read=parts.response, head=head, packed=False)


def observed_rows(parts: PromptParts) -> PlannedRows:
    """The attention of the response to the context (Eq. 4), of prompts that have one."""
    return PlannedRows(queries=parts.response * (parts.context > 0), keys=parts.prompt)


def packed_documents(length: Numbers, *, read: Numbers | None) -> PlannedPasses:
    """One short document a sample, none where the length is 0; `read`: see PlannedPasses, None without output layer."""
    count = (length > 0).astype(np.float64)
    return PlannedPasses(count=count, length=length, read=read, head=read is not None, packed=True)
