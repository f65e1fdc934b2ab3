"""Short conversations from records of every form, and the table of them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import tables
from gateau_dagster.config import ShortChatConfig
from gateau_dagster.data import sample as sample_module
from gateau_dagster.data import short_chat as module
from gateau_dagster.data.sample import Conversation, Reject, text_digest
from gateau_dagster.data.short_chat import (
    short_chat_control_tokens,
    short_chat_mix,
    short_chat_signature,
    to_conversation,
)
from tests.kit.error_codes import refused

EXCHANGE = [("human", "q"), ("gpt", "a")]
ORDER = "wrong order of turns: user and assistant must alternate, but found"


def convert(record: Any) -> Conversation | Reject:
    return to_conversation(record, location="x.json:3", stem="x")


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


@pytest.mark.parametrize(
    ("record", "system"),
    [
        (chat(*EXCHANGE), []),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, []),
        ({"data": ["q", "a"]}, []),
        (chat(("gpt", "end of a longer one"), ("human", "q"), ("gpt", "a"), ("human", "thanks")), []),
        (chat(("system", " "), ("human", "q"), ("gpt", "a")), []),
        (chat(("system", "s"), ("gpt", "x"), ("human", "q"), ("gpt", "a")), [("system", "s")]),
    ],
)
def test_forms_and_usual_repairs(record: dict[str, Any], system: list[tuple[str, str]]) -> None:
    made = convert(record)
    assert isinstance(made, Conversation), made
    assert [(turn.role, turn.content) for turn in made.turns] == [*system, ("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (chat(("human", "q"), ("gpt", "")), "empty response: an assistant turn has no text"),
        (chat(*EXCHANGE, ("human", "q"), ("gpt", " \n")), "empty response: an assistant turn has no text"),
        (chat(("human", ""), ("gpt", "a")), "empty prompt: a user turn has no text"),
        (chat(("human", "q")), "missing response: no user turn is answered"),
        (chat(("gpt", "a")), "missing response: no user turn is answered"),
        (chat(("human", "q"), ("bing", "a")), "unknown role: 'bing' in turn 2"),
        (chat(("human", "q"), *EXCHANGE), f"{ORDER} user, user, assistant"),
        (chat(("human", "q"), ("system", "s"), ("gpt", "a")), f"{ORDER} user, system, assistant"),
        ({"conversations": []}, "no turns: conversations is empty"),
        ({"text": "x"}, "unknown form: conversations, messages or data with a list of turns wanted"),
        (3, "wrong type: the record is a number, not an object"),
        ({"id": True, **chat(*EXCHANGE)}, "invalid id: id is a boolean, not text or an integer"),
    ],
)
def test_rejects(record: Any, reason: str) -> None:
    assert convert(record) == Reject(sample_id="x.json:3", reason=reason)


def test_ids_and_digest() -> None:
    record = chat(*EXCHANGE)
    made, named = convert(record), convert({"id": 5, **record})
    assert isinstance(made, Conversation)
    assert isinstance(named, Conversation)
    assert made.digest == named.digest == text_digest(["user", "q", "assistant", "a"])
    assert (made.sample_id, named.sample_id) == (made.digest[:32], "5")
    assert convert({"id": "z", "conversations": []}).sample_id == "z"


def share(name: str | None, answer: str = "a") -> dict:
    record = {"conversations": [{"from": "human", "value": f"q {name}"}, {"from": "gpt", "value": answer}]}
    return record if name is None else {"id": name, **record}


def write(folder: Path, *records: dict, name: str = "chat.json") -> None:
    (folder / name).write_text(json.dumps(records), encoding="utf-8")


def test_table_in_the_datas_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 2)
    write(tmp_path, share("z"), share("a"), share("e", ""), share(None), share("m"))
    mix, rejected = short_chat_mix(ShortChatConfig(path="chat.json"), tmp_path)
    assert mix.schema == tables.schema(tables.SHORT_CHAT_MIX)
    assert rejected.schema == tables.schema(tables.REJECTED)
    assert mix["sample_id"].to_list()[:2] + mix["sample_id"].to_list()[3:] == ["z", "a", "m"]
    assert mix["sample_id"][2] == mix["digest"][2][:32]
    assert mix["source"].to_list() == ["chat"] * 4
    assert mix["messages"][0].to_list() == [{"role": "user", "content": "q z"}, {"role": "assistant", "content": "a"}]
    assert list(rejected.iter_rows()) == [("e", "empty response: an assistant turn has no text")]


@pytest.mark.parametrize(("fraction", "taken"), [(1.0, 40), (0.5, 20), (0.1, 4), (0.001, 1)])
def test_fraction_of_the_usable_from_the_start(tmp_path: Path, fraction: float, taken: int) -> None:
    records = [share(f"s{i}", "" if i % 5 == 0 else "a") for i in range(50)]
    write(tmp_path, *records)
    mix, rejected = short_chat_mix(ShortChatConfig(path="chat.json", fraction=fraction), tmp_path)
    assert mix["sample_id"].to_list() == [f"s{i}" for i in range(50) if i % 5][:taken]
    assert len(rejected) == 10


def test_files_in_order_and_duplicates(tmp_path: Path) -> None:
    write(tmp_path, share("b"), share("x"), name="c1.json")
    write(tmp_path, share("a"), share("b"), share("x", "other"), name="c2.json")
    mix, rejected = short_chat_mix(ShortChatConfig(path="c*.json"), tmp_path)
    assert mix.select("sample_id", "source").rows() == [("b", "c1"), ("a", "c2")]
    assert rejected["reason"].unique().to_list() == [
        "duplicate id: different content under one id in c1.json:2, c2.json:3"
    ]


def test_nothing_usable(tmp_path: Path) -> None:
    write(tmp_path, share("a", ""), share("b", ""))
    with refused("data.no_usable_record", r"short_chat\.path.*chat\.json") as caught:
        short_chat_mix(ShortChatConfig(path="chat.json"), tmp_path)
    assert "2 x empty response" in str(caught.value)


def test_signature_follows_what_changes_the_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, share("a"), share("b"))
    config, cache = ShortChatConfig(path="chat.json"), tmp_path / "cache"
    first = short_chat_signature(config, tmp_path, cache)
    write(tmp_path, share("a"), share("b"))
    assert short_chat_signature(config, tmp_path, cache) == first
    status = (tmp_path / "chat.json").stat()
    write(tmp_path, share("a"), share("d"))
    os.utime(tmp_path / "chat.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert short_chat_signature(config, tmp_path, cache) == first
    reading = ShortChatConfig(path="chat.json", verify="content")
    assert short_chat_signature(reading, tmp_path, cache) != first
    other = {short_chat_signature(ShortChatConfig(path="chat.json", fraction=0.5), tmp_path, cache)}
    write(tmp_path, share("a"), share("c"))
    other.add(short_chat_signature(config, tmp_path, cache))
    monkeypatch.setattr(module, "CODE_VERSION", "raised")
    other.add(short_chat_signature(config, tmp_path, cache))
    assert len(other | {first}) == 4


def test_a_mix_with_control_tokens_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early releases read them as control tokens. Names that come from the content stay."""
    config, signatures, spelled = ShortChatConfig(path="chat.json"), list[set[str]](), ("no", "<|im_end|>")
    for said in spelled:
        write(tmp_path, share("a", said), share(None, said))
        found = short_chat_mix(config, tmp_path)[0]
        signature = short_chat_signature(config, tmp_path, tmp_path / said[1:3])
        assert short_chat_control_tokens(config, tmp_path, tmp_path / said[1:3]) == (
            {(said,): 2} if "<" in said else {}
        )
        with monkeypatch.context() as early:
            early.setattr(sample_module, "_CONTROL_TOKEN", re.compile("(?!)"))
            before = short_chat_mix(config, tmp_path)[0]
            signatures.append({signature, short_chat_signature(config, tmp_path, tmp_path / f"early{said[1:3]}")})
        assert found.drop("digest").equals(before.drop("digest"))
        assert found.equals(before) == (said == "no")
    assert [len(each) for each in signatures] == [1, 2]
