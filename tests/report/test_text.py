"""Untrusted text."""

from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.report.text import breakable, printable, snippet


@given(st.text())
def test_printable_keeps_length_and_ordinary_text(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text.replace("\r\n", "\n"))
    assert printable(shown) == shown
    assert not set(shown) & set("\x00\x1b\r\u202e\u2066\ufeff")
    assert [a for a in text.replace("\r\n", "\n") if a.isalnum()] == [a for a in shown if a.isalnum()]


@given(st.text(alphabet="abc \n", max_size=60), st.integers(1, 20))
def test_snippet_accounts_for_every_character(text: str, each: int) -> None:
    part = snippet(text, each=each)
    assert len(part.start) + len(part.end) + part.left_out == len(text)
    assert text.startswith(part.start)
    assert text.endswith(part.end)
    assert max(len(part.start), len(part.end)) <= (2 * each if not part.left_out else each)


@given(st.text(alphabet="abc \n", max_size=60), st.integers(1, 20), st.integers(0, 60))
def test_what_no_model_saw_is_marked_from_the_left(text: str, each: int, unseen: int) -> None:
    unseen, plain = min(unseen, len(text)), snippet(text, each=each)
    part = snippet(text, each=each, unseen=unseen)
    assert (part.unseen_start + part.start, part.unseen_end + part.end) == (plain.start, plain.end)
    assert (part.left_out, part.unseen) == (plain.left_out, unseen)
    assert len(part.unseen_start) == min(unseen, len(plain.start))
    assert len(part.unseen_end) == max(0, unseen - (len(text) - len(plain.end)))


def test_a_name_may_break_after_its_underscores_and_is_escaped() -> None:
    assert breakable("a_<b>_c") == "a_<wbr>&lt;b&gt;_<wbr>c"
