"""What becomes of the fields of a record: none is left out without a word."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.forms import to_sample
from gateau_dagster.data.record_fields import FieldCounts, field_lines
from gateau_dagster.data.sample import Conversation, Reject, Sample
from gateau_dagster.data.short_chat import to_conversation

TURNS = [{"role": "user", "content": "doc\n\nq"}, {"role": "assistant", "content": "a"}]
LONG = "A sentence of a document. " * 20


def long(record: dict[str, Any], *ignore: str) -> tuple[Sample | Reject, FieldCounts]:
    counts: FieldCounts = {}
    return to_sample(record, location="x:1", stem="x", ignore=ignore, counts=counts), counts


def chat(record: dict[str, Any], *ignore: str) -> tuple[Conversation | Reject, FieldCounts]:
    counts: FieldCounts = {}
    return to_conversation(record, location="x:1", stem="x", ignore=ignore, counts=counts), counts


def with_turn(**more: Any) -> dict[str, Any]:
    return {"messages": [TURNS[0], {**TURNS[1], **more}]}


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ({"instruction": "q", "input": "c", "output": "r"}, ("c", "q", "r")),
        ({"instruction": "q", "input": "", "output": "r"}, ("", "q", "r")),
        ({"instruction": "q", "input": float("nan"), "output": "r"}, ("", "q", "r")),
        ({"instruction": "", "input": "c\n\nq", "output": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "completion": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "response": "r"}, ("c", "q", "r")),
        ({"input": "c\n\nq", "output": "r"}, ("c", "q", "r")),
        ({"context": "c", "query": "q", "response": "r"}, ("c", "q", "r")),
        ({"context": "c", "question": "q", "answer": "r"}, ("c", "q", "r")),
        ({"document": "c", "question": "q", "answer": "r"}, ("c", "q", "r")),
        ({"context": "c", "input": "q", "output": "r"}, ("c", "q", "r")),
        ({"context": "c", "prompt": "q", "completion": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "question": "q", "answer": "r"}, ("c", "q", "r")),
        ({"context": "c", "instruction": "q", "response": "r", "input": "x"}, ("c", "q", "r")),
        ({"system": "s", "context": "c", "question": "q", "answer": "r"}, ("s\n\nc", "q", "r")),
        ({"system_prompt": "s", "messages": TURNS}, ("s\n\ndoc", "q", "a")),
        ({"system": "s", "messages": [{"role": "system", "content": "s"}, *TURNS]}, ("s\n\ndoc", "q", "a")),
        ({"messages": [{"role": "developer", "content": "s"}, *TURNS]}, ("s\n\ndoc", "q", "a")),
        ({"prompt": "doc\n\nq", "messages": TURNS}, ("doc", "q", "a")),
        ({"chosen": TURNS, "messages": TURNS}, ("doc", "q", "a")),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("c", "q")]}, TURNS[1]]},
            ("c", "q", "a"),
        ),
    ],
)
def test_parts_of_every_form(record: dict[str, Any], parts: tuple[str, str, str]) -> None:
    made, counts = long(record)
    assert isinstance(made, Sample), made
    assert (made.context, made.instruction, made.response) == parts
    assert not any("rejected" in uses for uses in counts.values())


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"context": "c", "input": "d", "instruction": "q", "output": "r"}, "two contexts"),
        ({"question": "p", "query": "q", "answer": "r"}, "two instructions"),
        ({"prompt": "p", "answer": "r", "completion": "s"}, "two responses"),
        ({"system": "s", "system_prompt": "t", "messages": TURNS}, "two system texts"),
        ({"system": "s", "messages": [{"role": "system", "content": "t"}, *TURNS]}, "two system texts"),
        ({"messages": TURNS, "conversations": [{"from": "human", "value": "x"}]}, "unusable field conversations"),
        ({"system": "", "tools": '[{"name": "weather"}]', "messages": TURNS}, "unusable field tools"),
        ({"images": ["cat.jpg"], "messages": TURNS}, "unusable field images"),
        ({"image": {"bytes": b"x", "path": None}, "messages": TURNS}, "unusable field image"),
        ({"chosen": "a", "rejected": "b", "messages": TURNS}, "unusable field rejected"),
        ({"history": [["q", "a"]], "instruction": "q", "output": "r"}, "unusable field history"),
        ({"reasoning": "because", "question": "q", "answer": "r"}, "unusable field reasoning"),
        (with_turn(reasoning_content="because"), "unusable field turn.reasoning_content"),
        (with_turn(content=None, tool_calls=[{"id": "1"}]), "unusable field turn.tool_calls"),
        (with_turn(content=[{"type": "image_url", "image_url": {"url": "u"}}]), "unusable part turn.content.image_url"),
        (with_turn(weight=0), "not to be learned"),
        (with_turn(weight=0.5), "unclear flag turn.weight"),
        (with_turn(train="false"), "unclear flag turn.train"),
        (with_turn(mask=True), "unclear flag turn.mask"),
        (with_turn(value="other"), "two contents"),
        ({"messages": TURNS, "train": False}, "not to be learned train"),
        ({"instruction": "q", "output": "r", "paper": LONG}, "unknown field paper"),
        ({"instruction": "q", "output": "r", "metadata": {"text": LONG}}, "unknown field metadata.text"),
        ({"instruction": "q", "output": "r", "file": LONG}, "unknown field file"),
    ],
)
def test_what_cannot_be_used_rejects_its_record(record: dict[str, Any], kind: str) -> None:
    made, _ = long(record)
    assert isinstance(made, Reject), made
    assert made.reason.split(":")[0] == kind
    if "field" in kind or "part" in kind or "flag" in kind:
        name = kind.rsplit(maxsplit=1)[-1]
        made, counts = long(record, name)
        assert counts[name] == {"ignored": 1}
        assert isinstance(made, Sample) or "turn.content" in name or "tool_calls" in name, made


@pytest.mark.parametrize("empty", [None, "", " ", [], {}, "[]", "{}", [None], {"a": None}, float("nan"), False])
@pytest.mark.parametrize("name", ["tools", "images", "reasoning", "rejected", "history"])
def test_empty_fields_pass(name: str, empty: Any) -> None:
    bare, _ = long({"messages": TURNS})
    made, counts = long({"messages": [TURNS[0], {**TURNS[1], name: empty}], name: empty})
    assert isinstance(made, Sample) and isinstance(bare, Sample) and made.digest == bare.digest
    assert {field.removeprefix("turn.") for field in counts} == {"messages", "role", "content"}


def test_flags_and_system_of_a_conversation() -> None:
    flags = [{"weight": 0}, {"train": False}, {"loss": False}, {"masked": True}, {"weight": 1}, {"loss": None}, {}]
    turns = [
        turn for flag in flags for turn in ({"from": "human", "value": "q"}, {"from": "gpt", "value": "a", **flag})
    ]
    made, counts = chat({"id": 1, "system": "s", "tools": "", "conversations": turns})
    assert isinstance(made, Conversation)
    assert [(turn.role, turn.content) for turn in made.turns[:2]] == [("system", "s"), ("user", "q")]
    assert [turn.trained for turn in made.turns if turn.role == "assistant"] == [False] * 4 + [True] * 3
    assert counts["system"] == counts["turn.weight"] == {"used": 1} and "tools" not in counts
    flagged, _ = chat({"conversations": turns[:2]})
    assert isinstance(flagged, Reject) and flagged.reason.startswith("not to be learned")
    same, _ = chat({"system": "s", "conversations": [{**turn, "weight": None} for turn in turns[:1]] + turns[-1:]})
    bare, _ = chat({"system": "s", "conversations": turns[:1] + turns[-1:]})
    assert isinstance(bare, Conversation) and isinstance(same, Conversation) and bare.digest == same.digest


def test_what_is_not_part_of_an_exchange_is_counted() -> None:
    turns = [("gpt", "b"), ("human", "q"), ("gpt", "a"), ("human", "thanks")]
    _, counts = chat({"conversations": [{"from": role, "value": text} for role, text in turns]})
    left_out = {name for name, uses in counts.items() if "ignored" in uses}
    assert left_out == {"turns before the first question", "last question without an answer"}


@pytest.mark.parametrize(("given", "sample_id"), [(1.0, "1"), (-3.0, "-3"), (2.0**53 - 1, str(2**53 - 1))])
def test_whole_floats_are_ids(given: float, sample_id: str) -> None:
    assert long({"id": given, "messages": TURNS})[0].sample_id == sample_id


@pytest.mark.parametrize(("given", "kind"), [(1.5, "with a fraction"), (2.0**53, "too large"), (float("inf"), "large")])
def test_other_floats_are_none(given: float, kind: str) -> None:
    made, _ = long({"id": given, "messages": TURNS})
    assert isinstance(made, Reject) and f"id is {given}, a " in made.reason and kind in made.reason
    assert long({"id": float("nan"), "prompt_id": "p", "messages": TURNS})[0].sample_id == "p"


def test_lines_are_few_and_printable() -> None:
    counts: FieldCounts = {}
    for number in range(400):
        record = {"instruction": "q", "output": "r", f"\x1b[31m{number:03}": "x", "y" * 500: "z"}
        to_sample(record, location="x:1", stem="x", counts=counts)
    lines = field_lines(counts, "long_sft")
    assert len(counts) <= 301 and len(lines) == 2
    assert all(line.isprintable() and len(line) < 2000 for line in lines)


WORD = st.text("abcdef", min_size=3, max_size=8)
NAMES = ["system", "tools", "notes", "reasoning", "image", "score", "meta", "history", "rejected", "input", "weight"]
EXTRA = st.dictionaries(st.sampled_from(NAMES), WORD | st.none() | st.booleans() | st.lists(WORD) | st.just(""))
FLAGS = st.dictionaries(st.sampled_from(["weight", "train", "loss", "masked"]), st.sampled_from([0, 1, None, "no"]))
CONTENT = WORD | st.lists(
    WORD.map(lambda text: {"type": "text", "text": text}) | st.just({"type": "image"}), min_size=1
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record of any form with whatever else data hold; every word in it is another one."""
    form = draw(st.sampled_from(["messages", "data", "alpaca", "prompt", "question"]))
    if form == "messages":
        roles = draw(st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=3))
        turns = [*roles, "user", "assistant"]
        own = [{"role": role, "content": draw(CONTENT), **draw(EXTRA), **draw(FLAGS)} for role in turns]
    else:
        own = [draw(WORD) for _ in range(2 * draw(st.integers(1, 2)))]
    parts = {
        "alpaca": ("instruction", "input", "output"),
        "prompt": ("prompt", "completion"),
        "question": ("context", "question", "answer"),
    }
    fields = {name: draw(WORD) for name in parts[form]} if form in parts else {form: own}
    return {**draw(EXTRA), **fields}


@given(records(), st.sets(st.sampled_from([*NAMES, "turn.reasoning"])))
def test_every_text_is_read_or_counted_or_in_a_reject(record: dict[str, Any], ignore: set[str]) -> None:
    for convert in (long, chat):
        made, counts = convert(record, *ignore)
        if isinstance(made, Reject):
            assert made.reason
            continue
        read = [made.context, made.instruction, made.response] if isinstance(made, Sample) else []
        read += [turn.content for turn in made.turns] if isinstance(made, Conversation) else []
        not_read = {name.split(".")[-1] for name, uses in counts.items() if uses.keys() - {"used"}}
        cut = "ignored" in str({name: uses for name, uses in counts.items() if " " in name})
        for name, value in texts_by_name(record):
            assert any(value in text for text in read) or name in not_read or cut, (name, value)
        if isinstance(made, Conversation):
            assert any(turn.trained for turn in made.turns if turn.role == "assistant")


def texts_by_name(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each text with the innermost key that it stands under."""
    if isinstance(value, str):
        if value.strip() and name not in ("role", "type"):
            yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_by_name(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_by_name(inner, name)
