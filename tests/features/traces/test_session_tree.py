"""Write sessions as agents do, with their damage, and read them: each turn is in the conversation once, or is counted.

The agents here are the slow twin: they keep the conversation as a list, which each step changes as it does for the
model, and write the lines of their format beside it.
"""

import json
from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Reject, Sample
from tests.features.traces.test_sessions import (
    BEFORE,
    BRANCH,
    FAILED,
    NO_ANSWER,
    SYNTHETIC,
    TWICE,
    Line,
    ask,
    boundary,
    call,
    conversation_in,
    enqueue,
    queued,
    record_of,
    result,
    say,
    segment,
    spoken,
    synthetic,
)

META, ASIDE = "requests that the program wrote and answered", "turns of subagents"


class Agent:
    """A session that is written step by step. head: its first lines. seen: the names of the turns that the model sees.

    fate: of each turn that it does not see, the reason; `written twice` has a count only, as its turn is elsewhere.
    """

    head: tuple[Line, ...] = ()
    steps: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.seen: list[str] = []
        self.turns: list[str] = []  # all turns, in the order in which they were written
        self.fate: dict[str, str] = {}
        self.counts = Counter[str]()
        self.unanswered: tuple[list[str], int, dict[str, str]] | None = None  # what it was before the compaction
        self.taken: tuple[list[str], dict[str, str]] | None = None  # what it was before turns were taken back
        self.number = 0

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def sees(self, name: str) -> None:
        self.seen.append(name)
        self.turns.append(name)
        self.taken = None
        if name[0] in "ac":
            self.unanswered = None

    def leave(self, names: list[str], reason: str) -> None:
        self.fate |= dict.fromkeys(names, reason)

    def take_back(self, place: int) -> None:
        """Take turns back. The file does not show it before the next turn."""
        self.taken = self.taken or ([*self.seen], {**self.fate})
        self.leave(self.seen[place:], BRANCH)
        self.seen = self.seen[:place]

    def compact(self, summary: str, kept: list[str], *, first: bool = False) -> None:
        """The summary replaces the turns, except the kept ones."""
        seen, fate = self.taken or ([*self.seen], {**self.fate})
        self.unanswered, self.taken = self.unanswered or (seen, len(self.turns), fate), None
        self.leave([name for name in self.turns if name not in kept], BEFORE)
        self.turns.append(summary)
        self.seen = [*kept, summary] if first else [summary, *kept]

    def end(self) -> tuple[list[str], Counter[str]]:
        """The conversation, and how many turns are left out by reason."""
        if self.taken is not None:
            self.seen, self.fate = self.taken
        if self.unanswered is not None:
            self.seen, place, self.fate = self.unanswered
            self.leave(self.turns[place:], NO_ANSWER)
        return self.seen, +(self.counts + Counter(self.fate.values()))

    def requests(self) -> list[int]:
        return [place for place, name in enumerate(self.seen) if name[0] == "q"]


class ClaudeCode(Agent):
    """tip: the line that the next one follows. is_last: no other line of the conversation was written after it."""

    head = ({"type": "summary", "leafUuid": "x"},)
    steps = (
        *("exchange", "tool", "parallel", "unnamed", "note", "queue", "unsent", "fail", "subagent"),
        *("back", "swap", "compaction", "again", "replay"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.tip: str | None = None
        self.is_last = True
        self.beside = set[str]()  # turns that no other hangs on
        self.kept: list[str] = []
        self.compactions = self.replays = 0

    def write(self, line: Line, *, loses: bool = False) -> None:
        """Write a line after the tip; `loses`: under a parent that is not in the file."""
        if loses and self.is_last and self.lines:
            line["parentUuid"] = f"lost {line['uuid']}"
        line["timestamp"] = f"2026-05-01T10:00:00.{len(self.lines):03d}Z"
        self.lines.append(line)
        self.tip, self.is_last = line["uuid"], True

    def turn(self, line: Line, *, loses: bool = False) -> None:
        self.write(line, loses=loses)
        self.sees(line["uuid"])

    def exchange(self, choice: int) -> None:
        self.turn(ask(self.name("q"), self.tip), loses=choice % 3 == 0)
        self.turn(say(self.name("a"), self.tip), loses=choice % 4 == 0)

    def tool(self, choice: int) -> None:
        self.turn(ask(self.name("q"), self.tip))
        self.turn(of := call(self.name("c"), self.tip))
        self.turn(result(self.name("r"), self.tip, of["uuid"]), loses=choice % 3 == 0)
        self.turn(say(self.name("a"), self.tip))

    def parallel(self, choice: int) -> None:
        """Several calls of one answer, and their results: each hangs on its call."""
        self.turn(ask(self.name("q"), self.tip))
        answer = self.name("m")
        calls = [self.name("c") for _ in range(2 + choice % 2)]
        for name in calls:
            self.turn(call(name, self.tip, answer))
        names = [self.name("r") for _ in calls]
        for name, of in zip(names, calls, strict=True):
            self.turn(result(name, of, of))
        self.beside |= {*calls, *names}
        self.turn(say(self.name("a"), names[choice % len(names)]))

    def unnamed(self, _: int) -> None:
        """A request whose line has no id, so that nothing can follow it by name."""
        if not self.is_last:
            return
        line = ask(self.name("q"), self.tip)
        self.turn(line)
        line["uuid"] = None
        self.turn(say(self.name("a"), "lost"))

    def note(self, choice: int) -> None:
        kind = ("system", "progress")[choice % 2]
        self.write({"type": kind, "uuid": self.name("n"), "parentUuid": self.tip, "sessionId": "s"})

    def queue(self, choice: int) -> None:
        """A request that was sent while the agent worked."""
        name = self.name("q")
        self.lines.append(enqueue(name))
        self.turn(queued(name, self.tip) if choice % 3 else ask(name, self.tip))
        self.turn(say(self.name("a"), self.tip))

    def unsent(self, _: int) -> None:
        self.lines.append(enqueue(self.name("x")))
        self.counts["queued requests that are in no turn"] += 1

    def fail(self, choice: int) -> None:
        """An answer that the program wrote, or an error."""
        if choice % 2:
            self.write(ask(self.name("p"), self.tip, isMeta=True))
            self.write(synthetic(self.name("p"), str(self.tip)))
            self.counts[META] += 1
            self.counts[SYNTHETIC] += 1
        else:
            self.turn(ask(self.name("q"), self.tip))
            self.write(say(self.name("p"), self.tip, isApiErrorMessage=True))
            self.counts[FAILED] += 1

    def subagent(self, _: int) -> None:
        for line in (ask(self.name("z"), None, isSidechain=True), say(self.name("z"), None, isSidechain=True)):
            self.lines.append(line)
            self.counts[ASIDE] += 1

    def back(self, choice: int) -> None:
        """The user takes requests back, at most to the turns that the last compaction kept."""
        places = [place for place in self.requests() if place > max(0, self.first_free())]
        if not places or self.seen[places[choice % len(places)] - 1] not in self.named():
            return
        place = places[choice % len(places)]
        if self.beside & {*self.kept} & {*self.seen[place:]}:
            return  # a reader cannot know that a compaction kept them
        self.take_back(place)
        self.tip, self.is_last = self.seen[-1], False

    def swap(self, _: int) -> None:
        """The last two lines are written in the other order."""
        pair, known = self.lines[-2:], self.named() | {None}
        if len(pair) == 2 and all(
            line["type"] in ("user", "assistant")
            and line["uuid"]
            and line["parentUuid"] in known
            and not line.get("isCompactSummary")
            and not line.get("isMeta")
            for line in pair
        ):
            self.lines[-2:] = reversed(pair)
            self.is_last = False

    def first_free(self) -> int:
        """The place of the summary, or of the first kept turn behind it."""
        summary = next((place for place, name in enumerate(self.seen) if name[0] == "s"), -1)
        return summary + 1 if summary >= 0 and self.seen[summary + 1 : summary + 2] == self.kept[:1] else summary

    def named(self) -> set[str]:
        return {line["uuid"] for line in self.lines if line.get("uuid")}

    def compaction(self, choice: int) -> None:
        """A compaction that keeps no turns, or the last ones; what follows hangs on the summary or on what it kept."""
        if not self.seen or not {self.seen[-1], self.seen[0]} <= self.named():
            return
        way, hangs = choice % 6, choice // 6 % 3
        starts = [place for place in self.requests() if {*self.seen[place:]} <= self.named()]
        kept = self.seen[starts[choice // 18 % len(starts)] :] if starts and way else []
        if any(name[0] == "s" for name in kept):
            kept = []
        first, summary, tip = self.name("b"), self.name("s"), self.seen[-1]
        metadata: dict[str, Any] = {}
        if kept and way in (1, 2, 4):
            metadata = segment(kept[0], first if way == 2 else summary, kept[-1])
        elif kept and way == 3:
            metadata = {"preservedMessages": {"anchorUuid": summary, "uuids": kept}}
        of = {line.get("uuid"): line for line in self.lines}
        self.write(boundary(first, **metadata))
        self.write(ask(summary, first, isCompactSummary=True))
        if kept and way in (4, 5):  # written again, under other ids
            for name in kept:
                self.write({**of[name], "uuid": f"{name}'{self.compactions}", "parentUuid": self.tip})
                self.lines[-1]["timestamp"] = of[name]["timestamp"]
                self.counts[TWICE] += 1
        else:
            self.tip = (self.tip, tip, f"lost {summary}")[hangs]
        self.kept, self.compactions = kept, self.compactions + 1
        self.compact(summary, kept, first=bool(kept) and way == 2)

    def again(self, choice: int) -> None:
        """A line is written twice."""
        line = self.lines[choice % len(self.lines)] if self.lines else {}
        if line.get("uuid") and (line["type"] in ("user", "assistant", "attachment")):
            self.lines.append({**line})
            self.counts[TWICE] += 1

    def replay(self, choice: int) -> None:
        """The whole history is written again, under the same ids or under others, on which the next line may hang."""
        main = [line for line in self.lines if "uuid" in line and not line.get("isSidechain")]
        if self.replays > 1 or self.compactions or any(line["uuid"] is None for line in main):
            return
        self.replays += 1
        new = {line["uuid"]: f"{line['uuid']}*{self.replays}" for line in main} if choice % 3 else {}
        root = self.tip if choice % 3 == 1 else None
        known = set[str]()
        for line in main:
            parent = line["parentUuid"]
            above = new.get(parent, parent if parent is not None else root)
            self.lines.append({**line, "uuid": new.get(line["uuid"], line["uuid"]), "parentUuid": above})
            is_turn = line["type"] in ("user", "assistant", "attachment")
            reason = self.reason(line) if new and line["uuid"] not in known else TWICE
            known.add(line["uuid"])
            if is_turn:
                self.counts[reason] += 1
        if choice % 2 and new:
            self.tip = new.get(self.tip, self.tip)
        self.is_last = self.is_last and not new

    def reason(self, line: Line) -> str:
        """Return the reason that a copy under another id counts under."""
        if line.get("isApiErrorMessage"):
            return FAILED
        if line.get("isMeta"):
            return META
        return SYNTHETIC if line.get("message", {}).get("model") == "<synthetic>" else TWICE


class Pi(Agent):
    steps = ("exchange", "tool", "note", "fail", "back", "compaction", "again")

    def __init__(self) -> None:
        super().__init__()
        self.lines = [{"type": "session", "version": 3, "id": "s", "cwd": "/"}]
        self.tip: str | None = None
        self.is_last = True
        self.ways: list[list[str]] = []

    def write(self, kind: str, name: str, *, loses: bool = False, **more: Any) -> None:
        parent = "lost" if loses and self.is_last and self.tip else self.tip
        time = f"2026-05-01T10:00:00.{len(self.lines):03d}Z"
        self.lines.append({"type": kind, "id": name, "parentId": parent, "timestamp": time, **more})
        self.tip, self.is_last = name, True

    def turn(self, role: str, kind: str, part: Line | None = None, *, loses: bool = False, **more: Any) -> str:
        name = self.name(kind)
        part = {"type": "text", "text": name} | (part or {})
        if part["type"] == "toolCall":
            part["id"] = name
        self.write("message", name, loses=loses, message={"role": role, "content": [part], **more})
        self.sees(name)
        return name

    def exchange(self, choice: int) -> None:
        self.turn("user", "q", loses=choice % 3 == 0)
        self.turn("assistant", "a", loses=choice % 4 == 0)

    def tool(self, choice: int) -> None:
        self.turn("user", "q")
        of = self.turn("assistant", "c", {"type": "toolCall", "name": "read", "arguments": {}})
        self.turn("toolResult", "r", toolCallId=of, loses=choice % 3 == 0)
        self.turn("assistant", "a")

    def note(self, choice: int) -> None:
        self.write(("label", "custom", "model_change", "session_info")[choice % 4], self.name("n"))

    def fail(self, _: int) -> None:
        name = self.name("p")
        self.write("message", name, message={"role": "assistant", "content": [], "stopReason": "error"})
        self.counts[FAILED] += 1

    def back(self, choice: int) -> None:
        """The user goes back to before a request, with or without a summary of what is left."""
        summary = next((place for place, name in enumerate(self.seen) if name[0] == "s"), -1)
        places = [place for place in self.requests() if place > summary + 1]
        if not places:
            return
        self.take_back(places[choice % len(places)])
        self.tip, self.is_last = self.seen[-1], False
        if choice % 2:
            name = self.name("t")
            self.write("branch_summary", name, summary=name)
            self.sees(name)

    def compaction(self, choice: int) -> None:
        if not self.seen or (self.seen[0][0] == "s" and len(self.seen) == 1):
            return
        starts = self.requests()
        kept = self.seen[starts[choice // 2 % len(starts)] :] if starts and choice % 2 else []
        name = self.name("s")
        self.tip = self.seen[-1]
        first = {"firstKeptEntryId": kept[0] if kept else None}
        self.write("compaction", name, loses=False, summary=name, **first)
        self.compact(name, kept)

    def again(self, choice: int) -> None:
        line = self.lines[choice % len(self.lines)]
        if line["type"] in ("message", "branch_summary", "compaction"):
            self.lines.append({**line})
            self.counts[TWICE] += 1


class Codex(Agent):
    steps = ("exchange", "tool", "note", "other", "back", "compaction", "again")

    def __init__(self) -> None:
        super().__init__()
        self.lines = [{"type": "session_meta", "payload": {"id": "s", "instructions": "S0"}}]
        self.seen = ["S0"]
        self.kept: list[str] = []

    def item(self, name: str, /, **payload: Any) -> None:
        time = f"2026-05-01T10:00:00.{len(self.lines):03d}Z"
        self.lines.append({"timestamp": time, "type": "response_item", "payload": payload})
        self.sees(name)

    def said(self, role: str, kind: str) -> None:
        self.item(name := self.name(kind), **spoken(role, name)["payload"])

    def exchange(self, _: int) -> None:
        self.said("user", "q")
        self.said("assistant", "a")

    def tool(self, _: int) -> None:
        self.said("user", "q")
        call_id = self.name("c")
        self.item(call_id, type="function_call", name="read", arguments="{}", call_id=call_id)
        output = self.name("r")
        self.item(output, type="function_call_output", call_id=call_id, output=output)
        self.said("assistant", "a")

    def note(self, choice: int) -> None:
        kind, payload = (
            ("event_msg", {"type": "user_message", "message": "q1"}),
            ("turn_context", {"model": "m"}),
            ("session_meta", {"id": "t", "instructions": "T"}),
        )[choice % 3]
        self.lines.append({"type": kind, "payload": payload})

    def other(self, _: int) -> None:
        self.lines.append({"type": "inter_agent_communication", "payload": {"content": self.name("x")}})
        self.counts["lines of the type inter_agent_communication"] += 1

    def back(self, choice: int) -> None:
        is_said = [any(other[0] in "ac" for other in self.seen[:place]) for place in range(len(self.seen))]
        places = [place for place in self.requests() if is_said[place] or not self.kept]
        if places and self.seen[1][0] != "s":
            turns = 1 + choice % len(places)
            self.lines.append({"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": turns}})
            self.leave(self.seen[places[-turns] :], BRANCH)
            self.seen = self.seen[: places[-turns]]

    def compaction(self, choice: int) -> None:
        """The history is replaced: by some of the requests, and a summary."""
        if len(self.seen) < 2:
            return
        kept = [self.seen[place] for place in self.requests()][-(choice % 4) :] if choice % 4 else []
        name = self.name("s")
        history = [spoken("user", said)["payload"] for said in (*kept, name)]
        self.lines.append({"type": "compacted", "payload": {"message": "", "replacement_history": history}})
        self.counts[TWICE] += len(kept)
        back = {turn: reason for turn, reason in self.fate.items() if reason == BRANCH}
        self.compact(name, kept)
        self.fate |= back
        self.seen, self.kept = ["S0", *kept, name], kept

    def again(self, choice: int) -> None:
        line = self.lines[-1 - choice % min(2, len(self.lines))]
        if line["type"] == "response_item" and line is self.lines[-1] and self.seen[-1] == self.turns[-1]:
            self.lines.append({**line})
            self.counts[TWICE] += 1


Script = list[tuple[int, int]]


def written(agent: Agent, script: Script) -> None:
    for step, choice in script:
        getattr(agent, agent.steps[step % len(agent.steps)])(choice)


def ordered(names: list[str]) -> list[str]:
    """The names, with neighbouring results sorted: those of one answer have no order."""
    parts = [[*part] for _, part in groupby(names, key=lambda name: name[0] == "r")]
    return [name for part in parts for name in (sorted(part) if part[0][0] == "r" else part)]


def check(agent: Agent, script: Script) -> None:
    written(agent, script)
    if not agent.turns:
        return
    record = record_of([*agent.head, *agent.lines])
    seen, counts = agent.end()
    assert ordered(conversation_in(record).split()) == ordered(seen), json.dumps(agent.lines, indent=1)
    assert Counter(record["(left out)"]) == counts, json.dumps(agent.lines, indent=1)
    for made in to_samples(record, location="p", stem="s", turns="each"):
        said = made.response.split() if isinstance(made, Sample) else []
        assert all(word[0] == "a" or word in ("read", "{}") for word in said), said


SCRIPTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 200)), min_size=1, max_size=9)
AGENTS = [ClaudeCode, Pi, Codex]
MESSAGES = st.lists(st.sampled_from(["system", "user", "assistant", "call", "tool", "empty"]), min_size=1, max_size=12)


def check_messages(kinds: list[str]) -> None:
    """OpenAI's form is read as it is."""
    messages = list[Line]()
    for number, kind in enumerate(kinds):
        role = "assistant" if kind in ("call", "empty") else kind
        calls = [{"id": f"c{number}", "function": {"name": f"t{number}", "arguments": "{}"}}]
        more = {"call": {"tool_calls": calls}, "tool": {"tool_call_id": f"c{number - 1}"}}.get(kind, {})
        messages.append({"role": role, "content": "" if kind in ("call", "empty") else f"t{number}", **more})
    counts: FieldCounts = {}
    (made,) = to_samples({"messages": messages}, location="p", stem="s", counts=counts)
    if isinstance(made, Reject) or not made.conversation:
        return
    turns = json.loads(made.conversation)["messages"]
    shown = [word for turn in turns for word in turn["content"].split()]
    calls = [call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())]
    said = [f"t{number}" for number, kind in enumerate(kinds) if kind not in ("call", "empty")]
    called = [f"t{number}" for number, kind in enumerate(kinds) if kind == "call"]
    assert shown == said[: len(shown)] and calls == called[: len(calls)], "in order, up to the last answer"
    is_whole = shown == said and calls == called
    assert is_whole or any("ignored" in uses for uses in counts.values()), "the others are counted"


@settings(max_examples=50, deadline=None)
@given(MESSAGES)
def test_messages_are_read_as_they_are_or_counted(kinds: list[str]) -> None:
    check_messages(kinds)


@settings(max_examples=200, deadline=None)
@given(SCRIPTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_each_turn_is_in_the_conversation_once_or_is_counted(agent: type[Agent], script: Script) -> None:
    check(agent(), script)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(MESSAGES)
def test_many_messages_are_read_as_they_are_or_counted(kinds: list[str]) -> None:
    check_messages(kinds)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_each_turn_of_many_sessions_is_in_the_conversation_once_or_is_counted(
    agent: type[Agent], script: Script
) -> None:
    check(agent(), script)
