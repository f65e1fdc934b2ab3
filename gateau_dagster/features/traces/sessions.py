"""Read the session file of a coding agent as one record with `messages`.

A session file is JSON Lines; its first line shows the agent. Only lines that are turns of the conversation are kept.

| source | first line has | turns |
|---|---|---|
| Claude Code | `sessionId`, or a summary of the session | lines `user` and `assistant`, joined by `parentUuid` |
| Codex CLI | `type: session_meta`, or another type with `payload` | lines `response_item`; before 2025-09 every line |
| Pi | `type: session` | lines `message`, joined by `parentId` |
| the Hub's session traces | `type: session` with `harness` | lines `message` |

The messages have Anthropic's parts (`text`, `thinking`, `tool_use`, `tool_result`), which `forms` reads. `session_tree`
leaves out the turns that the model no longer saw, such as those before a compaction. Each line that could be a turn is
in the conversation once, or is counted by the reason why it is not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.data.forms import CONTEXT_KEYS, INPUT, INSTRUCTION_KEYS, RESPONSE_KEYS, TURN_KEYS
from gateau_dagster.data.record_fields import LEFT_OUT
from gateau_dagster.features.traces.session_tree import BRANCH, WRITTEN_TWICE, Message, SessionLine, last_seen

_OF_RECORDS = {*TURN_KEYS, *CONTEXT_KEYS, *INSTRUCTION_KEYS, *RESPONSE_KEYS, INPUT, "text"}
_OF_CLAUDE = {"sessionId", "leafUuid", "snapshot"}
_OF_PI = {"cwd", "harness"}
_CODEX_TYPES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
# Types of lines that hold no text of the conversation.
_CLAUDE_NOTES = {
    *("system", "progress", "summary", "last-prompt", "permission-mode", "mode", "tag", "custom-title", "ai-title"),
    *("file-history-snapshot", "file-history-delta", "agent-name", "agent-color", "agent-setting", "pr-link"),
    *("worktree-state", "content-replacement", "bridge-session"),
}
_CODEX_NOTES = {
    *("session_meta", "turn_context", "event_msg", "world_state", "security_risk_score", "token_usage_record"),
    "inter_agent_communication_metadata",
}
_PI_NOTES = {"label", "custom", "model_change", "thinking_level_change", "session_info", "session_state", "leaf"}
_ADDED = re.compile(
    r"\s*(<(environment_context|user_instructions|turn_aborted|skill|user_shell_command|subagent_notification)>"
    r"|# AGENTS\.md instructions)"
)
_FAILED = "answers that failed"
_SYNTHETIC = "answers that the program wrote"
_META = "requests that the program wrote and answered"
_QUEUED = "queued requests that are in no turn"
_NO_CALL = "results without their call"
_EMPTY = "turns without text"
# Agents written in JavaScript count in UTF-16, so that what they shorten may end in half of a character.
_HALF = re.compile("[\ud800-\udfff]")
_HALVES = "halves of characters, replaced by U+FFFD"


@dataclass(kw_only=True)
class Session:
    """The turns of a session file, line by line. left_out: how much of it is not part of the record, by reason."""

    source: str = ""
    system: Message | None = None
    entries: list[SessionLine] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _at: dict[str, int] = field(default_factory=dict)
    _compacted: int = -1
    _previous: Mapping[str, Any] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> bool:
        """Read a line; return whether its content is kept."""
        raise NotImplementedError

    def record(self, name: str) -> dict[str, Any]:
        """Return the session as a record with this id; parts of one turn are one message."""
        seen, left = last_seen(self.entries)
        self.left_out += left + Counter(entry.reason for entry in self.entries if entry.reason is not None)
        turns = [
            *([self.system] if self.system else []),
            *(entry.message for entry in seen if entry.message is not None),
        ]
        merged, calls = list[tuple[str, list[Any]]](), set[str]()
        for message in filter(None, turns):
            content = self._with_calls(message["content"], calls)
            if content and merged and merged[-1][0] == message["role"]:
                merged[-1][1].append(content)
            elif content:
                merged.append((message["role"], [content]))
        messages = []
        for role, contents in merged:
            content = contents[0] if len(contents) == 1 else [part for each in contents for part in _parts(each)]
            messages.append(self._as_text({"role": role, "content": content}))
        return {"id": name, "source": self.source, "messages": messages, LEFT_OUT: dict(+self.left_out)}

    def _repeats(self, line: Mapping[str, Any], *, turn: bool) -> bool:
        again, self._previous = line == self._previous, line
        self.left_out[WRITTEN_TWICE] += again and turn
        return again

    def _put(self, entry: SessionLine) -> bool:
        """Keep an entry; return whether its content is kept. Of two with one id, the later content counts."""
        if entry.message is not None and not entry.message["content"]:
            entry.message, entry.reason = None, _EMPTY
        place = self._at.get(entry.key) if entry.key is not None else None
        if place is None:
            return self._append(entry)
        earlier = self.entries[place]
        if place < self._compacted and entry.parent != earlier.parent and entry.message is not None:
            entry.original = earlier  # a compaction writes turns that it keeps once more, behind its summary
            return self._append(entry)
        self.left_out[WRITTEN_TWICE] += entry.message is not None or entry.reason is not None
        if entry.message is None or earlier.meta or entry.message == earlier.message:
            return False
        earlier.message, earlier.reason = entry.message, None
        return True

    def _append(self, entry: SessionLine) -> bool:
        if entry.key is not None:
            self._at[entry.key] = len(self.entries)
        if entry.compacts:
            self._compacted = len(self.entries)
        self.entries.append(entry)
        return entry.message is not None

    def _with_calls(self, content: Any, calls: set[str]) -> Any:
        """Return a turn's content without results of calls that are in no turn before it; note its calls."""
        if not isinstance(content, list):
            return content
        kept = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "tool_use" and (call := _text(part.get("id"))) is not None:
                calls.add(call)
            elif kind == "tool_result" and (call := _text(part.get("tool_use_id"))) is not None and call not in calls:
                self.left_out[_NO_CALL] += 1
                continue
            kept.append(part)
        return kept

    def _as_text(self, message: Message) -> Message:
        """Return the message with U+FFFD for each lone surrogate in its texts, which UTF-8 cannot hold."""
        try:
            text = json.dumps(message, ensure_ascii=False)
        except RecursionError:
            return message  # `forms` rejects it
        if _HALF.search(text) is None:
            return message
        text, count = _HALF.subn("\N{REPLACEMENT CHARACTER}", text)
        self.left_out[_HALVES] += count
        return json.loads(text)


@dataclass(kw_only=True)
class _ClaudeCode(Session):
    _queued: dict[str, int] = field(default_factory=dict)
    _unsummarized: dict[bool, str | None] = field(default_factory=dict)  # the last compaction, by `aside`

    def add(self, line: Mapping[str, Any]) -> bool:
        kind, message, key = _text(line.get("type")), line.get("message"), _text(line.get("uuid"))
        entry = SessionLine(
            key=key,
            parent=_text(line.get("parentUuid")),
            begins=key is not None and "parentUuid" in line and line["parentUuid"] is None,
            time=_text(line.get("timestamp")),
            aside=bool(line.get("isSidechain")),
        )
        if kind in ("user", "assistant") and isinstance(message, Mapping):
            content = message.get("content")
            entry.message, entry.answer = {"role": kind, "content": content}, _text(message.get("id"))
            entry.meta = bool(line.get("isMeta")) and kind == "user" and not _has_results(content)
            if line.get("isApiErrorMessage"):
                entry.reason = _FAILED
            elif kind == "assistant" and message.get("model") == "<synthetic>":
                entry.reason = _SYNTHETIC
                self._leave_out_request(entry)
        elif kind == "attachment":
            self._attach(entry, line.get("attachment"))
        elif line.get("subtype") == "local_command":
            entry.message = {"role": "user", "content": line.get("content")}
        elif line.get("subtype") == "compact_boundary":
            self._compact(entry, line.get("compactMetadata"))
        elif kind == "queue-operation":
            if line.get("operation") == "enqueue" and (text := (_text(line.get("content")) or "").strip()):
                self._queued[text] = self._queued.get(text, 0) + 1
            return False
        elif kind not in _CLAUDE_NOTES:
            entry.reason = f"lines of the type {kind}"
        if entry.reason is not None:
            entry.message = None
        if line.get("isCompactSummary") and entry.message is not None:
            self._summarize(entry)
        if entry.message is not None and entry.message["role"] == "user" and not entry.aside:
            self._dequeue(entry.message["content"])
        return self._put(entry)

    def record(self, name: str) -> dict[str, Any]:
        self.left_out[_QUEUED] += sum(self._queued.values())
        return super().record(name)

    def _attach(self, entry: SessionLine, attachment: Any) -> None:
        """Read what the program adds to a request. A request that waits while the agent works is a turn."""
        kind = attachment.get("type") if isinstance(attachment, Mapping) else None
        if isinstance(attachment, Mapping) and kind == "queued_command" and attachment.get("prompt"):
            entry.message = {"role": "user", "content": attachment["prompt"]}
        else:
            entry.reason = f"attachments of the type {kind}"

    def _compact(self, entry: SessionLine, metadata: Any) -> None:
        """Read the line of a compaction: what precedes it is no longer seen, except the turns that it names."""
        entry.compacts, entry.begins, entry.parent = True, True, None
        if entry.key is None or entry.key not in self._at:
            self._unsummarized[entry.aside] = entry.key
        given = metadata if isinstance(metadata, Mapping) else {}
        messages, segment = (
            part if isinstance(part := given.get(key), Mapping) else {}
            for key in ("preservedMessages", "preservedSegment")
        )
        entry.kept = tuple(key for key in _list(messages.get("uuids")) if isinstance(key, str))
        entry.head, entry.tail = _text(segment.get("headUuid")), _text(segment.get("tailUuid"))
        entry.anchor = _text(messages.get("anchorUuid")) or _text(segment.get("anchorUuid"))

    def _summarize(self, entry: SessionLine) -> None:
        """Put a summary behind its compaction; without a line of its compaction, it is one itself."""
        if entry.key is not None and entry.key in self._at:
            return
        entry.summary = entry.aside in self._unsummarized
        entry.parent = self._unsummarized.pop(entry.aside, None)
        entry.compacts = entry.begins = not entry.summary

    def _leave_out_request(self, answer: SessionLine) -> None:
        """Leave out the request that the program wrote for an answer that it wrote itself."""
        place = self._at.get(answer.parent) if answer.parent is not None else None
        request = self.entries[place] if place is not None else None
        if request is not None and request.meta and request.message is not None:
            request.message, request.reason = None, _META

    def _dequeue(self, content: Any) -> None:
        """Note that a turn holds queued requests: one, or several of them from the first on."""
        if not self._queued:
            return
        for part in _parts(content):
            text = (_text(part.get("text")) if isinstance(part, Mapping) else None) or ""
            self._queued.pop(text.strip(), None)
            while self._queued and (first := next(iter(self._queued))) in text:
                del self._queued[first]


@dataclass(kw_only=True)
class _Codex(Session):
    def add(self, line: Mapping[str, Any]) -> bool:
        # Before 2025-09 an item was a separate line, and the header had no type.
        bare = "payload" not in line
        kind = ("response_item" if "type" in line else "session_meta") if bare else _text(line.get("type"))
        payload = line if bare else line.get("payload")
        if not isinstance(payload, Mapping):
            return False
        is_event = kind == "event_msg" and "timestamp" not in line  # the same may happen twice
        if not is_event and self._repeats(line, turn=kind not in _CODEX_NOTES):
            return False
        if kind == "session_meta":
            return self._begin(payload)
        if kind == "compacted":
            return self._compact(payload)
        if kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))
        if kind == "response_item":
            return self._item(payload, _text(line.get("timestamp")))
        if kind not in _CODEX_NOTES:
            self.left_out[f"lines of the type {kind}"] += 1
        return False

    def _begin(self, header: Mapping[str, Any]) -> bool:
        """Read the instructions of the file's first header; a fork has its origin's header, too."""
        base = header.get("base_instructions")
        text = base.get("text") if isinstance(base, Mapping) else header.get("instructions")
        if self.system is not None or self.entries or not isinstance(text, str):
            return False
        self.system = {"role": "system", "content": text}
        return True

    def _compact(self, payload: Mapping[str, Any]) -> bool:
        """Read a compaction: its history replaces what precedes it, and repeats some of it."""
        history = payload.get("replacement_history")
        if not isinstance(history, list):
            return self._put(SessionLine(compacts=True, message={"role": "user", "content": payload.get("message")}))
        earlier = {_digest(entry.message): entry for entry in self.entries[max(0, self._compacted) :] if entry.message}
        self._put(SessionLine(compacts=True))
        start = len(self.entries)
        for item in history:
            if isinstance(item, Mapping) and self._item(item, None):
                self.entries[-1].original = earlier.pop(_digest(self.entries[-1].message), None)
        return start < len(self.entries)

    def _item(self, item: Mapping[str, Any], time: str | None) -> bool:
        message = self._message(item)
        return message is not None and self._put(SessionLine(message=message, time=time, answer=_text(item.get("id"))))

    def _roll_back(self, turns: Any) -> None:
        """Leave out the last `turns` requests of the user with what follows them."""
        places = range(max(0, self._compacted), len(self.entries))
        asked = [place for place in places if _is_request(self.entries[place].message)]
        if isinstance(turns, int) and turns > 0 and asked:
            for entry in self.entries[asked[-min(turns, len(asked))] :]:
                if entry.message is not None:
                    entry.message, entry.reason = None, BRANCH

    def _message(self, item: Mapping[str, Any]) -> Message | None:
        """Return the message of an item of OpenAI's Responses API; None for one without text."""
        kind, call = item.get("type"), item.get("call_id")
        if kind == "message":
            return {"role": item.get("role"), "content": item.get("content")}
        if kind == "reasoning":
            held = [*_list(item.get("summary")), *_list(item.get("content"))]
            text = "\n\n".join(text for part in held if isinstance(part, Mapping) and (text := _text(part.get("text"))))
            return _answer({"type": "thinking", "thinking": text}) if text else None
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            given = item.get("arguments" if kind == "function_call" else "action")
            if kind == "custom_tool_call":
                given = {"input": item.get("input")}
            return _answer({"type": "tool_use", "id": call, "name": item.get("name") or "local_shell", "input": given})
        if kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
            output = item.get("output")
            return _result(call, output.get("content") if isinstance(output, Mapping) else output)
        if isinstance(kind, str) and kind != "ghost_snapshot":
            self.left_out[f"items of the type {kind}"] += 1
        return None


@dataclass(kw_only=True)
class _Pi(Session):
    _count: int = 0

    def add(self, line: Mapping[str, Any]) -> bool:
        number, self._count = self._count, self._count + 1
        kind = _text(line.get("type"))
        if kind == "session":
            self.source = _text(line.get("harness")) or "pi"
            return False
        if "id" not in line and self._repeats(line, turn=kind not in _PI_NOTES):
            return False
        entry = SessionLine(
            key=_text(line.get("id")) or f"line {number}",  # the first format counts lines instead of naming them
            parent=_text(line.get("parentId")),
            begins="parentId" in line and line["parentId"] is None,
            time=_text(line.get("timestamp")),
        )
        if kind == "message" and isinstance(line.get("message"), Mapping):
            self._read(entry, line["message"])
        elif kind == "custom_message":
            entry.message = {"role": "user", "content": line.get("content")}
        elif kind in ("compaction", "branch_summary"):
            entry.message = {"role": "user", "content": line.get("summary")}
            if kind == "compaction":
                first = line.get("firstKeptEntryIndex")
                entry.compacts, entry.tail = True, entry.parent
                entry.head = f"line {first}" if isinstance(first, int) else _text(line.get("firstKeptEntryId"))
        elif kind not in _PI_NOTES:
            entry.reason = f"lines of the type {kind}"
        return self._put(entry)

    def _read(self, entry: SessionLine, message: Mapping[str, Any]) -> None:
        if message.get("stopReason") in ("error", "aborted"):
            entry.reason = _FAILED
        elif message.get("model") == "<synthetic>":
            entry.reason = _SYNTHETIC
        elif message.get("excludeFromContext"):
            entry.reason = "commands that the model did not see"
        else:
            entry.message = self._message(message)

    def _message(self, message: Mapping[str, Any]) -> Message:
        role, content = message.get("role"), message.get("content")
        if role in ("toolResult", "tool"):
            return _result(message.get("toolCallId"), content)
        if role == "bashExecution":
            return {"role": "user", "content": f"Ran {message.get('command')}\n\n{message.get('output')}"}
        if role in ("branchSummary", "compactionSummary"):
            return {"role": "user", "content": message.get("summary")}
        if role != "assistant":
            return {"role": "user" if role in ("custom", "hookMessage") else role, "content": content}
        thoughts = message.get("reasoningContent")
        parts: list[Any] = [{"type": "thinking", "thinking": thoughts}] if thoughts else []
        for part in _parts(content):
            is_call = isinstance(part, Mapping) and part.get("type") == "toolCall"
            parts.append(_call(part, part.get("arguments")) if is_call else part)
        for call in _list(message.get("toolCalls")):
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                parts.append(_call({**call, **function}, function.get("arguments")))
        return {"role": "assistant", "content": parts}


def session_of(first: Any) -> Session | None:
    """Return an empty session of the agent that writes such a first line; None if the file is no session."""
    # Claude Code's progress has an object as its `data`; a record has a list.
    if not isinstance(first, Mapping) or any(
        key != "data" or not isinstance(first[key], Mapping) for key in _OF_RECORDS & first.keys()
    ):
        return None
    if first.keys() >= {"id", "timestamp", "instructions"}:
        return _Codex(source="codex")
    kind = first.get("type")
    if not isinstance(kind, str):
        return None
    if kind == "session" and _OF_PI & first.keys():
        return _Pi()
    if kind in _CODEX_TYPES and isinstance(first.get("payload"), Mapping):
        return _Codex(source="codex")
    return _ClaudeCode(source="claude-code") if _OF_CLAUDE & first.keys() else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _has_results(content: Any) -> bool:
    return any(isinstance(part, Mapping) and part.get("type") == "tool_result" for part in _list(content))


def _digest(message: Message | None) -> str:
    try:
        return json.dumps(message, sort_keys=True)
    except RecursionError:
        return ""  # `forms` rejects it


def _is_request(message: Message | None) -> bool:
    """Return whether a turn is the user's own, not a tool's result nor what Codex adds in the user's name."""
    if message is None or message["role"] != "user" or _has_results(message["content"]):
        return False
    parts = [part for part in _parts(message["content"]) if isinstance(part, Mapping)]
    return not _ADDED.match(next((text for part in parts if (text := _text(part.get("text")))), ""))


def _answer(part: Message) -> Message:
    return {"role": "assistant", "content": [part]}


def _call(part: Mapping[str, Any], arguments: Any) -> Message:
    return {"type": "tool_use", "id": part.get("id"), "name": part.get("name"), "input": arguments}


def _result(call: Any, content: Any) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": content}]}
