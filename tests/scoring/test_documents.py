"""What a measure of one pass a text is given: prompts of samples, plain texts, and why there is none."""

import threading

import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.scoring.documents import Document, documents_ahead, sample_documents, text_ids
from tests.tiny_models import passages, tokenizer

WORDS = "a granite lighthouse"
SILENT = Sample(sample_id="s", source="t", context="c", instruction="i", response="")


def test_text_begins_with_the_bos_and_loses_its_right_end() -> None:
    whole = text_ids(tokenizer(), WORDS)
    assert whole[0] == tokenizer().bos_token_id
    assert text_ids(tokenizer(), WORDS, max_tokens=3) == whole[:3]
    assert text_ids(tokenizer(bos=False), WORDS) == whole[1:]


def test_text_that_is_not_unicode_has_no_ids() -> None:
    with pytest.raises(UnscorableSampleError, match="cannot be tokenised"):
        text_ids(tokenizer(), "\ud800")


def test_samples_are_their_prompts_and_one_without_a_response_a_reject_in_its_place() -> None:
    first, *others = passages()
    found = list(sample_documents(tokenizer(), [first, SILENT, *others], max_length=300, template="gateau"))
    assert found.pop(1) == Reject(sample_id="s", reason="the response has no tokens")
    for sample, document in zip(passages(), found, strict=True):
        ids = build_prompt(tokenizer(), sample, max_length=300, template="gateau").ids
        assert document == Document(name=sample.sample_id, digest=sample.digest, ids=ids)


def test_they_are_made_by_another_thread_in_order() -> None:
    threads: list[str] = []

    def given():
        for name in "abc":
            threads.append(threading.current_thread().name)
            yield Document(name=name, ids=(1, 2, 3))

    assert [each.name for each in documents_ahead(given()) if isinstance(each, Document)] == ["a", "b", "c"]
    assert threading.current_thread().name not in threads
