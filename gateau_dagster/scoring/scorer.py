"""Scores samples for `perplexity/<model>` and `cam`: one pass over the full prompt serves both tables."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

from gateau_dagster.config import ScoringConfig
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.attention import require_attention_interface
from gateau_dagster.models.compiled import compile_layers
from gateau_dagster.models.cpu_allocator import reused_memory
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.memory import TokenBudget
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.batched_passes import Passes
from gateau_dagster.scoring.read_ahead import read_ahead
from gateau_dagster.scoring.sample_passes import Outcome, Prepared, Request, SamplePasses

__all__ = ["Outcome", "Request", "score_samples"]

_BATCHES_AHEAD = 2  # of tokens that wait, tokenised, for the device


def score_samples(
    loaded: LoadedModel,
    requests: Iterable[Request],
    *,
    max_length: int,
    scoring: ScoringConfig,
    meter: Meter,
    sight: int | None = None,
) -> Iterator[Outcome]:
    """One outcome a request, in order. `max_length`: see effective_max_length. `meter` grows as passes are done.
    `sight`: tokens of a prompt's end that theta_A is shown, which decide what `cam` calls far; None: all.

    Prompts share batches of `scoring.batch_tokens` tokens with those of the samples around them; an outcome comes once
    the sample's last prompt is through, which may be the last of a batch that the next samples fill. `requests` are
    read, and tokenised, in another thread, some samples ahead, which ends when this generator is closed.

    Raises GateauError when the first `cam` is asked of a model whose attention weights cannot be seen, or when the
    model cannot be compiled; and whatever `requests` raises: samples whose last batch is not full yet are lost then.
    """
    if scoring.compile:
        compile_layers(loaded)
    passes = Passes(loaded=loaded, budget=TokenBudget(loaded.model, scoring.batch_tokens))
    waiting: deque[SamplePasses] = deque()
    with reused_memory(loaded.device), closing(_prepared(loaded, requests, max_length, scoring)) as prepared:
        for one in prepared:
            waiting.append(SamplePasses(prepared=one, segment_length=scoring.segment_length, sight=sight))
            waiting[-1].start(passes, meter)
            passes.run(all_of_them=False)
            while waiting and waiting[0].ready:
                yield waiting.popleft().outcome()
        passes.run(all_of_them=True)
    for last in waiting:
        yield last.outcome()


def _prepared(
    loaded: LoadedModel, requests: Iterable[Request], max_length: int, scoring: ScoringConfig
) -> Generator[Prepared]:
    """The requests with their prompts, made ahead of their use."""

    def prepare(request: Request) -> Prepared:
        if request.observed:
            require_attention_interface(loaded)
        try:
            prompt = build_prompt(
                loaded.tokenizer,
                request.sample,
                max_length=max_length,
                template=scoring.template,
                opening=loaded.opening,
            )
        except UnscorableSampleError as error:
            prompt = error
        return Prepared(request=request, prompt=prompt)

    def weight(prepared: Prepared) -> int:
        return 1 if isinstance(prepared.prompt, UnscorableSampleError) else prepared.prompt.length

    return read_ahead(map(prepare, requests), weight=weight, limit=_BATCHES_AHEAD * scoring.batch_tokens)
