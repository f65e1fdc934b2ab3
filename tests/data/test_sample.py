"""Samples, their digests and their shards."""

import dataclasses
import hashlib

from hypothesis import example, given
from hypothesis import strategies as st

from gateau_dagster.data.sample import Sample, shard_keys, shard_of, text_digest

SAMPLE = Sample(sample_id="a", source="s", context="c", instruction="i", response="r")


def test_digest_by_hand() -> None:
    data = b"\0\0\0\0\0\0\0\1c" + b"\0\0\0\0\0\0\0\1i" + b"\0\0\0\0\0\0\0\1r"
    assert SAMPLE.digest == hashlib.sha256(data).hexdigest()


@given(st.lists(st.text()), st.lists(st.text()))
@example(["ab", ""], ["a", "b"])
@example(["", "ab"], ["ab"])
@example(["\ud800"], ["\ud801"])
def test_different_parts_differ(one: list[str], other: list[str]) -> None:
    assert (text_digest(one) == text_digest(other)) == (one == other)


def test_digest_depends_on_each_text_and_nothing_else() -> None:
    for name in ("context", "instruction", "response"):
        assert dataclasses.replace(SAMPLE, **{name: "other"}).digest != SAMPLE.digest
    assert dataclasses.replace(SAMPLE, sample_id="b", source="t").digest == SAMPLE.digest
    assert dataclasses.replace(SAMPLE, conversation="{}").digest != SAMPLE.digest


def test_a_row_without_a_conversation_is_a_sample_of_one_exchange() -> None:
    row = {"sample_id": "a", "source": "s", "context": "c", "instruction": "i", "response": "r", "rank": 1}
    assert Sample.of_row(row) == Sample.of_row({**row, "conversation": None}) == SAMPLE
    assert Sample.of_row({**row, "conversation": "{}"}) == dataclasses.replace(SAMPLE, conversation="{}")


def test_shard_never_changes() -> None:
    # The first eight bytes of SHA-256("abc") are ba7816bf8f01cfea: partitions of existing stores depend on this.
    assert shard_of("abc", 16) == 0xBA7816BF8F01CFEA % 16 == 10
    assert shard_of("abc", 1000) == 0xBA7816BF8F01CFEA % 1000


def test_keys_sort_as_numbers() -> None:
    assert shard_keys(1) == ["0"]
    assert shard_keys(16)[:2] == ["00", "01"]
    for shards in (1, 10, 11, 100, 101):
        assert shard_keys(shards) == sorted(shard_keys(shards))
        assert len(set(shard_keys(shards))) == shards
