"""Estimate a table's work before anything runs: the passes of each sample, from its token counts. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gateau_dagster.models.flops import ModelShape

if TYPE_CHECKING:
    from gateau_dagster.models.prompt import Prompt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """Token counts of scoring prompts, float64 [samples]: `tail` is all but the context and includes `response`.

    All are 0 for a prompt whose tail is too long by itself. A context that is too long is cut at the start.
    """

    context: Numbers
    tail: Numbers
    response: Numbers

    @property
    def prompt(self) -> Numbers:
        """Return the tokens of the whole prompt."""
        return self.context + self.tail


def parts_of(prompt: Prompt) -> PromptParts:
    """Return the token counts of one prompt."""
    counts = len(prompt.context), prompt.length - len(prompt.context), len(prompt.response)
    context, tail, response = (np.array([float(count)]) for count in counts)
    return PromptParts(context=context, tail=tail, response=response)


@dataclass(frozen=True, kw_only=True)
class SampleTokens:
    """Token counts of some samples under one model: float64 [samples], or one number for all.

    context, instruction, response: of the texts, without truncation.
    frame: of the scoring prompt around the texts; opening: the part of the frame that is ModelConfig.opening.
    alone: of the prompt around a response without context and instruction. bos: 1 if the tokenizer has one.
    task: of the prompt that Cherry Selection embeds, around instruction and context, without bos.
    special: added for a model that reads instruction and response as a whole.
    limit: the most tokens that the model is shown.
    shared: bool [samples] or one for all, whether another table of the same step takes the pass over the whole prompt.
    shows_attention: whether the model's attention weights can be read. shape: the model's, if it is known.
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
    shape: ModelShape | None = None

    def prompts(self, *, opening: bool) -> PromptParts:
        """Return the scoring prompts, with or without the configured opening."""
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
    """Passes of one kind: `count` per sample, over `length` tokens each; float64 [samples].

    read: tokens of a document's end that are predicted; the last layer computes only the rows that predict them. None:
    all its rows. head: whether the output layer runs for `read`. predicted: tokens that it runs for if all rows are
    computed.
    """

    count: Numbers
    length: Numbers
    read: Numbers | None = None
    head: bool = False
    predicted: Numbers | None = None

    def flops(self, shape: ModelShape) -> Numbers:
        """Return the FLOPs of these passes [samples]."""
        each = shape.pass_flops(self.length, self.read)
        rows = self.read if self.head else self.predicted
        if rows is not None:
            each = each + shape.head_flops(1.0) * rows
        return self.count * each


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """The total work of a table for some samples. `reads_context`: whether their contexts must be tokenised.

    rows: returns the FLOPs [samples], for a model's shape, of attention weights that are recomputed for reading.
    """

    passes: Sequence[PlannedPasses]
    rows: Callable[[ModelShape], Numbers] | None = None
    reads_context: bool = True

    @property
    def tokens(self) -> Numbers:
        """Return the tokens through the model [samples]."""
        return np.sum([one.count * one.length for one in self.passes], axis=0)

    def flops(self, shape: ModelShape) -> Numbers:
        """Return the FLOPs [samples] of a decoder that narrows its last layer to the rows read, as most do."""
        rows = [] if self.rows is None else [self.rows(shape)]
        return np.sum([*(one.flops(shape) for one in self.passes), *rows], axis=0)


def packed_documents(length: Numbers, *, read: Numbers | None) -> PlannedPasses:
    """Return one short document per sample, none if its length is 0; `read`: see PlannedPasses, None for no output
    layer.
    """
    return PlannedPasses(count=(length > 0).astype(np.float64), length=length, read=read, head=read is not None)
