from pathlib import Path
from typing import Any

from gateau_dagster.cli.validate import RejectKind, ValidationSummary, validation_summary
from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index

from .inputs import explicit, jsonl


def summary(folder: Path, data: bytes, **settings: Any) -> ValidationSummary:
    (folder / "x.jsonl").write_bytes(data)
    return validation_summary(build_index(LongSftConfig(path="x.jsonl", **settings), folder))


def test_samples_of_each_turn_are_not_counted_as_records(tmp_path: Path) -> None:
    turns = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    data = jsonl({"id": "t", "messages": turns}, explicit("a"), explicit("b", ""))
    assert summary(tmp_path, data).lines()[0] == "3 records in 1 file: 2 usable, 1 rejected"
    each = summary(tmp_path, data, turns="each").lines()
    assert each[0] == "3 records in 1 file: 2 usable, which are 3 samples, 1 rejected"
    assert not any("no context" in line for line in each)


def test_many_sources_are_cut_short(tmp_path: Path) -> None:
    one = summary(tmp_path, jsonl(explicit("a"), explicit("b")))
    assert one.lines()[0] == "2 records in 1 file: 2 usable, 0 rejected" and "source" not in str(one.lines())
    many = summary(tmp_path, jsonl(*(explicit(f"s{i}", source=f"book-{i:02d}") for i in range(12))))
    *named, rest = many.lines()[1].split(", ")
    assert named == ["usable by source: book-00 1", *(f"book-{i:02d} 1" for i in range(1, 9))]
    assert rest == "book-09 1 and 2 more"


def test_kinds_with_counts_and_examples(tmp_path: Path) -> None:
    bad = [explicit(f"e{i}", "") for i in range(5)]
    data = jsonl(explicit("a"), explicit("a"), *bad) + b'{"id": \n'
    found = summary(tmp_path, data)
    assert [(kind.kind, kind.count) for kind in found.kinds] == [("empty response", 5), ("malformed JSON", 1)]
    why = "malformed JSON: Expecting value at column 8"
    assert found.kinds[1] == RejectKind(kind="malformed JSON", count=1, examples=(("x.jsonl:8", why),))
    reason = "empty response: nothing to learn and nothing to score"
    assert found.lines() == [
        "8 records in 1 file: 1 usable, 6 rejected",
        "1 repeat an earlier record (same id, same content) and count once",
        "5 x empty response",
        f"    x.jsonl:3  {reason}",
        f"    x.jsonl:4  {reason}",
        f"    x.jsonl:5  {reason}",
        "    and 2 more",
        "1 x malformed JSON",
        f"    x.jsonl:8  {why}",
        "fields used: context 7, id 7, instruction 7, response 7",
    ]
    assert found.read == found.accepted + found.rejected + found.duplicates_dropped
