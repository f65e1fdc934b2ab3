import json
from pathlib import Path

from gateau_dagster.demo.prepare import demo_short_chat, write_demo_short_chat

CHATS = demo_short_chat(200, 5)


def test_conversations_alternate_and_nothing_is_empty() -> None:
    assert len({chat["id"] for chat in CHATS}) == 200
    for chat in CHATS:
        turns = chat["conversations"]
        assert [turn["from"] for turn in turns] == ["human", "gpt"] * (len(turns) // 2)
        assert 2 <= len(turns) <= 6
        assert all(turn["value"].strip() for turn in turns)


def test_recalls_are_answered_by_the_facts_just_told() -> None:
    recalls = 0
    for chat in CHATS:
        pairs = zip(chat["conversations"][::2], chat["conversations"][1::2], strict=True)
        for asked, answered in pairs:
            if "recall" not in asked["value"]:
                assert asked["value"].startswith("tell about ")
                continue
            recalls += 1
            told, question = asked["value"].split("\n\n")
            words = told.split()
            facts = dict(zip(words[1::4], words[2::4], strict=True))
            wanted = [word for name in question.split()[1:] for word in (name, facts[name], ".")]
            assert answered["value"].split() == wanted
    assert 100 < recalls < 300


def test_the_seed_decides_and_the_file_holds_the_conversations(tmp_path: Path) -> None:
    assert demo_short_chat(3, 5) == CHATS[:3] != demo_short_chat(3, 6)
    path = tmp_path / "chat.jsonl"
    write_demo_short_chat(path, 3, 5)
    assert [json.loads(line) for line in path.read_text().splitlines()] == CHATS[:3]
