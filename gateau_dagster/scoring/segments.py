"""Segments of the context and the perplexity of the response given each of them alone (the raw values of Eq. 3)."""

from collections.abc import Iterator, Sequence

from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.perplexity import mean_nll_and_perplexity, response_nll
from gateau_dagster.scoring.prompt import Prompt


def cut_segments(tokens: int, segment_length: int) -> list[tuple[int, int]]:
    """First and one-past-last context token of each segment s_i: all `segment_length` long, the last one shorter."""
    return [(begin, min(begin + segment_length, tokens)) for begin in range(0, tokens, segment_length)]


def segment_prompts(prompt: Prompt, segment_length: int) -> list[Prompt]:
    """The prompt with each segment alone as its context: the truncated context's own tokens, never tokenised again."""
    return [prompt.with_context(prompt.context[a:b]) for a, b in cut_segments(len(prompt.context), segment_length)]


def segment_perplexities(loaded: LoadedModel, prompt: Prompt, *, segment_length: int, batch_tokens: int) -> list[float]:
    """PPL_B(y | s_i, x) of every segment, in the order of the context. `batch_tokens` changes speed and memory only.

    Raises UnscorableSampleError when a perplexity is not finite.
    """
    perplexities: list[float] = []
    for batch in token_batches(segment_prompts(prompt, segment_length), batch_tokens):
        for nll in response_nll(loaded, batch):
            try:
                perplexities.append(mean_nll_and_perplexity(nll)[1])
            except UnscorableSampleError as error:
                raise UnscorableSampleError(f"given segment {len(perplexities) + 1} alone: {error}") from error
    return perplexities


def token_batches(prompts: Sequence[Prompt], batch_tokens: int) -> Iterator[list[Prompt]]:
    """Consecutive prompts whose padded batch holds at most `batch_tokens` tokens, and at least one prompt.

    Segment prompts of one sample come longest first already: only the last one is shorter.
    """
    batch: list[Prompt] = []
    longest = 0
    for prompt in prompts:
        longest = max(longest, prompt.length)
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, longest = [], prompt.length
        batch.append(prompt)
    if batch:
        yield batch
