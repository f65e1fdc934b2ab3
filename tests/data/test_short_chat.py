import json
from pathlib import Path

import pytest

from gateau_dagster import tables
from gateau_dagster.config import ShortChatConfig
from gateau_dagster.data import short_chat as module
from gateau_dagster.data.short_chat import short_chat_mix, short_chat_signature
from gateau_dagster.errors import GateauError


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
    with pytest.raises(GateauError, match=r"short_chat\.path: no usable sample in chat\.json") as caught:
        short_chat_mix(ShortChatConfig(path="chat.json"), tmp_path)
    assert "2 x empty response" in str(caught.value)


def test_signature_follows_what_changes_the_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, share("a"), share("b"))
    config, cache = ShortChatConfig(path="chat.json"), tmp_path / "cache"
    first = short_chat_signature(config, tmp_path, cache)
    write(tmp_path, share("a"), share("b"))
    assert short_chat_signature(config, tmp_path, cache) == first
    other = {short_chat_signature(ShortChatConfig(path="chat.json", fraction=0.5), tmp_path, cache)}
    write(tmp_path, share("a"), share("c"))
    other.add(short_chat_signature(config, tmp_path, cache))
    monkeypatch.setattr(module, "CODE_VERSION", "2")
    other.add(short_chat_signature(config, tmp_path, cache))
    assert len(other | {first}) == 4
