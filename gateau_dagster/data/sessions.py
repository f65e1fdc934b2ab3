"""Read the session file of a coding agent as one record with `messages`.

A session file is JSON Lines; its first line shows the agent. Only lines that are turns of the conversation are kept.

| source | first line has | turns |
|---|---|---|
| Claude Code | `sessionId`, or a summary of the session | lines `user` and `assistant`, joined by `parentUuid` |
| Codex CLI | `type: session_meta`, or another type with `payload` | lines `response_item`; before 2025-09 every line |
| Pi | `type: session` | lines `message`, joined by `parentId` |
| the Hub's session traces | `type: session` with `harness` | lines `message` |

The messages have Anthropic's parts (`text`, `thinking`, `tool_use`, `tool_result`), which `forms` reads. Turns that the
model no longer saw are left out: those before a compaction, and those of a branch that the user took back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.data.forms import CONTEXT_KEYS, INPUT, INSTRUCTION_KEYS, RESPONSE_KEYS, TURN_KEYS
from gateau_dagster.data.record_fields import LEFT_OUT

Message = dict[str, Any]
_OF_RECORDS = {*TURN_KEYS, *CONTEXT_KEYS, *INSTRUCTION_KEYS, *RESPONSE_KEYS, INPUT, "text"}
_OF_CLAUDE = {"sessionId", "leafUuid", "snapshot"}
_OF_PI = {"cwd", "harness"}
_CODEX_TYPES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_ADDED = re.compile(
    r"\s*(<(environment_context|user_instructions|turn_aborted|skill|user_shell_command|subagent_notification)>"
    r"|# AGENTS\.md instructions)"
)
_BRANCH = "turns of an abandoned branch"
_COMPACTED = "turns before a compaction"
_FAILED = "answers that failed"
# Agents written in JavaScript count in UTF-16, so that what they shorten may end in half of a character.
_HALF = re.compile("[\ud800-\udfff]")
_HALVES = "halves of characters, replaced by U+FFFD"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A line: its place in the tree, and its message if it is a turn.

    answer: the id of the API's answer, whose parts have a line each. aside: whether the line is a subagent's.
    first_kept: the first earlier entry that the model still saw after a compaction; None for other lines.
    """

    key: str | None = None
    parent: str | None = None
    message: Message | None = None
    answer: str | None = None
    aside: bool = False
    first_kept: str | None = None


@dataclass(kw_only=True)
class Session:
    """The turns of a session file, line by line. left_out: names of content that is not part of the record."""

    source: str = ""
    entries: list[_Entry] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)

    def add(self, line: Mapping[str, Any]) -> bool:
        """Read a line; return whether its content is kept."""
        raise NotImplementedError

    def messages(self) -> list[Message]:
        """Return the turns that the model saw last, in order."""
        return [entry.message for entry in self.entries if entry.message is not None]

    def record(self, name: str) -> dict[str, Any]:
        """Return the session as a record with this id; parts of one turn are one message."""
        merged: list[Message] = []
        for message in self.messages():
            if not message["content"]:
                self.left_out.add("turns without text")
            elif merged and merged[-1]["role"] == message["role"]:
                merged[-1]["content"] = [*_parts(merged[-1]["content"]), *_parts(message["content"])]
            else:
                merged.append(message)
        merged = [self._as_text(message) for message in merged]
        return {"id": name, "source": self.source, "messages": merged, LEFT_OUT: sorted(self.left_out)}

    def _as_text(self, message: Message) -> Message:
        """Return the message with U+FFFD for each lone surrogate in its texts, which UTF-8 cannot hold."""
        try:
            text = json.dumps(message, ensure_ascii=False)
        except RecursionError:
            return message  # `forms` rejects it
        if _HALF.search(text) is None:
            return message
        self.left_out.add(_HALVES)
        return json.loads(_HALF.sub("\N{REPLACEMENT CHARACTER}", text))

    def _on_path(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Return the entries that lead to the last one, and the other parts of their answers with their results."""
        parents = {entry.key: entry.parent for entry in self.entries if entry.key is not None}
        path, at = set[str](), entries[-1].key if entries else None
        while at is not None and at not in path:
            path.add(at)
            at = parents.get(at)
        answers = {entry.answer for entry in entries if entry.key in path} - {None}
        calls = {
            _text(part.get("id"))
            for entry in entries
            if entry.key in path or entry.answer in answers
            for part in _parts_of(entry)
            if part.get("type") == "tool_use"
        }

        def is_seen(entry: _Entry) -> bool:
            results = [part for part in _parts_of(entry) if part.get("type") == "tool_result"]
            answered = bool(results) and all(_text(part.get("tool_use_id")) in calls for part in results)
            return not path or entry.key is None or entry.key in path or entry.answer in answers or answered

        seen = [entry for entry in entries if is_seen(entry)]
        if len(seen) < len(entries):
            self.left_out.add(_BRANCH)
        return seen


class _ClaudeCode(Session):
    def add(self, line: Mapping[str, Any]) -> bool:
        kind, message = line.get("type"), line.get("message")
        turn = None
        if kind in ("user", "assistant") and isinstance(message, Mapping):
            turn = {"role": kind, "content": message.get("content")}
        if turn is not None and line.get("isApiErrorMessage"):
            turn = None
            self.left_out.add(_FAILED)
        if line.get("subtype") == "compact_boundary":
            self.left_out.add(_COMPACTED)
        self.entries.append(
            _Entry(
                key=_text(line.get("uuid")),
                parent=_text(line.get("parentUuid")),
                message=turn,
                answer=_text(message.get("id")) if turn is not None and isinstance(message, Mapping) else None,
                aside=bool(line.get("isSidechain")),
            )
        )
        return turn is not None

    def messages(self) -> list[Message]:
        turns = [entry for entry in self.entries if entry.message is not None]
        own = [entry for entry in turns if not entry.aside] or turns
        if len(own) < len(turns):
            self.left_out.add("turns of subagents")
        seen = self._on_path(own)
        if _COMPACTED in self.left_out:
            self.left_out.discard(_BRANCH)
        return [entry.message for entry in seen if entry.message is not None]


class _Codex(Session):
    def add(self, line: Mapping[str, Any]) -> bool:
        # Before 2025-09 an item was a line of its own, and the header had no type.
        bare = "payload" not in line
        kind = ("response_item" if "type" in line else "session_meta") if bare else line.get("type")
        payload = line if bare else line.get("payload")
        if not isinstance(payload, Mapping):
            return False
        if kind == "session_meta" and not self.entries:
            base = payload.get("base_instructions")
            text = base.get("text") if isinstance(base, Mapping) else payload.get("instructions")
            return self._append({"role": "system", "content": text} if isinstance(text, str) else None)
        if kind == "compacted":
            self.left_out.add(_COMPACTED)
            self.entries = [entry for entry in self.entries[:1] if (entry.message or {}).get("role") == "system"]
            history = payload.get("replacement_history")
            if isinstance(history, list):
                return [self._append(self._message(item)) for item in history if isinstance(item, Mapping)] != []
            return self._append({"role": "user", "content": payload.get("message")})
        if kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))
        return kind == "response_item" and self._append(self._message(payload))

    def _roll_back(self, turns: Any) -> None:
        """Leave out the last `turns` requests of the user with what follows them."""
        asked = [place for place, entry in enumerate(self.entries) if _is_request(entry)]
        if isinstance(turns, int) and turns > 0 and asked:
            del self.entries[asked[-min(turns, len(asked))] :]
            self.left_out.add(_BRANCH)

    def _append(self, message: Message | None) -> bool:
        if message is not None:
            self.entries.append(_Entry(message=message))
        return message is not None

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
            self.left_out.add(f"items of the type {kind}")
        return None


class _Pi(Session):
    def add(self, line: Mapping[str, Any]) -> bool:
        kind, turn = line.get("type"), None
        if kind == "session":
            self.source = _text(line.get("harness")) or "pi"
            return False
        if kind == "message" and isinstance(line.get("message"), Mapping):
            turn = self._message(line["message"])
        elif kind == "custom_message":
            turn = {"role": "user", "content": line.get("content")}
        elif kind in ("compaction", "branch_summary"):
            turn = {"role": "user", "content": line.get("summary")}
        self.entries.append(
            _Entry(
                key=_text(line.get("id")),
                parent=_text(line.get("parentId")),
                message=turn,
                first_kept=_text(line.get("firstKeptEntryId")),
            )
        )
        return turn is not None

    def messages(self) -> list[Message]:
        seen = self._on_path(self.entries)
        place = max((place for place, entry in enumerate(seen) if entry.first_kept is not None), default=None)
        if place is not None:
            self.left_out.add(_COMPACTED)
            keys = [entry.key for entry in seen[:place]]
            first = keys.index(seen[place].first_kept) if seen[place].first_kept in keys else place
            seen = [seen[place], *seen[first:place], *seen[place + 1 :]]
        return [entry.message for entry in seen if entry.message is not None]

    def _message(self, message: Mapping[str, Any]) -> Message | None:
        role, content = message.get("role"), message.get("content")
        if message.get("stopReason") in ("error", "aborted"):
            self.left_out.add(_FAILED)
            return None
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
    """Return a message's content as a list of parts."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _parts_of(entry: _Entry) -> Iterator[Mapping[str, Any]]:
    content = (entry.message or {}).get("content")
    yield from (part for part in _list(content) if isinstance(part, Mapping))


def _is_request(entry: _Entry) -> bool:
    """Return whether a turn is the user's own, not a tool's result nor what Codex adds in the user's name."""
    message = entry.message or {}
    parts = [part for part in _parts(message.get("content")) if isinstance(part, Mapping)]
    start = next((text for part in parts if (text := _text(part.get("text")))), "")
    is_result = any(part.get("type") == "tool_result" for part in parts)
    return message.get("role") == "user" and not is_result and not _ADDED.match(start)


def _answer(part: Message) -> Message:
    return {"role": "assistant", "content": [part]}


def _call(part: Mapping[str, Any], arguments: Any) -> Message:
    return {"type": "tool_use", "id": part.get("id"), "name": part.get("name"), "input": arguments}


def _result(call: Any, content: Any) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": content}]}
