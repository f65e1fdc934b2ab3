"""Context and instruction of a user turn: where the border is, and by which rule."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateau_dagster.data.user_turns import split_user_turn

LINE = "The orchard stands by the river and nobody has seen its keeper since the winter. " * 4
TWO = f"{LINE}\n\n{LINE}"
LONG = LINE * 8
PIECES = st.lists(st.sampled_from(["a", "b c", "\n", "\n\n", " "]), max_size=14).map("".join)


def slow_split(content: str) -> tuple[str, str]:
    """At the last empty line; white space at the end makes none."""
    for text in (content, content.rstrip()):
        context, _, instruction = text.rpartition("\n\n")
        if instruction.strip():
            break
    return context, instruction


@example("a\n\n\nb")
@example("\n\nb")
@given(PIECES.filter(lambda text: not any(not line.strip() and line for line in text.split("\n")[1:-1])))
def test_text_whose_blank_lines_are_empty_splits_at_the_last_one_to_the_bit(content: str) -> None:
    assert split_user_turn(content)[:2] == slow_split(content)


@given(st.text(alphabet=st.sampled_from("a?:<>/#\n\r\u2028\u2029\x85\f\v \tQuestion"), max_size=60))
def test_no_character_is_lost(content: str) -> None:
    found = split_user_turn(content)
    assert sorted("".join(content.split())) == sorted("".join((found.context + found.instruction).split()))
    assert found.border != "none" or not found.context.strip()


@pytest.mark.parametrize(
    "blank",
    [
        "\n\n",
        "\r\n\r\n",
        "\r\r",
        "\n \n",
        "\n\t \n",
        "\r\n \t\r\n",
        "\n\xa0\n",
        "\n\u200b\n",
        "\n\f\n",
        "\u2028\u2028",
        "\u2029",
        "\x85\x85",
        "\v\v",
        "\r\r\n\r\r\n",
        "\n\r\n",
        "\n \n\t\n",
    ],
)
def test_a_blank_line_is_one_however_lines_end(blank: str) -> None:
    for document in (LINE.strip(), TWO.strip(), TWO.replace("\n\n", blank).strip()):
        assert split_user_turn(f"{document}{blank}Who is it?") == (document, "Who is it?", "last blank line")


@pytest.mark.parametrize(
    ("content", "context", "instruction", "border"),
    [
        ("no blank line\nhere", "", "no blank line\nhere", "none"),
        ("line\r\nline\r\n", "", "line\r\nline\r\n", "none"),
        ("a\n\nb\n\n \n", "a", "b", "last blank line"),
        ("page one\n\n page two\n\fpage three\n\nb", "page one\n\n page two\n\fpage three", "b", "last blank line"),
        # no blank line
        (f"{LINE}\n{LINE}\nWho is it?", f"{LINE}\n{LINE}", "Who is it?", "last line"),
        (f"{LINE}\r\nSummarise the text.", LINE, "Summarise the text.", "last line"),
        (f"Summarise this:\n{LINE}\n{LINE}".strip(), f"{LINE}\n{LINE}".strip(), "Summarise this:", "instruction first"),
        (f"{LINE}\n{LINE}", "", f"{LINE}\n{LINE}", "none"),
        (f"{LINE}Who is it?", "", f"{LINE}Who is it?", "none"),
        (f"Context: {LINE}\nQuestion: Who?\nAnswer:", f"Context: {LINE}".strip(), "Question: Who?\nAnswer:", "label"),
        (f"Context: {LINE}Question: Who?", f"Context: {LINE}".strip(), "Question: Who?", "label"),
        # a document in tags, or with a label
        (f"<document>\n{TWO}\n</document>\nDo it.", f"<document>\n{TWO}\n</document>", "Do it.", "label"),
        (f"Do it.\n\n<doc>{TWO}</doc>", f"<doc>{TWO}</doc>", "Do it.", "instruction first"),
        (f"Question: Who?\n\nContext: {TWO}.", f"Context: {TWO}.", "Question: Who?", "instruction first"),
        (f"question: Who? context: {LINE}.", f"context: {LINE}.", "question: Who?", "instruction first"),
        (
            f"Below is a task.\n\n### Instruction:\nDo it.\n\n### Input:\n{TWO}.\n\n### Response:",
            f"### Input:\n{TWO}.",
            "Below is a task.\n\n### Instruction:\nDo it.\n\n### Response:",
            "instruction first",
        ),
        # the instruction is the first paragraph
        (f"Summarise this:\n\n{LONG}", LONG, "Summarise this:", "instruction first"),
        (f"A title?\n\n{LONG}\nWho is it?", "A title?", f"{LONG}\nWho is it?", "uncertain"),
        (f"Summarise this:\n\n{TWO}", f"Summarise this:\n\n{LINE}", LINE, "uncertain"),
        (f"{TWO}\n\nQuestion: Who?\n\nAnswer:", f"{TWO}\n\nQuestion: Who?", "Answer:", "uncertain"),
        (f"What is it?\n\n{TWO}\n\nSay it.", f"What is it?\n\n{TWO}", "Say it.", "last blank line"),
    ],
)
def test_where_the_border_is(content: str, context: str, instruction: str, border: str) -> None:
    assert split_user_turn(content) == (context, instruction, border)
