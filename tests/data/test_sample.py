import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.sample import Sample, text_digest

SAMPLE = Sample(sample_id="a", source="s", context="c", instruction="i", response="r")


def test_digest_by_hand() -> None:
    data = b"\0\0\0\0\0\0\0\1c" + b"\0\0\0\0\0\0\0\1i" + b"\0\0\0\0\0\0\0\1r"
    assert SAMPLE.digest == hashlib.sha256(data).hexdigest()


@given(st.lists(st.text()), st.lists(st.text()))
def test_different_parts_differ(one: list[str], other: list[str]) -> None:
    assert (text_digest(one) == text_digest(other)) == (one == other)


def test_parts_do_not_run_together() -> None:
    assert len({text_digest(parts) for parts in (["ab", ""], ["a", "b"], ["", "ab"], ["ab"])}) == 4


@pytest.mark.parametrize("name", ["context", "instruction", "response"])
def test_digest_depends_on_each_text(name: str) -> None:
    assert dataclasses.replace(SAMPLE, **{name: "other"}).digest != SAMPLE.digest


def test_digest_ignores_id_and_source() -> None:
    assert dataclasses.replace(SAMPLE, sample_id="b", source="t").digest == SAMPLE.digest


def test_lone_surrogates_have_a_digest() -> None:
    assert text_digest(["\ud800"]) != text_digest(["\ud801"])
