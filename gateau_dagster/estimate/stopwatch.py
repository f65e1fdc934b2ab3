"""Times the scoring's own functions on a model, and finds the rates behind the times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gateau_dagster.models.devices import timed
from gateau_dagster.models.flops import ModelShape

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel
    from gateau_dagster.models.prompt import Prompt

_SECONDS = 4.0  # for all kinds of measurement together
_NOISE = 3.0  # how much faster or slower than the bare operation the attention rows may seem
_WARM, _SHORTEST, _STEP = 16, 128, 4
_REPEATS = 5
# Weights of the wish for equal rates beside the relative errors of two timings, and of more.
_EQUAL_RATES = (0.1, 0.01)
_ROW_TOKENS = {"cpu": 4096, "cuda": 16_384}  # of full prompts that are timed as one row


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What is typical of the prompts to score, in tokens; powers of two, so that a few samples more change nothing."""

    prompt: int
    response: int
    segment: int  # a whole segment prompt; 0: no segments are wanted


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A pass over one document."""

    length: int
    linear: float  # FLOPs
    attention: float
    seconds: float


def fit(passes: Sequence[Timing]) -> tuple[float, float, float]:
    """Seconds a pass, per linear FLOP and per attention FLOP: none negative, least squares of the relative errors.

    What the passes cannot tell apart is settled by a weak wish for equal rates, so that a longer prompt than any of
    them is not far off.
    """
    import numpy as np
    from scipy.optimize import nnls

    last = passes[-1]
    rate = last.seconds / (last.linear + last.attention)
    if len(passes) == 1:
        return 0.0, rate, rate
    scale = np.array([last.seconds, rate, rate])
    terms = np.array([[1.0, each.linear, each.attention] for each in passes]) * scale
    seconds = np.array([each.seconds for each in passes])
    weight = _EQUAL_RATES[len(passes) > 2]
    wish = [[0.0, weight, -weight]]
    found, _ = nnls(np.vstack([terms / seconds[:, None], wish]), np.append(np.ones(len(passes)), 0.0))
    overhead, linear, attention = found * scale
    return float(overhead), float(linear), float(attention)


class Stopwatch:
    """Times the scoring's functions, each kind for about a second; every one gets at least one try."""

    def __init__(self, loaded: LoadedModel, shape: ModelShape) -> None:
        self._loaded, self._shape = loaded, shape
        self._end = 0.0
        few = [self._prompt(_WARM, 4)]
        self._states(few)  # whatever is only done once in a process
        self._token_seconds = timed(loaded.device, lambda: self._states(few)) / _WARM  # at most

    def passes(self, lengths: Lengths, batch_tokens: int) -> list[Timing]:
        """Full prompts, four times as long each time, up to the wanted length, the end of the time or of the memory."""
        import numpy as np

        from gateau_dagster.models.memory import is_out_of_memory

        self._have(0.4)
        quick = max(_SHORTEST, int(0.1 * _SECONDS / self._token_seconds))
        row = min(batch_tokens, _ROW_TOKENS.get(self._loaded.device.type, 4096), quick)
        found, took = list[Timing](), 0.0
        length = min(_SHORTEST, max(lengths.prompt // _STEP**2, _WARM))
        while not found or (length <= lengths.prompt and self._may_go_on(len(found), took)):
            count = 1 if lengths.segment else max(1, row // length)
            prompts = [self._prompt(length, lengths.response)] * count
            try:
                took = self._typical(lambda prompts=prompts: self._states(prompts))
            except (RuntimeError, MemoryError) as error:
                if not found or not is_out_of_memory(error):
                    raise
                return found
            tokens = np.array([float(length)])
            linear, attention = self._shape.linear_pass_flops(tokens), self._shape.attention_pass_flops(tokens)
            each = Timing(length=length, linear=float(linear[0]), attention=float(attention[0]), seconds=took / count)
            found.append(each)
            length = lengths.prompt if length < lengths.prompt < length * _STEP else length * _STEP
        return found

    def _may_go_on(self, lengths: int, took: float) -> bool:
        """Whether a prompt four times as long fits into the time; a second length is worth more of it than a third."""
        expected = 1.5 * _STEP * took
        return self._has_time(expected) or (lengths == 1 and expected < _SECONDS / 2)

    def head(self, lengths: Lengths) -> float:
        """Seconds per FLOP of the output layer and its log-softmax."""
        import torch

        from gateau_dagster.models.forward import token_nll

        self._have(0.1)
        weight: Any = self._loaded.model.get_input_embeddings().weight
        states = torch.ones((lengths.response, self._shape.hidden), dtype=weight.dtype, device=weight.device)
        seconds = self._typical(lambda: token_nll(self._loaded, states, [0] * lengths.response))
        return seconds / self._shape.head_flops(lengths.response)

    def segments(self, lengths: Lengths, batch_tokens: int) -> float:
        """Seconds per FLOP of the layers over a packed row of segment prompts."""
        import numpy as np

        self._have(0.25)
        prompt = self._prompt(lengths.segment, lengths.response)
        flops = float(self._shape.pass_flops(np.array([float(prompt.length)]))[0])
        count = 1
        while True:
            seconds = self._typical(lambda count=count: self._states([prompt] * count))
            more = min(count * _STEP, max(1, batch_tokens // prompt.length))
            if more == count or not self._has_time(seconds * _STEP):
                return seconds / (flops * count)
            count = more

    def rows(self, lengths: Lengths, longest: int) -> float:
        """Seconds per FLOP of the attention rows: what a pass with them takes longer."""
        from gateau_dagster.errors import GateauError
        from gateau_dagster.models.context_attention import context_attention
        from gateau_dagster.models.forward import response_states

        self._have(0.25)
        prompt = self._prompt(longest, lengths.response)
        differences: list[float] = []
        try:
            context_attention(self._loaded, prompt)  # warms up
            while not differences or (len(differences) < _REPEATS and self._has_time(0.0)):
                without = timed(self._loaded.device, lambda: response_states(self._loaded, [prompt]))
                differences.append(
                    timed(self._loaded.device, lambda: context_attention(self._loaded, prompt)) - without
                )
        except GateauError:
            return 0.0  # no attention interface: the run will say so
        rows = prompt.response_span[1] - prompt.response_span[0]
        found, bare = median(differences) / self._shape.attention_row_flops(rows, longest), self._bare_rows(lengths)
        return min(max(found, bare / _NOISE), bare * _NOISE)

    def _bare_rows(self, lengths: Lengths) -> float:
        """Seconds per FLOP of softmax(q Kᵀ) alone: the difference of two passes may drown in their noise."""
        import torch

        heads, dim, device = self._shape.heads, self._shape.head_dim, self._loaded.device
        query = torch.ones((heads, min(lengths.response, 32), dim), device=device)
        key = torch.ones((heads, dim, min(lengths.prompt, 4096)), device=device)
        seconds = self._typical(lambda: torch.softmax(query @ key, dim=-1).sum(dim=(0, 1)))
        return seconds / (2.0 * query.numel() * key.shape[-1])

    def _prompt(self, length: int, response: int) -> Prompt:
        import numpy as np

        from gateau_dagster.models.prompt import Prompt

        response = max(1, min(response, length // 2))
        ids = np.random.default_rng(length).integers(self._shape.vocabulary, size=max(length, 2)).tolist()
        end = len(ids) - response
        return Prompt(prefix=tuple(ids[:1]), context=tuple(ids[1:end]), suffix=(), response=tuple(ids[end:]))

    def _states(self, prompts: Sequence[Prompt]) -> None:
        """Passes with every row of every layer: a model with few layers would spare too much of its last one."""
        from gateau_dagster.models.packing import lone_states, packed_states, packs_documents

        if packs_documents(self._loaded):
            packed_states(self._loaded, [prompt.ids for prompt in prompts])
            return
        for prompt in prompts:
            lone_states(self._loaded, prompt.ids)

    def _have(self, share: float) -> None:
        """A kind of measurement begins."""
        self._end = time.monotonic() + share * _SECONDS

    def _has_time(self, seconds: float) -> bool:
        """Whether something can be run twice."""
        return time.monotonic() + 2 * seconds < self._end

    def _typical(self, run: Callable[[], object]) -> float:
        """The median of a few tries after one that warms up; of a slow one, the first counts."""
        first = timed(self._loaded.device, run)
        tries: list[float] = []
        while len(tries) < _REPEATS and self._has_time(first / 2):
            tries.append(timed(self._loaded.device, run))
        return median(tries or [first])
