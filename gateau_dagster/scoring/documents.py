"""Prepare texts for measures that read one per pass: instruction samples as their scoring prompt, plain texts
unchanged."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.scoring.sample_stream import read_ahead, rejected

_AHEAD_TOKENS = 2**17  # tokens of documents that wait for the device


@dataclass(frozen=True, kw_only=True)
class Document:
    """Tokens to measure; `digest` is that of the sample, empty for a plain text."""

    name: str
    digest: str = ""
    ids: tuple[int, ...]


def sample_documents(
    tokenizer: PreTrainedTokenizerBase, samples: Iterable[Sample], *, max_length: int, template: Template
) -> Iterator[Document | Reject]:
    """Yield instruction samples as the whole scoring prompt with the response: context, instruction, response."""
    for sample in samples:
        try:
            ids = build_prompt(tokenizer, sample, max_length=max_length, template=template).ids
        except UnscorableSampleError as error:
            yield rejected(sample.sample_id, error)
        else:
            yield Document(name=sample.sample_id, digest=sample.digest, ids=ids)


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, max_tokens: int | None = None) -> tuple[int, ...]:
    """Return [bos] + E(text), cut at the end to `max_tokens`; bos only if the tokenizer defines one.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    bos = tokenizer.bos_token_id
    assert bos is None or isinstance(bos, int)
    ids = (() if bos is None else (bos,)) + encode(tokenizer, text)
    return ids[:max_tokens]


def documents_ahead(documents: Iterable[Document | Reject]) -> Generator[Document | Reject]:
    """Yield the documents, tokenised in another thread while the device is busy; closing ends the thread
    (`read_ahead`)."""
    return read_ahead(documents, weight=_weight, limit=_AHEAD_TOKENS)


def _weight(document: Document | Reject) -> int:
    return 1 if isinstance(document, Reject) else 1 + len(document.ids)
