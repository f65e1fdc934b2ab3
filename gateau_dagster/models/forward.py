"""Run the passes of scoring: prompts in batches through a causal model, up to the NLL of the response tokens.

Many prompts, of any samples, are one packed row. Nothing waits for the device until a result is read.
"""

# Why the passes are like this, what they cost, and when another way is better:
#
# - Segment prompts are most of the work: a prompt of some hundred tokens for each segment of a context. One pass for
#   each would leave a GPU waiting for Python, and padding would compute tokens that nobody reads. Batches are packed
#   rows.
# - All tokens are given and none is generated, so no pass keeps keys and values. Where tokens are generated, as in an
#   evaluation, the cache is what counts, and `generate` or a server is the right tool.
# - Only rows that predict a response token meet the output layer, and these in chunks. Full logits of one prompt of 16k
#   tokens and a vocabulary of 128k take 8 GiB in float32. A fused output layer was tried, and gained nothing here.
# - A pass that does not fit is halved after it failed, at the price of that pass. How much fits depends on other users
#   of the device and on fragmentation, so a bound that arithmetic makes safe would waste much of the memory.
# - Results are copied behind the queued work, so that Python fills the next batch while a GPU computes this one. On a
#   CPU a pass is done when it returns, and this costs nothing.

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gateau_dagster.models.context_attention import context_attention
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.last_layers import head
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.memory import TokenBudget, unless_out_of_memory
from gateau_dagster.models.packing import lone_states, narrows_last_layer, packed_states, packs_documents, vocabulary
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.models.shapes import known_shape

Float64: TypeAlias = npt.NDArray[np.float64]

# Elements of a chunk of logits: 2^24 are 64 MB in float32, and 512 rows of a vocabulary of 32k. With fewer rows, the
# output layer's weights are read too often.
_LOGITS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**27}


@dataclass(kw_only=True, eq=False)
class NllJob:
    """A prompt whose response NLL is requested; `work` is charged for it."""

    prompt: Prompt
    work: ForwardWork
    too_large: bool = False  # the prompt does not fit into memory, not even alone
    copy: HostCopy | None = None  # the NLLs of a whole batch; this prompt's begin at `first`
    first: int = 0

    @property
    def ready(self) -> bool:
        """Return whether the result is available on the host."""
        return self.too_large or (self.copy is not None and self.copy.ready)

    @property
    def nll(self) -> Float64:
        """Return -log P in nats of each response token [|y|]; waits for the device."""
        assert self.copy is not None
        return self.copy.array[self.first : self.first + len(self.prompt.response)]


@dataclass(kw_only=True)
class Passes:
    """Run prompts through one model: those in the queue as batches of bounded size, others one at a time.

    A batch too large for the memory is halved, and so are the batches after it. Each prompt's tokens and FLOPs are
    charged to its table once it is through.
    """

    loaded: LoadedModel
    budget: TokenBudget
    queue: deque[NllJob] = field(default_factory=deque)
    queued_tokens: int = 0  # tokens of the prompts in the queue
    shape: ModelShape | None = field(init=False)

    def __post_init__(self) -> None:
        self.shape = known_shape(self.loaded.model.config)

    def enqueue(self, job: NllJob) -> None:
        """Add a prompt to the queue."""
        self.queue.append(job)
        self.queued_tokens += job.prompt.length

    def run(self, *, flush: bool) -> None:
        """Run the queued prompts in order as full batches; with `flush`, also a last small one."""
        # Without `flush`, only full batches: a small one costs the same overhead, and the next sample will fill it.
        while self.queue and (flush or self.queued_tokens >= self.budget.tokens):
            self._run_batch(self._next_batch())

    def attention(self, prompt: Prompt, *, cam: ForwardWork, perplexity: NllJob | None) -> HostCopy | None:
        """Return a_t of the prompt's context tokens [C]; the same pass computes `perplexity` if that is given.

        Return None if the prompt does not fit into memory; then `perplexity` is not computed either.
        """

        def run() -> tuple[Tensor, Tensor | None]:
            found = context_attention(self.loaded, prompt)
            nll = None if perplexity is None else token_nll(self.loaded, found.states, prompt.response)
            return found.attention, nll

        # Attention and NLL in one attempt: the output layer reads the states of this pass, which are freed when `run`
        # returns.
        made = unless_out_of_memory(run)
        if made is None:
            return None
        attention, nll = made
        if self.shape is not None:
            cam.add(0, self.shape.attention_row_flops(len(prompt.response), prompt.length))
        if perplexity is None:
            self._charge(cam, prompt, with_head=False)
        else:
            assert nll is not None
            self._deliver([perplexity], nll)
        return HostCopy(attention)

    def _next_batch(self) -> list[NllJob]:
        """Take as many prompts from the queue as the budget allows, at least one."""
        batch: list[NllJob] = []
        tokens = 0
        # In order and without looking for smaller prompts to fill the gap: a sample's prompts stay together, so its row
        # can leave early.
        while self.queue and (not batch or tokens + self.queue[0].prompt.length <= self.budget.tokens):
            batch.append(self.queue.popleft())
            tokens += batch[-1].prompt.length
        self.queued_tokens -= tokens
        return batch

    def _run_batch(self, batch: list[NllJob]) -> None:
        """Run one pass; if it does not fit into memory, put the prompts back at the head of the queue."""
        prompts = [job.prompt for job in batch]
        nll = unless_out_of_memory(lambda: response_nll(self.loaded, prompts))
        if nll is not None:
            self._deliver(batch, nll)
        # It does not fit alone either, so half of it makes no sense: a prompt cannot be split.
        elif len(batch) == 1:
            batch[0].too_large = True
        else:
            tokens = sum(prompt.length for prompt in prompts)
            self.budget.halve(tokens)
            # Back in their order: whoever waits needs the prompts of the oldest sample first.
            self.queue.extendleft(reversed(batch))
            self.queued_tokens += tokens

    def _deliver(self, batch: list[NllJob], nll: Tensor) -> None:
        # One copy per batch, of which each prompt has a part: a copy for each prompt would be a call for a few numbers.
        copy = HostCopy(nll)
        first = 0
        for job in batch:
            job.copy, job.first = copy, first
            first += len(job.prompt.response)
            self._charge(job.work, job.prompt, with_head=True)
        assert first == len(nll)

    def _charge(self, work: ForwardWork, prompt: Prompt, *, with_head: bool) -> None:
        """Charge the layers over the whole prompt, the last one as far as it is computed, and the output layer if it
        ran.
        """
        flops = 0.0
        if self.shape is not None:
            rows = len(prompt.response)
            # Counted as it is computed. The estimate in `gateau plan` uses the same function, so that both can be
            # compared.
            narrow = packs_documents(self.loaded) and narrows_last_layer(self.loaded)
            length = np.array([float(prompt.length)])
            flops = float(self.shape.pass_flops(length, np.array([float(rows)]) if narrow else None)[0])
            flops += self.shape.head_flops(rows) if with_head else 0.0
        work.add(prompt.length, flops)


def response_nll(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return -log P(y_i | c, x, y_<i) in nats, prompt after prompt: float64 [Σ|y|] on the device, without waiting.

    The prompts are one packed row. Memory does not depend on the vocabulary times the prompts' length: only response
    rows go through the output layer, and those in chunks.
    """
    targets = [token for prompt in prompts for token in prompt.response]
    return token_nll(loaded, response_states(loaded, prompts), targets)


@torch.no_grad()
def response_states(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return the last hidden states that predict the response tokens, prompt after prompt: [Σ|y|, hidden], model dtype.

    The prompts are one packed row if the model supports one, else one pass each. The states are those of each prompt
    alone. Raises GateauError if tokenizer and model do not belong together, or the model cannot be split.
    """
    if not packs_documents(loaded):
        # One prompt per pass still shares the output layer's chunks with the others of its batch.
        return torch.cat([_predicting(lone_states(loaded, prompt.ids), prompt, 0) for prompt in prompts])
    spans = [predicting_span(prompt) for prompt in prompts] if narrows_last_layer(loaded) else None
    states, starts = packed_states(loaded, [prompt.ids for prompt in prompts], read=spans)
    return torch.cat([_predicting(states, prompt, start) for prompt, start in zip(prompts, starts, strict=True)])


def predicting_span(prompt: Prompt) -> tuple[int, int]:
    """Return the prompt's rows whose states predict the response tokens: [start, stop)."""
    start, stop = prompt.response_span
    assert start > 0, "the first response token needs a token before it"
    return start - 1, stop - 1


def _predicting(states: Tensor, prompt: Prompt, begin: int) -> Tensor:
    start, stop = predicting_span(prompt)
    return states[begin + start : begin + stop]


@torch.no_grad()
def token_nll(loaded: LoadedModel, states: Tensor, targets: Sequence[int]) -> Tensor:
    """Return -log softmax(head(state))[target] in nats for `states` [n, hidden]: float64 [n] on the states' device.

    The log-softmax is in float32 or better. Nothing waits for the device.
    """
    assert states.shape[0] == len(targets)
    wanted = torch.tensor(targets)
    if states.is_cuda:
        wanted = wanted.pin_memory().to(states.device, non_blocking=True)
    # The chunk is bounded by its logits, rows times vocabulary. So its memory is the same for any vocabulary, batch and
    # length.
    step = max(1, _LOGITS_PER_CHUNK.get(states.device.type, 2**23) // vocabulary(loaded))
    # Write in place: small results kept between the chunks would keep the memory of each chunk.
    nll = torch.empty(len(targets), dtype=torch.float64, device=states.device)
    for rows, some, out in zip(states.split(step), wanted.split(step), nll.split(step), strict=True):
        out.copy_(_chunk_nll(loaded, rows, some), non_blocking=True)
    return nll


def _chunk_nll(loaded: LoadedModel, states: Tensor, wanted: Tensor) -> Tensor:
    # A function, so that its logits are freed before those of the next chunk are made.
    logits = head(loaded, states)
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return -logs.gather(1, wanted[:, None].to(logs.device))[:, 0].double()


class HostCopy:
    """A copy of a float64 tensor [n] to the host, started now and waited for when it is read.

    From a GPU, the copy goes to pinned memory behind the queued work; Python does not wait for either.
    """

    def __init__(self, tensor: Tensor) -> None:
        queued = tensor.device.type == "cuda"
        self._host = tensor.to("cpu", non_blocking=queued)  # non_blocking makes the target pinned
        self._event = torch.cuda.Event() if queued else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def ready(self) -> bool:
        """Return whether reading takes no waiting."""
        return self._event is None or self._event.query()

    @cached_property
    def array(self) -> Float64:
        """Return the values [n], once the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return np.asarray(self._host.numpy(), dtype=np.float64)
