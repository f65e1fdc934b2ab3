"""Small inputs for the tests of this folder."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import Problem, Record, SourceFile, resolve_files


def explicit(sample_id: str | int | None, response: str = "yes", **more: Any) -> dict[str, Any]:
    record = {"context": f"a document for {sample_id}", "instruction": "Read it.", "response": response, **more}
    return record if sample_id is None else {"id": sample_id, **record}


def jsonl(*records: Any) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def parquet(records: list[dict[str, Any]], row_group_size: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink, row_group_size=row_group_size, compression="none")
    return sink.getvalue().to_pybytes()


def packed(data: bytes, name: str) -> bytes:
    """`data` compressed as the file's name says."""
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstd(data) if name.endswith(".zst") else data


def put(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return resolve_files(str(path), path.parent)[0]


def read(path: Path, data: bytes) -> tuple[dict[int, Any], dict[int, str]]:
    """Records and problems of a file with this content, by number."""
    items = list(read_records(put(path, data)))
    numbers = [(type(item), item.number) for item in items]
    assert len(set(numbers)) == len(numbers)
    records = {item.number: item.value for item in items if isinstance(item, Record)}
    return records, {item.number: item.reason for item in items if isinstance(item, Problem)}


def file_of(folder: Path, name: str, content: bytes) -> SourceFile:
    (folder / name).write_bytes(content)
    (found,) = resolve_files(name, folder, plain_texts=True)
    return found


PATH = {"path": "a.py"}
_RESULT = [{"type": "text", "text": "x = 1"}, {"type": "text", "text": "y = 2"}]


def _claude(kind: str, content: Any, number: int, parent: int | None, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **({"id": f"m{number}"} if kind == "assistant" else {})}
    place = {"uuid": f"u{number}", "parentUuid": None if parent is None else f"u{parent}"}
    return {"type": kind, "message": message, **place, "sessionId": "s", "isSidechain": False, **more}


def _codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **payload}}


def _pi(number: int, **message: Any) -> dict[str, Any]:
    return {"type": "message", "id": f"e{number}", "parentId": f"e{number - 1}" if number else None, "message": message}


def _simple(**message: Any) -> dict[str, Any]:
    return {"type": "message", "message": message}


SESSIONS: dict[str, list[dict[str, Any]]] = {
    "claude-code": [
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        _claude("user", "Fix the test.", 0, None),
        _claude("assistant", [{"type": "text", "text": "Old."}], 1, 0),
        _claude("user", "Fix all of it.", 2, None),
        {"type": "system", "subtype": "informational", "uuid": "u3", "parentUuid": "u2", "sessionId": "s"},
        _claude("assistant", [{"type": "thinking", "thinking": "", "signature": "ab"}], 4, 3),
        _claude("assistant", [{"type": "text", "text": "Let me look."}], 5, 4),
        _claude("assistant", [{"type": "tool_use", "id": "c1", "name": "read", "input": PATH}], 6, 5),
        _claude("user", [{"type": "tool_result", "tool_use_id": "c1", "content": _RESULT}], 7, 6, toolUseResult={}),
        _claude("user", "Explore.", 8, None, isSidechain=True),
        _claude("assistant", [{"type": "text", "text": "API Error"}], 9, 7, isApiErrorMessage=True),
        _claude("assistant", [{"type": "text", "text": "Fixed."}], 10, 9),
    ],
    "codex": [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "s", "cwd": "/", "cli_version": "0.128.0"}},
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "user_message", "message": "Fix all of it."}},
        _codex("message", role="user", content=[{"type": "input_text", "text": "Fix all of it."}]),
        {"timestamp": "t", "type": "turn_context", "payload": {"model": "m"}},
        _codex("reasoning", summary=[], encrypted_content="ab"),
        _codex("message", role="assistant", content=[{"type": "output_text", "text": "Let me look."}]),
        _codex("function_call", name="read", arguments='{"path": "a.py"}', call_id="c1"),
        _codex("function_call_output", call_id="c1", output="x = 1\n\ny = 2"),
        _codex("web_search_call", status="completed"),
        _codex("message", role="assistant", content=[{"type": "output_text", "text": "Fixed."}]),
    ],
    "pi": [
        {"type": "session", "version": 3, "id": "s", "cwd": "/"},
        _pi(0, role="user", content="Fix all of it."),
        _pi(
            1,
            role="assistant",
            content=[
                {"type": "text", "text": "Let me look."},
                {"type": "toolCall", "id": "c1", "name": "read", "arguments": PATH},
            ],
        ),
        _pi(2, role="toolResult", toolCallId="c1", toolName="read", content=_RESULT, isError=False),
        _pi(3, role="assistant", content=[], stopReason="error", errorMessage="overloaded"),
        _pi(4, role="assistant", content=[{"type": "text", "text": "Fixed."}], stopReason="stop"),
    ],
    "my-agent": [
        {"type": "session", "harness": "my-agent", "id": "s"},
        _simple(role="user", content="Fix all of it."),
        _simple(
            role="assistant",
            content="Let me look.",
            toolCalls=[{"id": "c1", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}],
        ),
        _simple(role="tool", toolCallId="c1", content="x = 1\n\ny = 2"),
        _simple(role="assistant", content="Fixed."),
    ],
}
"""The lines of the same session as each agent writes it, with lines that are no turns."""
