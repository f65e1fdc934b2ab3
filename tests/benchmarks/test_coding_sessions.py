"""Sessions made of a git history: the traces feature reads them whole, and each edit changes text that was read."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import coding_sessions
import pytest
from coding_sessions import edits_between
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.config.inputs import LongSftConfig, Turns
from gateau_dagster.data.index import build_index

LINES = [f"value_{number:02d} = {number}  # the line has some text\n" for number in range(40)]
BODY = "The value was measured again, and the sum of both is what the callers expect."


def commit(folder: Path, subject: str, files: dict[str, str], body: str = BODY) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["add", "."], [*name, "commit", "-qm", f"{subject}\n\n{body}"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coding")
    history = folder / "history"
    subprocess.run(["git", "init", "-q", str(history)], check=True)
    commit(history, "Begin", {"a.py": "".join(LINES), "b.md": "".join(LINES[20:]), "c.py": "other = value_06\n"})
    changed = [*LINES[:7], "value_07 = 70  # — measured\n", *LINES[8:30], "value_30 = value_07\n", *LINES[31:]]
    commit(history, "Change two values", {"a.py": "".join(changed), "b.md": "".join(LINES[21:])})
    commit(history, "Too many changes", {"a.py": "".join(line.upper() for line in LINES)})
    commit(history, "No reason", {"c.py": "other = value_08\n"}, body="")
    commit(history, "Back", {"a.py": "".join(changed)})
    commit(history, "A new file", {"d.py": "value_07 = 1\n"})
    commit(history, "Use another value", {"c.py": "other = value_08 + value_07\n"})
    arguments = ["--repository", str(history), "--characters", "10", "9000", "--out", str(folder / "sessions")]
    assert coding_sessions.main([*arguments, "--edits", str(folder / "edits.jsonl")]) == 0
    return folder


def sessions(folder: Path) -> list[list[dict[str, Any]]]:
    files = sorted((folder / "sessions").iterdir())
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.parametrize("turns", ["last", "each"])
def test_sessions_are_read_whole(made: Path, turns: Turns) -> None:
    index = build_index(LongSftConfig(path=str(made / "sessions"), shards=1, turns=turns), Path.cwd())
    answers = sum(line["type"] == "assistant" for lines in sessions(made) for line in lines)
    assert (index.accepted.height, index.rejected.height) == (2 if turns == "last" else answers, 0)
    assert not any("left out" in use for uses in index.fields.values() for use in uses)
    assert index.accepted["source"].unique().to_list() == ["claude-code"]


def test_edits_change_what_was_read_into_what_was_committed(made: Path) -> None:
    for lines in sessions(made):
        seen, calls = dict[str, str](), list[dict[str, Any]]()
        for line in lines[1:-1]:
            (part,) = line["message"]["content"]
            if part["type"] == "tool_use":
                calls.append(part)
                continue
            call = calls[-1]
            assert part["tool_use_id"] == call["id"]
            given_ = call["input"]
            if call["name"] == "Read":
                seen[given_["file_path"]] = re.sub(r"^ *\d+\t", "", part["content"], flags=re.MULTILINE) + "\n"
            elif call["name"] == "Edit":
                text = seen[given_["file_path"]]
                assert text.count(given_["old_string"]) == 1
                seen[given_["file_path"]] = text.replace(given_["old_string"], given_["new_string"])
        subject, body = lines[0]["message"]["content"], lines[-1]["message"]["content"][0]["text"]
        assert body == BODY
        files = {name.rpartition("/")[2]: text for name, text in seen.items()}
        if subject == "Use another value":
            assert files["c.py"] == "other = value_08 + value_07\n"
        else:
            assert subject == "Change two values"
            assert "value_07 = 70  # — measured\n" in files["a.py"] and "value_30 = value_07\n" in files["a.py"]
            assert files["b.md"] == "".join(LINES[21:]) and files["c.py"] == "other = value_06\n"


def test_one_edit_of_each_session_is_a_sample(made: Path) -> None:
    records = [json.loads(line) for line in (made / "edits.jsonl").read_text().splitlines()]
    assert len({each["id"].partition("#")[0] for each in records}) == len(records) == 2
    for each in records:
        edit = json.loads(each["response"].removeprefix("Edit "))
        shown = re.sub(r"^ *\d+\t", "", each["context"], flags=re.MULTILINE)
        assert edit["old_string"].strip("\n") in shown


@given(*[st.lists(st.sampled_from(["a\n", "b\n", "c\n", "the line\n", "x"]), max_size=12).map("".join)] * 2)
def test_edits_turn_one_text_into_the_other(before: str, after: str) -> None:
    edits = edits_between(before, after)
    text = before
    for gone, come in edits or ():
        assert before.count(gone) == text.count(gone) == 1
        text = text.replace(gone, come)
    assert edits is None or text == after
