"""Long samples, and turns of conversations, from records of every form."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.forms import InvalidRecordError, kind_of, to_sample, turns_of
from gateau_dagster.data.sample import Reject, Sample, Turn, text_digest

DOCUMENT = "First paragraph.\n\nSecond paragraph."
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())


def convert(record: Any) -> Sample | Reject:
    return to_sample(record, location="x.jsonl:7", stem="x")


def sample(record: Any) -> Sample:
    made = convert(record)
    assert isinstance(made, Sample), made
    return made


def reason(record: Any) -> str:
    made = convert(record)
    assert isinstance(made, Reject), made
    return made.reason


def messages(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_every_form_of_one_sample() -> None:
    user = f"{DOCUMENT}\n\nSummarise."
    forms = [
        {"context": DOCUMENT, "instruction": "Summarise.", "response": "Short."},
        messages(("user", user), ("assistant", "Short.")),
        {"conversations": [{"from": "human", "value": user}, {"from": "gpt", "value": "Short."}]},
        {"data": [user, "Short."]},
    ]
    made = [sample({"id": "s", **form}) for form in forms]
    assert made == [
        Sample(sample_id="s", source="x", context=DOCUMENT, instruction="Summarise.", response="Short.")
    ] * len(forms)


@given(context=TEXT, instruction=TEXT, response=TEXT)
def test_explicit_round_trip(context: str, instruction: str, response: str) -> None:
    made = sample({"context": context, "instruction": instruction, "response": response})
    assert (made.context, made.instruction, made.response) == (context, instruction, response)
    assert made.sample_id == text_digest([context, instruction, response])[:32]


@given(context=TEXT, instruction=TEXT.filter(lambda text: "\n" not in text), response=TEXT)
def test_user_turn_round_trip(context: str, instruction: str, response: str) -> None:
    made = sample(messages(("user", f"{context}\n\n{instruction}"), ("assistant", response)))
    assert (made.context, made.instruction, made.response) == (context, instruction, response)


def test_system_message_stands_before_the_context() -> None:
    assert sample(messages(("system", "Be brief."), ("user", "q"), ("assistant", "a"))).context == "Be brief."
    assert sample(messages(("system", " "), ("user", "doc\n\nq"), ("assistant", "a"))).context == "doc"


@pytest.mark.parametrize(
    ("more", "sample_id"),
    [
        ({"id": "a", "prompt_id": "c"}, "a"),
        ({"id": None, "sample_id": "b"}, "b"),
        ({"id": " ", "prompt_id": "c"}, "c"),
        ({"id": 17}, "17"),
        ({"id": 0}, "0"),
    ],
)
def test_ids(more: dict[str, Any], sample_id: str) -> None:
    assert sample({"context": "c", "instruction": "i", "response": "r", **more}).sample_id == sample_id


@pytest.mark.parametrize(
    ("more", "source"),
    [
        ({"source": "books"}, "books"),
        ({"dataset": "d"}, "d"),
        ({"source": 3}, "x"),
        ({"source": "\ud800"}, "x"),
        ({}, "x"),
    ],
)
def test_sources(more: dict[str, Any], source: str) -> None:
    assert sample({"context": "c", "instruction": "i", "response": "r", **more}).source == source


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([1], "wrong type: the record is a list, not an object"),
        ("text", "wrong type: the record is text, not an object"),
        (None, "wrong type: the record is null, not an object"),
        ({}, "unknown form: messages, conversations, data, or context/instruction/response wanted, but found no keys"),
        ({"text": "x", "\ud800": 1}, None),
        ({"context": "c", "instruction": "i"}, "missing response: the record has context and instruction only"),
        (
            {"context": "c", "instruction": "i", "response": None},
            "missing response: the record has context and instruction only",
        ),
        ({"context": "c", "response": " \n"}, "empty response: nothing to learn and nothing to score"),
        ({"context": " ", "response": "r"}, "empty prompt: neither context nor instruction"),
        (
            {"id": "a", "source": "s", "context": "c", "ask": "q", "\ud800": "x", "response": "r"},
            "missing instruction: found \\ud800, ask; call it instruction, or give an empty one if there is none",
        ),
        (
            {"ask": "q", "instruction": None, "response": "r"},
            "missing instruction: found ask; call it instruction, or give an empty one if there is none",
        ),
        ({"context": 3, "response": "r"}, "non-string content: context is a number"),
        ({"context": "c", "instruction": [], "response": "r"}, "non-string content: instruction is a list"),
        ({"context": "c", "response": {"text": "r"}}, "non-string content: response is an object"),
        ({"context": "\ud800", "response": "r"}, "invalid text: lone surrogate U+D800 in context"),
        ({"id": True, "response": "r"}, "invalid id: id is a boolean, not text or an integer"),
        ({"id": "\udc00", "response": "r"}, "invalid text: lone surrogate U+DC00 in id"),
        (messages(("user", "q")), "missing response: no assistant turn follows the user turn"),
        (messages(("user", "q"), ("assistant", "")), "empty response: nothing to learn and nothing to score"),
        (messages(("user", "q"), ("tool", "a")), "unknown role: 'tool' in turn 2"),
        (
            messages(("user", "q"), ("assistant", "a"), ("user", "q"), ("assistant", "a")),
            "several user turns: 2, but a long sample is one instruction and its response",
        ),
        (
            messages(("assistant", "a"), ("user", "q")),
            "wrong order of turns: assistant, user; one user turn and one assistant turn wanted",
        ),
        (
            messages(("system", "s")),
            "wrong order of turns: system; one user turn and one assistant turn wanted",
        ),
    ],
)
def test_rejects_name_what_was_found(record: Any, expected: str | None) -> None:
    found = reason(record)
    found.encode("utf-8")  # a reason goes into a table
    assert expected is None or found == expected


@pytest.mark.parametrize(
    "more",
    [{"instruction": "", "question": "q"}, {"question": " "}, {"pages": 3, "dataset": "d", "prompt_id": "p"}, {}],
)
def test_a_sample_may_have_no_instruction(more: dict[str, Any]) -> None:
    made = sample({"context": "c", "response": "r", **more})
    assert (made.context, made.instruction, made.response) == ("c", "", "r")


def test_a_reject_is_called_by_its_id_or_its_place() -> None:
    why = "missing response: the record has context only"
    assert convert({"id": "a", "context": "c"}) == Reject(sample_id="a", reason=why)
    assert convert({"context": "c"}) == Reject(sample_id="x.jsonl:7", reason=why)


KEYS = ["id", "messages", "role", "content", "data", "response", "context", "conversations", "from", "value"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    )
)
def test_no_record_crashes(record: Any) -> None:
    made = convert(record)
    assert made.sample_id


EXCHANGE = [Turn(role="user", content="q"), Turn(role="assistant", content="a")]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"messages": None, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "User", "value": "q"}, {"from": " assistant", "value": "a"}]},
        {"conversations": [{"role": "user", "content": "q", "from": None}, {"from": "gpt", "value": "a"}]},
        {"data": ["q", "a"]},
    ],
)
def test_all_forms_say_the_same(record: dict[str, Any]) -> None:
    assert turns_of(record) == EXCHANGE
    assert turns_of({"text": "x", "messages": None}) is None


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": "hello"}, "wrong type: messages is text, not a list of turns"),
        ({"messages": []}, "no turns: messages is empty"),
        ({"messages": ["hello"]}, "wrong type: turn 1 is text, not an object with role and content"),
        ({"messages": [{"content": "x"}]}, "unknown role: turn 1 has no role"),
        ({"messages": [{"role": 3, "content": "x"}]}, "unknown role: turn 1 has a number"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "unknown role: 'robot' in turn 1"),
        ({"messages": [{"role": "\ud800", "content": "x"}]}, "unknown role: '\\ud800' in turn 1"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "non-string content: turn 1 (user) is a list"),
        ({"messages": [{"role": "user"}]}, "non-string content: turn 1 (user) is null"),
        ({"data": ["q", {"a": 1}]}, "unknown role: turn 2 has no role"),
        ({"data": ["q", 7]}, "wrong type: turn 2 is a number, not an object with role and content"),
        ({"data": ["q", "\udfff"]}, "invalid text: lone surrogate U+DFFF in turn 2"),
    ],
)
def test_reasons_name_what_was_found(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        turns_of(record)
    assert str(caught.value) == reason


def test_names_of_kinds() -> None:
    values = (None, True, 1, 1.5, "x", b"x", {}, [], object())
    expected = ["null", "a boolean", "a number", "a number", "text", "bytes", "an object", "a list", "object"]
    assert [kind_of(value) for value in values] == expected
