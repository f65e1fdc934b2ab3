"""What a table takes before anything runs: the passes of each sample, from its token counts. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    task: of the prompt that Cherry Selection embeds, around instruction and context, without bos.
    special: of what a model that reads instruction and response as a whole is shown besides.
    limit: tokens that the model is shown.
    shared: bool [samples] or one for all, whether another table of the same step takes the pass over the whole prompt.
    shows_attention: whether the model lets its attention weights be seen.
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
    shared: npt.NDArray[np.bool_] | bool = False
    task: int = 45
    shows_attention: bool = True

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
    head: whether the output layer runs for `read`. predicted: tokens that it runs for where all rows are computed.
    """

    count: Numbers
    length: Numbers
    read: Numbers | None = None
    head: bool = False
    predicted: Numbers | None = None

    def flops(self, shape: ModelShape) -> Numbers:
        """Of all of them [samples]."""
        each = shape.pass_flops(self.length, self.read)
        rows = self.read if self.head else self.predicted
        if rows is not None:
            each = each + shape.head_flops(1.0) * rows
        return self.count * each


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """All that a table takes of some samples. `reads_context`: whether their contexts have to be tokenised.

    rows: FLOPs [samples], for a model's shape, of attention weights that are computed once more to be looked at.
    """

    passes: Sequence[PlannedPasses]
    rows: Callable[[ModelShape], Numbers] | None = None
    reads_context: bool = True

    @property
    def tokens(self) -> Numbers:
        """Tokens through the model [samples]."""
        return np.sum([one.count * one.length for one in self.passes], axis=0)

    def flops(self, shape: ModelShape) -> Numbers:
        """For a decoder that computes its last layer where it is read only, as most do [samples]."""
        rows = [] if self.rows is None else [self.rows(shape)]
        return np.sum([*(one.flops(shape) for one in self.passes), *rows], axis=0)


def packed_documents(length: Numbers, *, read: Numbers | None) -> PlannedPasses:
    """One short document a sample, none where the length is 0; `read`: see PlannedPasses, None without output layer."""
    return PlannedPasses(count=(length > 0).astype(np.float64), length=length, read=read, head=read is not None)
