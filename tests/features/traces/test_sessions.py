"""Read session files whose lines are doubled, lost, compacted or left behind: each turn counts once, or is counted."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.traces.sessions import session_of
from tests.data.inputs import jsonl, read

Line = dict[str, Any]
TWICE, BRANCH, BEFORE = "lines written twice", "turns of an abandoned branch", "turns before a compaction"
NO_ANSWER = "turns after a compaction that no answer follows"
FAILED, SYNTHETIC = "answers that failed", "answers that the program wrote"


def entry(kind: str, name: str, parent: str | None, content: Any, **more: Any) -> Line:
    """A line of Claude Code; its id is the name, and its text as well if it has no other."""
    message = {"role": kind, "content": content, **({"id": f"of {name}", "model": "m"} if kind == "assistant" else {})}
    return {"type": kind, "uuid": name, "parentUuid": parent, "sessionId": "s", "message": message, **more}


def ask(name: str, parent: str | None, **more: Any) -> Line:
    return entry("user", name, parent, name, **more)


def say(name: str, parent: str | None, answer: str | None = None, **more: Any) -> Line:
    line = entry("assistant", name, parent, [{"type": "text", "text": name}], **more)
    line["message"] |= {"id": answer or f"of {name}"}
    return line


def call(name: str, parent: str | None, answer: str | None = None) -> Line:
    line = entry("assistant", name, parent, [{"type": "tool_use", "id": name, "name": "read", "input": {}}])
    line["message"] |= {"id": answer or f"of {name}"}
    return line


def result(name: str, parent: str | None, of: str) -> Line:
    return entry("user", name, parent, [{"type": "tool_result", "tool_use_id": of, "content": name}])


def boundary(name: str, **metadata: Any) -> Line:
    line = {"type": "system", "subtype": "compact_boundary", "uuid": name, "parentUuid": None, "sessionId": "s"}
    return {**line, "compactMetadata": {"trigger": "auto", **metadata}}


def summary(name: str, parent: str | None) -> Line:
    return ask(name, parent, isCompactSummary=True, isVisibleInTranscriptOnly=True)


def segment(head: str, anchor: str, tail: str) -> Line:
    return {"preservedSegment": {"headUuid": head, "anchorUuid": anchor, "tailUuid": tail}}


def synthetic(name: str, parent: str) -> Line:
    line = say(name, parent)
    line["message"]["model"] = "<synthetic>"
    return line


def queued(name: str, parent: str | None, **more: Any) -> Line:
    attachment = {"type": "queued_command", "prompt": name, "commandMode": "prompt", **more}
    return {"type": "attachment", "uuid": name, "parentUuid": parent, "sessionId": "s", "attachment": attachment}


def enqueue(text: str) -> Line:
    return {"type": "queue-operation", "operation": "enqueue", "content": text, "sessionId": "s"}


def timed(*lines: Line) -> list[Line]:
    return [{**line, "timestamp": f"2026-05-01T10:00:{second:02d}.000Z"} for second, line in enumerate(lines)]


def again(lines: list[Line], parent: str | None = None) -> list[Line]:
    """The lines once more under other ids, behind `parent`."""
    names = {line["uuid"]: f"{line['uuid']}'" for line in lines}
    return [
        {**line, "uuid": names[line["uuid"]], "parentUuid": names.get(line["parentUuid"], parent)} for line in lines
    ]


def texts(content: Any) -> Iterator[str]:
    """The texts and the ids of calls in a message's content, in order."""
    for part in content if isinstance(content, list) else [{"text": content}]:
        if part.get("type") == "tool_result":
            yield from texts(part["content"])
        else:
            yield part.get("text") or part["id"]


def record_of(lines: list[Line]) -> dict[str, Any]:
    session = session_of(lines[0])
    assert session is not None
    for line in lines:
        session.add(line)
    record = session.record("s")
    assert all(one["role"] != other["role"] for one, other in pairwise(record["messages"]))
    return record


def conversation_in(record: dict[str, Any]) -> str:
    return " ".join(text for message in record["messages"] for text in texts(message["content"]))


def as_read(lines: list[Line]) -> tuple[str, dict[str, int]]:
    """The conversation in one line, and what is left out."""
    record = record_of(lines)
    return conversation_in(record), record["(left out)"]


FIRST = timed(ask("q1", None), say("a1", "q1"), ask("q2", "a1"), say("a2", "q2"))
MORE = timed(*[ask("", None)] * 4, ask("q3", "a2"), say("a3", "q3"))[4:]
SAME = [*FIRST, *MORE]
WHOLE = "q1 a1 q2 a2 q3 a3"
UNTIMED = [{key: value for key, value in line.items() if key != "timestamp"} for line in SAME]
UNNAMED = [{**line, "message": {**line["message"], "id": None}} for line in UNTIMED]
KEPT = segment("q2", "s", "a2")


def on(parent: str) -> list[Line]:
    return [ask("q3", parent), say("a3", "q3")]


CLAUDE: dict[str, tuple[list[Line], str, dict[str, int]]] = {
    "a later version": (
        [*FIRST[:3], {**say("a2", "q2"), "message": {"role": "assistant", "content": "a"}}, FIRST[3], *MORE],
        WHOLE,
        {TWICE: 1},
    ),
    "history again at the end": ([*SAME, *SAME], WHOLE, {TWICE: 6}),
    "history again behind itself": (
        [*FIRST, {**FIRST[0], "parentUuid": "a2"}, *FIRST[1:], *MORE],
        WHOLE,
        {TWICE: 4},
    ),
    "goes on from the copy": ([*FIRST, *again(FIRST), ask("q3", "a2'"), say("a3", "q3")], WHOLE, {TWICE: 4}),
    "goes on from a part": (
        [*FIRST, *again(FIRST[:2], "a2"), ask("q3", "a1'"), say("a3", "q3")],
        "q1 a1 q3 a3",
        {TWICE: 2, BRANCH: 2},
    ),
    "another session's copy": (
        [*FIRST, *({**line, "sessionId": "t"} for line in again(FIRST)), ask("q3", "a2'"), say("a3", "q3")],
        WHOLE,
        {TWICE: 4},
    ),
    "without times": ([*UNTIMED[:4], *again(UNTIMED[:4], "a2"), ask("q3", "a2'"), say("a3", "q3")], WHOLE, {TWICE: 4}),
    "without times or answers' ids": (
        [*UNNAMED[:4], *again(UNNAMED[:4], "a2"), ask("q3", "a2'"), say("a3", "q3")],
        WHOLE,
        {TWICE: 4},
    ),
    "the same request is no copy": (
        timed(
            ask("q1", None),
            say("a1", "q1"),
            {**ask("q2", "a1"), "message": ask("q1", None)["message"]},
            say("a2", "q2"),
        ),
        "q1 a1 q1 a2",
        {},
    ),
    "queued without an id": (
        [*FIRST, {**queued("b", None), "uuid": None}, *MORE],
        "q1 a1 q2 a2 b q3 a3",
        {},
    ),
    "queued in parts": (
        [*FIRST, enqueue("b"), queued("b", "a2", prompt=[{"type": "text", "text": "b"}]), *on("b")],
        "q1 a1 q2 a2 b q3 a3",
        {},
    ),
    "queued twice, asked as one": (
        [*FIRST, enqueue("q3"), enqueue("q4"), entry("user", "q", "a2", "q3\nq4"), say("a3", "q")],
        "q1 a1 q2 a2 q3\nq4 a3",
        {},
    ),
    "synthetic in the middle": ([*FIRST, synthetic("no", "a2"), *on("no")], WHOLE, {SYNTHETIC: 1}),
    "what the program adds": ([*FIRST, ask("b", "a2", isMeta=True), *on("b")], "q1 a1 q2 a2 b q3 a3", {}),
    "output of a command": (
        [
            *FIRST,
            {"type": "system", "subtype": "local_command", "content": "b", "uuid": "b", "parentUuid": "a2"},
            *on("b"),
        ],
        "q1 a1 q2 a2 b q3 a3",
        {},
    ),
    "two parents never written": ([*FIRST[:2], ask("q2", "x"), say("a2", "y"), *on("a2")], WHOLE, {}),
    "first parent in another file": ([ask("q1", "x"), *SAME[1:]], WHOLE, {}),
    "result's parent never written": (
        [ask("q1", None), call("c1", "q1"), result("r1", "x", "c1"), say("a1", "r1")],
        "q1 c1 r1 a1",
        {},
    ),
    "call never written": (
        [ask("q1", None), result("r1", "x", "c1"), say("a1", "r1")],
        "q1 a1",
        {"results without their call": 1},
    ),
    "its own parent": ([*FIRST, ask("q3", "q3"), say("a3", "q3")], WHOLE, {}),
    "a circle": ([ask("q1", "a2"), *SAME[1:]], WHOLE, {}),
    "lines without ids": ([*FIRST[:2], {**ask("q2", None), "uuid": None}, say("a2", "lost"), *on("a2")], WHOLE, {}),
    "no ids at all": ([{**line, "uuid": None, "parentUuid": None} for line in SAME], WHOLE, {}),
    "no parents at all": ([{key: line[key] for key in line if key != "parentUuid"} for line in SAME], WHOLE, {}),
    "last line out of order": ([*FIRST[:3], *MORE, FIRST[3]], WHOLE, {}),
    "parallel calls, each with its result": (
        [
            ask("q1", None),
            call("c1", "q1", "m"),
            result("r1", "c1", "c1"),
            call("c2", "r1", "m"),
            result("r2", "c2", "c2"),
            say("a1", "r2"),
        ],
        "q1 c1 c2 r1 r2 a1",
        {},
    ),
    "one id for all answers": (
        [ask("q1", None), say("a1", "q1", "m"), ask("q2", "a1"), say("a2", "q2", "m"), *on("a2")],
        WHOLE,
        {},
    ),
    "a denied and a given result": (
        [ask("q1", None), call("c1", "q1"), result("no", "c1", "c1"), result("r1", "c1", "c1"), say("a1", "r1")],
        "q1 c1 r1 a1",
        {BRANCH: 1},
    ),
    "another attachment": (
        [*FIRST, {**queued("b", "a2"), "attachment": {"type": "file", "content": "x"}}, *on("b")],
        WHOLE,
        {"attachments of the type file": 1},
    ),
    "an unknown line": (
        [*FIRST, {"type": "news", "uuid": "b", "parentUuid": "a2"}, *on("b")],
        WHOLE,
        {"lines of the type news": 1},
    ),
    "compaction without its line": ([*FIRST, summary("s", "a2"), *on("s")], "s q3 a3", {BEFORE: 4}),
    "compaction without its summary": ([*FIRST, boundary("b"), *on("lost")], "q3 a3", {BEFORE: 4}),
    "keeps turns": ([*FIRST, boundary("b", **KEPT), summary("s", "b"), *on("s")], "s q2 a2 q3 a3", {BEFORE: 2}),
    "keeps turns, on the tail": (
        [*FIRST, boundary("b", **KEPT), summary("s", "b"), *on("a2")],
        "s q2 a2 q3 a3",
        {BEFORE: 2},
    ),
    "keeps turns, on a lost line": (
        [*FIRST, boundary("b", **KEPT), summary("s", "b"), *on("x")],
        "s q2 a2 q3 a3",
        {BEFORE: 2},
    ),
    "keeps turns before its summary": (
        [*FIRST, boundary("b", **segment("q2", "b", "a2")), summary("s", "b"), *on("s")],
        "q2 a2 s q3 a3",
        {BEFORE: 2},
    ),
    "keeps turns before its summary, on the tail": (
        [*FIRST, boundary("b", **segment("q2", "b", "a2")), summary("s", "b"), *on("a2")],
        "q2 a2 s q3 a3",
        {BEFORE: 2},
    ),
    "keeps listed turns": (
        [
            *FIRST,
            boundary("b", preservedMessages={"anchorUuid": "s", "uuids": ["a1", "a2", "x"]}),
            summary("s", "b"),
            *on("s"),
        ],
        "s a1 a2 q3 a3",
        {BEFORE: 2},
    ),
    "keeps up to a lost tail": (
        [*FIRST, boundary("b", **segment("q2", "s", "x")), summary("s", "b"), *on("s")],
        "s q2 a2 q3 a3",
        {BEFORE: 2},
    ),
    "keeps from a lost head": (
        [*FIRST, boundary("b", **segment("x", "s", "a2")), summary("s", "b"), *on("s")],
        "s q3 a3",
        {BEFORE: 4},
    ),
    "hung far before a compaction": ([*FIRST, boundary("b"), summary("s", "b"), *on("a1")], "s q3 a3", {BEFORE: 4}),
    "hung before a compaction, out of order": (
        [*FIRST, boundary("b"), summary("s", "b"), *reversed(on("a2"))],
        "s q3 a3",
        {BEFORE: 4},
    ),
    "taken back to before a compaction": (
        [*FIRST, boundary("b"), summary("s", "b"), ask("c", "s"), say("d", "c"), *on("a2")],
        WHOLE,
        {BRANCH: 3},
    ),
    "taken back to a kept turn": (
        [*FIRST, boundary("b", **KEPT), summary("s", "b"), ask("c", "s"), say("d", "c"), say("e", "q2")],
        "s q2 e",
        {BEFORE: 2, BRANCH: 3},
    ),
    "kept turns under other ids": (
        [*FIRST, boundary("b"), summary("s", "b"), *again(FIRST[2:], "s"), *on("a2'")],
        "s q2 a2 q3 a3",
        {BEFORE: 2, TWICE: 2},
    ),
    "kept turns named and under other ids": (
        [*FIRST, boundary("b", **KEPT), summary("s", "b"), *again(FIRST[2:], "a2"), *on("a2'")],
        "s q2 a2 q3 a3",
        {BEFORE: 2, TWICE: 2},
    ),
    "kept turns again": (
        [*FIRST, boundary("b"), summary("s", "b"), {**FIRST[2], "parentUuid": "s"}, FIRST[3], *on("a2")],
        "s q2 a2 q3 a3",
        {BEFORE: 2, TWICE: 2},
    ),
    "two compactions": (
        [
            *FIRST,
            boundary("b", **KEPT),
            summary("s", "b"),
            *on("s"),
            boundary("c", **segment("a3", "t", "a3")),
            summary("t", "c"),
            ask("q4", "t"),
            say("a4", "q4"),
        ],
        "t a3 q4 a4",
        {BEFORE: 6},
    ),
    "the second keeps what the first kept": (
        [
            *FIRST,
            boundary("b", **KEPT),
            summary("s", "b"),
            *on("s"),
            boundary("c", **segment("a2", "t", "a3")),
            summary("t", "c"),
            ask("q4", "t"),
            say("a4", "q4"),
        ],
        "t a2 q3 a3 q4 a4",
        {BEFORE: 4},
    ),
    "the second writes the history again": (
        [
            *FIRST,
            boundary("b", **KEPT),
            summary("s", "b"),
            *on("s"),
            *FIRST[:2],
            {"type": "system", "subtype": "stop_hook_summary", "uuid": "h", "parentUuid": "a1"},
            boundary("c", **segment("a3", "t", "h")),
            summary("t", "c"),
            ask("q4", "t"),
            say("a4", "q4"),
        ],
        "t a3 q4 a4",
        {BEFORE: 6, TWICE: 2},
    ),
}


@pytest.mark.parametrize("name", CLAUDE)
def test_each_turn_of_claude_code_counts_once_or_is_counted(name: str) -> None:
    lines, conversation, left_out = CLAUDE[name]
    assert as_read(lines) == (conversation, left_out)


def item(kind: str = "message", second: int = 0, **payload: Any) -> Line:
    time = f"2026-05-01T10:00:{second:02d}.000Z"
    return {"timestamp": time, "type": "response_item", "payload": {"type": kind, **payload}}


def spoken(role: str, text: str, second: int = 0) -> Line:
    return item(second=second, role=role, content=[{"type": "input_text", "text": text}])


HEADER = {"timestamp": "t", "type": "session_meta", "payload": {"id": "s", "instructions": "S"}}
CODEX_CALL = item("function_call", 2, name="read", arguments="{}", call_id="c1")
OUTPUT = item("function_call_output", 3, call_id="c1", output="r1")
OPENED = [HEADER, spoken("user", "q1", 1), CODEX_CALL, OUTPUT, spoken("assistant", "a1", 4)]
ASKED = [spoken("user", "q2", 5), spoken("assistant", "a2", 6)]
BACK = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}


def compacted(*history: Line, **more: Any) -> Line:
    return {
        "type": "compacted",
        "payload": {"message": "", "replacement_history": [each["payload"] for each in history]},
    } | more


CODEX: dict[str, tuple[list[Line], str, dict[str, int]]] = {
    "written twice": ([line for line in [*OPENED, *ASKED] for _ in range(2)], "S q1 c1 r1 a1 q2 a2", {TWICE: 6}),
    "rolled back, written twice": (
        [*OPENED, *ASKED, *[{"timestamp": "t", **BACK}] * 2, spoken("user", "q3", 7)],
        "S q1 c1 r1 a1 q3",
        {BRANCH: 2},
    ),
    "compacted, written twice": (
        [*OPENED, *[compacted(spoken("user", "q1"))] * 2, *ASKED],
        "S q1 q2 a2",
        {BEFORE: 3, TWICE: 2},
    ),
    "history again": ([*OPENED, *OPENED[1:], *ASKED], "S q1 c1 r1 a1 q2 a2", {TWICE: 4}),
    "said again": (
        [*OPENED, *ASKED, spoken("user", "q2", 7), spoken("assistant", "a2", 8)],
        "S q1 c1 r1 a1 q2 a2 q2 a2",
        {},
    ),
    "all at one time": (
        [{**line, "timestamp": "t"} for line in [*OPENED, *ASKED, *ASKED]],
        "S q1 c1 r1 a1 q2 a2 q2 a2",
        {},
    ),
    "the header of its origin": (
        [HEADER, {**HEADER, "payload": {"id": "t", "instructions": "T"}}, *OPENED[1:]],
        "S q1 c1 r1 a1",
        {},
    ),
    "compacted to a text": (
        [*OPENED, {"type": "compacted", "payload": {"message": "h"}}, *ASKED],
        "S h q2 a2",
        {BEFORE: 4},
    ),
}


@pytest.mark.parametrize("name", CODEX)
def test_each_turn_of_codex_counts_once_or_is_counted(name: str) -> None:
    lines, conversation, left_out = CODEX[name]
    assert as_read(lines) == (conversation, left_out)


def noted(kind: str, name: str, parent: str | None, **more: Any) -> Line:
    return {"type": kind, "id": name, "parentId": parent, **more}


def told(role: str, name: str, parent: str | None, **more: Any) -> Line:
    return noted("message", name, parent, message={"role": role, "content": [{"type": "text", "text": name}], **more})


PI_HEADER = {"type": "session", "version": 3, "id": "s", "cwd": "/"}
PI_FIRST = [
    PI_HEADER,
    told("user", "q1", None),
    told("assistant", "a1", "q1"),
    told("user", "q2", "a1"),
    told("assistant", "a2", "q2"),
]
PI_MORE = [told("user", "q3", "a2"), told("assistant", "a3", "q3")]
PI_CALL = noted(
    "message",
    "c1",
    "q1",
    message={
        "role": "assistant",
        "content": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}],
        "stopReason": "aborted",
    },
)


def pi_on(parent: str) -> list[Line]:
    return [told("user", "q3", parent), told("assistant", "a3", "q3")]


def compaction(name: str, parent: str | None, **more: Any) -> Line:
    return noted("compaction", name, parent, summary=name, **more)


PI: dict[str, tuple[list[Line], str, dict[str, int]]] = {
    "an unknown line": ([*PI_FIRST, noted("news", "x", "a2"), *pi_on("x")], WHOLE, {"lines of the type news": 1}),
    "compaction from a lost turn": (
        [*PI_FIRST, compaction("s", "a2", firstKeptEntryId="x"), *pi_on("s")],
        "s q3 a3",
        {BEFORE: 4},
    ),
    "taken back to before a compaction": (
        [*PI_FIRST, compaction("s", "a2", firstKeptEntryId="q2"), *pi_on("a1")],
        "q1 a1 q3 a3",
        {BRANCH: 3},
    ),
    "the first format": (
        [
            {"type": "session", "id": "s", "cwd": "/"},
            *({key: line[key] for key in ("type", "message")} for line in PI_FIRST[1:]),
            {"type": "compaction", "summary": "s", "firstKeptEntryIndex": 3},
            *({key: line[key] for key in ("type", "message")} for line in PI_MORE),
        ],
        "s q2 a2 q3 a3",
        {BEFORE: 2},
    ),
    "a command that the model did not see": (
        [
            *PI_FIRST,
            noted(
                "message",
                "b",
                "a2",
                message={"role": "bashExecution", "command": "ls", "output": "", "excludeFromContext": True},
            ),
            *pi_on("b"),
        ],
        WHOLE,
        {"commands that the model did not see": 1},
    ),
    "an aborted call with a result": (
        [
            *PI_FIRST[:2],
            PI_CALL,
            noted(
                "message",
                "r1",
                "c1",
                message={"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "no"}]},
            ),
            told("assistant", "a1", "r1"),
        ],
        "q1 a1",
        {FAILED: 1, "results without their call": 1},
    ),
}


@pytest.mark.parametrize("name", PI)
def test_each_turn_of_pi_counts_once_or_is_counted(name: str) -> None:
    lines, conversation, left_out = PI[name]
    assert as_read(lines) == (conversation, left_out)


def test_a_file_is_read_so_and_says_how_much_is_left_out(tmp_path: Path) -> None:
    lines, conversation, left_out = CLAUDE["the second writes the history again"]
    records, problems = read(tmp_path / "s.jsonl", jsonl(*lines))
    counts: FieldCounts = {}
    (made,) = to_samples(records[1], location="p", stem="s", counts=counts)
    assert isinstance(made, Sample) and not problems
    assert conversation_in(records[1]) == conversation
    assert {name: uses["ignored"] for name, uses in counts.items() if "ignored" in uses} == left_out
