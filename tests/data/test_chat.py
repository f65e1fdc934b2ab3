from typing import Any

import pytest

from gateau_dagster.data.chat import to_conversation
from gateau_dagster.data.sample import Conversation, Reject, text_digest


def convert(record: Any) -> Conversation | Reject:
    return to_conversation(record, location="x.json:3", stem="x")


def share(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


def roles_and_texts(record: Any) -> list[tuple[str, str]]:
    made = convert(record)
    assert isinstance(made, Conversation), made
    return [(turn.role, turn.content) for turn in made.turns]


@pytest.mark.parametrize(
    "record",
    [
        share(("human", "q"), ("gpt", "a")),
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"data": ["q", "a"]},
        share(("gpt", "end of a longer one"), ("human", "q"), ("gpt", "a"), ("human", "thanks")),
        share(("system", " "), ("human", "q"), ("gpt", "a")),
    ],
)
def test_forms_and_usual_repairs(record: dict[str, Any]) -> None:
    assert roles_and_texts(record) == [("user", "q"), ("assistant", "a")]


def test_leading_system_turn_stays() -> None:
    assert roles_and_texts(share(("system", "s"), ("gpt", "x"), ("human", "q"), ("gpt", "a"))) == [
        ("system", "s"),
        ("user", "q"),
        ("assistant", "a"),
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (share(("human", "q"), ("gpt", "")), "empty response: an assistant turn has no text"),
        (
            share(("human", "q"), ("gpt", "a"), ("human", "q"), ("gpt", " \n")),
            "empty response: an assistant turn has no text",
        ),
        (share(("human", ""), ("gpt", "a")), "empty prompt: a user turn has no text"),
        (share(("human", "q")), "missing response: no user turn is answered"),
        (share(("gpt", "a")), "missing response: no user turn is answered"),
        (share(("human", "q"), ("bing", "a")), "unknown role: 'bing' in turn 2"),
        (
            share(("human", "q"), ("human", "q"), ("gpt", "a")),
            "wrong order of turns: user and assistant must alternate, but found user, user, assistant",
        ),
        (
            share(("human", "q"), ("system", "s"), ("gpt", "a")),
            "wrong order of turns: user and assistant must alternate, but found user, system, assistant",
        ),
        ({"conversations": []}, "no turns: conversations is empty"),
        ({"text": "x"}, "unknown form: conversations, messages or data with a list of turns wanted"),
        (3, "wrong type: the record is a number, not an object"),
    ],
)
def test_rejects(record: Any, reason: str) -> None:
    assert convert(record) == Reject(sample_id="x.json:3", reason=reason)


def test_ids_and_digest() -> None:
    record = share(("human", "q"), ("gpt", "a"))
    made, named = convert(record), convert({"id": 5, **record})
    assert isinstance(made, Conversation)
    assert isinstance(named, Conversation)
    assert made.digest == named.digest == text_digest(["user", "q", "assistant", "a"])
    assert (made.sample_id, named.sample_id) == (made.digest[:32], "5")
    assert convert({"id": "z", "conversations": []}).sample_id == "z"
