"""A long sample and a conversation to encode, and which of their tokens are learned."""

from transformers import PreTrainedTokenizerFast

from gateau_dagster.data.sample import Sample
from gateau_dagster.training.encode import IGNORED, Encoded

SAMPLE = Sample(
    sample_id="a", source="s", context="the harbour ledger", instruction="what is it?", response="the answer is 17"
)
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what?"},
    {"role": "assistant", "content": "the answer"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "it is"},
    {"role": "user", "content": "nobody answers this"},
]
LONG = 10_000


def learned(tokens: PreTrainedTokenizerFast, encoded: Encoded) -> list[str]:
    """The texts of the runs of tokens with loss."""
    runs: list[list[int]] = []
    previous = IGNORED
    for token, label in zip(encoded.input_ids, encoded.labels, strict=True):
        assert label in (IGNORED, token)
        if label != IGNORED:
            if previous == IGNORED:
                runs.append([])
            runs[-1].append(int(token))
        previous = label
    return [str(tokens.decode(run)) for run in runs]
