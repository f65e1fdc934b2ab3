from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateau_dagster.data.catalogue import Catalogue, scan
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.sample import Sample
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.progress import silent

from .inputs import explicit, jsonl

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""])), min_size=1, max_size=8)


def scanned(folder: Path, **files: bytes) -> Catalogue:
    for name, data in files.items():
        (folder / f"{name}.jsonl").write_bytes(data)
    return scan(resolve_files("*.jsonl", folder), to_samples, silent)


def reasons(found: Catalogue) -> list[tuple[str, str]]:
    return list(found.rejected.select("sample_id", "reason").iter_rows())


def test_keeps_one_of_equal_samples_over_files(tmp_path: Path) -> None:
    found = scanned(
        tmp_path, a=jsonl(explicit("s", source="first"), explicit("t")), b=jsonl(explicit("s", source="second"))
    )
    rows = list(found.accepted.select("sample_id", "source", "file", "record").iter_rows())
    assert rows == [("s", "first", 0, 1), ("t", "a", 0, 2)]
    assert (found.duplicates_dropped, reasons(found), found.records) == (1, [], 3)


def test_rejects_all_of_one_id_with_different_content(tmp_path: Path) -> None:
    found = scanned(tmp_path, a=jsonl(explicit("s"), explicit("t"), explicit("s")), b=jsonl(explicit("s", "no")))
    why = "duplicate id: different content under one id in a.jsonl:1, a.jsonl:3, b.jsonl:1"
    assert reasons(found) == [("s", why)] * 3
    assert found.accepted["sample_id"].to_list() == ["t"]
    assert found.rejected["location"].to_list() == ["a.jsonl:1", "a.jsonl:3", "b.jsonl:1"]
    assert found.duplicates_dropped == 0


def test_many_conflicts_are_counted(tmp_path: Path) -> None:
    found = scanned(tmp_path, a=jsonl(*(explicit("s", str(i)) for i in range(9))))
    assert reasons(found)[0][1].endswith("a.jsonl:4, a.jsonl:5 and 4 more")
    assert len(found.rejected) == 9


def test_equal_content_under_other_ids_is_no_duplicate(tmp_path: Path) -> None:
    same = {"context": "c", "instruction": "i", "response": "r"}
    found = scanned(tmp_path, a=jsonl({"id": 1, **same}, {"id": 2, **same}, same, same))
    assert len(found.accepted) == 3
    assert found.duplicates_dropped == 1


def test_a_reject_never_shares_the_id_of_a_usable_sample(tmp_path: Path) -> None:
    found = scanned(tmp_path, a=jsonl(explicit("s"), explicit("s", "")))
    assert found.accepted["sample_id"].to_list() == ["s"]
    why = "empty response: nothing to learn and nothing to score (its id s is that of a usable record)"
    assert reasons(found) == [("a.jsonl:2", why)]


def test_unreadable_lines_and_files_are_called_by_their_place(tmp_path: Path) -> None:
    found = scanned(tmp_path, a=b"{oops\n" + jsonl(explicit("s")), b=b"")
    assert [name for name, _ in reasons(found)] == ["a.jsonl:1", "b.jsonl"]
    assert found.records == 3


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    calls: list[tuple[float, float | None, str, str]] = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(*(explicit(f"{name}{i}") for i in range(50))))
    files = resolve_files("*.jsonl", tmp_path)
    scan(files, to_samples, lambda done, total, unit, note="": calls.append((done, total, unit, note)))
    size = sum(file.size for file in files)
    assert calls[-1] == (size, size, "bytes", "b.jsonl: 100 samples, 0 rejected")
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=RECORDS, second=RECORDS)
def test_against_the_obvious_way(tmp_path: Path, first: list[Any], second: list[Any]) -> None:
    found = scanned(tmp_path, a=jsonl(*(explicit(*r) for r in first)), b=jsonl(*(explicit(*r) for r in second)))
    contents: dict[str, set[str]] = {}
    for sample_id, response in first + second:
        if response:
            contents.setdefault(sample_id, set()).add(response)
    usable = {sample_id for sample_id, texts in contents.items() if len(texts) == 1}
    assert set(found.accepted["sample_id"]) == usable
    assert found.accepted["sample_id"].is_unique().all()
    assert not usable & set(found.rejected["sample_id"])
    assert found.records == len(first + second)
    assert found.records == len(found.accepted) + len(found.rejected) + found.duplicates_dropped
    for sample_id, digest in found.accepted.select("sample_id", "digest").iter_rows():
        (made,) = to_samples(explicit(sample_id, *contents[sample_id]), location="", stem="")
        assert isinstance(made, Sample)
        assert made.digest == digest


def test_one_sample_in_conflict_takes_those_of_its_record_with_it(tmp_path: Path) -> None:
    def record(*answers: str) -> dict[str, Any]:
        turns = [({"role": "user", "content": "q"}, {"role": "assistant", "content": answer}) for answer in answers]
        return {"id": "a", "messages": [turn for pair in turns for turn in pair]}

    (tmp_path / "x.jsonl").write_bytes(jsonl(record("1", "2"), record("1", "3")))
    found = scan(resolve_files("x.jsonl", tmp_path), partial(to_samples, turns="each"), silent)
    assert found.accepted.is_empty() and found.rejected["sample_id"].to_list() == ["a#1", "a#1", "a#2", "a#2"]
