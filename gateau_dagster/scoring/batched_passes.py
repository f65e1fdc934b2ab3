"""The passes that scoring a set of samples takes: many prompts a batch, whoever they belong to."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from gateau_dagster.models.attention import context_attention
from gateau_dagster.models.flops import ModelShape, Work
from gateau_dagster.models.forward import Float64, response_nll_tensor, token_nll
from gateau_dagster.models.host_copy import HostCopy
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget, unless_out_of_memory
from gateau_dagster.models.packing import narrows_last_layer, packs_documents
from gateau_dagster.models.prompt import Prompt


@dataclass(kw_only=True, eq=False)
class NllJob:
    """A prompt whose response's NLL is wanted; `work` is charged for it."""

    prompt: Prompt
    work: Work
    too_large: bool = False  # the prompt does not fit into memory, not even alone
    copy: HostCopy | None = None  # of the NLLs of a whole batch, of which this prompt's begin at `first`
    first: int = 0

    @property
    def ready(self) -> bool:
        """Whether the result is known and here."""
        return self.too_large or (self.copy is not None and self.copy.ready)

    @property
    def nll(self) -> Float64:
        """-log P in nats of each response token [|y|]; waits for the device."""
        assert self.copy is not None
        return self.copy.array[self.first : self.first + len(self.prompt.response)]


@dataclass(kw_only=True)
class Passes:
    """Runs prompts through one model: those in line as batches of bounded size, others one at a time.

    A batch too large for the memory is halved, and so are the batches after it. Charges each prompt's tokens and
    FLOPs to its table, once it is through.
    """

    loaded: LoadedModel
    budget: TokenBudget
    line: deque[NllJob] = field(default_factory=deque)
    waiting_tokens: int = 0  # of the prompts in line
    shape: ModelShape | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.shape = ModelShape.of(self.loaded.model.config)
        except AttributeError:  # no heads: a state-space model, whose FLOPs nothing here can tell
            self.shape = None

    def enqueue(self, job: NllJob) -> None:
        """Put a prompt in line."""
        self.line.append(job)
        self.waiting_tokens += job.prompt.length

    def run(self, *, all_of_them: bool) -> None:
        """Run the prompts in line, first come first served, as full batches; `all_of_them`: a last small one, too."""
        while self.line and (all_of_them or self.waiting_tokens >= self.budget.tokens):
            self._run_batch(self._next_batch())

    def attention(self, prompt: Prompt, *, cam: Work, perplexity: NllJob | None) -> HostCopy | None:
        """a_t of the prompt's context tokens [C]; the same pass does the job for `perplexity` where that is wanted.

        None when the prompt does not fit into memory, and then the job is not done either.
        """

        def run() -> tuple[Tensor, Tensor | None]:
            found = context_attention(self.loaded, prompt)
            nll = None if perplexity is None else token_nll(self.loaded, found.states, prompt.response)
            return found.attention, nll

        made = unless_out_of_memory(run)
        if made is None:
            return None
        attention, nll = made
        if self.shape is not None:
            cam.add(0, self.shape.attention_row_flops(len(prompt.response), prompt.length))
        if perplexity is None:
            self._charge(cam, prompt, head=False)
        else:
            assert nll is not None
            self._deliver([perplexity], nll)
        return HostCopy(attention)

    def _next_batch(self) -> list[NllJob]:
        """As many prompts as the budget allows, at least one."""
        batch: list[NllJob] = []
        tokens = 0
        while self.line and (not batch or tokens + self.line[0].prompt.length <= self.budget.tokens):
            batch.append(self.line.popleft())
            tokens += batch[-1].prompt.length
        self.waiting_tokens -= tokens
        return batch

    def _run_batch(self, batch: list[NllJob]) -> None:
        """One pass; where it does not fit into memory, the prompts go back to the head of the line."""
        prompts = [job.prompt for job in batch]
        nll = unless_out_of_memory(lambda: response_nll_tensor(self.loaded, prompts))
        if nll is not None:
            self._deliver(batch, nll)
        elif len(batch) == 1:
            batch[0].too_large = True
        else:
            tokens = sum(prompt.length for prompt in prompts)
            self.budget.halve(tokens)
            self.line.extendleft(reversed(batch))
            self.waiting_tokens += tokens

    def _deliver(self, batch: list[NllJob], nll: Tensor) -> None:
        copy = HostCopy(nll)
        first = 0
        for job in batch:
            job.copy, job.first = copy, first
            first += len(job.prompt.response)
            self._charge(job.work, job.prompt, head=True)
        assert first == len(nll)

    def _charge(self, work: Work, prompt: Prompt, *, head: bool) -> None:
        """The layers over the whole prompt, the last one as far as it is computed, and the output layer if it ran."""
        flops = 0.0
        if self.shape is not None:
            rows = len(prompt.response)
            narrow = packs_documents(self.loaded) and narrows_last_layer(self.loaded)
            length = np.array([float(prompt.length)])
            flops = float(self.shape.pass_flops(length, np.array([float(rows)]) if narrow else None)[0])
            flops += self.shape.head_flops(rows) if head else 0.0
        work.add(prompt.length, flops)
