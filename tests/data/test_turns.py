from typing import Any

import pytest

from gateau_dagster.data.sample import Turn
from gateau_dagster.data.turns import InvalidRecordError, checked_text, kind_of, turns_of

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


def test_system_turn() -> None:
    assert turns_of({"conversations": [{"from": "system", "value": "s"}]}) == [Turn(role="system", content="s")]


def test_no_chat_form() -> None:
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


def test_surrogate_pairs_are_text() -> None:
    assert checked_text("\U0001f600", "x") == "\U0001f600"


def test_names_of_kinds() -> None:
    values = (None, True, 1, 1.5, "x", b"x", {}, [], object())
    expected = ["null", "a boolean", "a number", "a number", "text", "bytes", "an object", "a list", "object"]
    assert [kind_of(value) for value in values] == expected
