from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateau_dagster.config import LongSftConfig
from gateau_dagster.config.inputs import Turns
from gateau_dagster.data.catalogue import Catalogue, scan
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.index import build_index, read_samples
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


def test_many_conflicts_are_counted(tmp_path: Path) -> None:
    found = scanned(tmp_path, a=jsonl(*(explicit("s", str(i)) for i in range(9))))
    assert reasons(found)[0][1].endswith("a.jsonl:4, a.jsonl:5 and 4 more")
    assert len(found.rejected) == 9


def test_equal_content_under_other_ids_is_no_duplicate(tmp_path: Path) -> None:
    same = {"context": "c", "instruction": "i", "response": "r"}
    found = scanned(tmp_path, a=jsonl({"id": 1, **same}, {"id": 2, **same}, same, same))
    assert len(found.accepted) == 3
    assert found.duplicates_dropped == 1


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
@example(first=[("a", "x"), ("b", "x"), ("a", "x")], second=[("a", "y"), ("b", "x"), ("b", "")])
@given(first=RECORDS, second=RECORDS)
def test_against_the_obvious_way(tmp_path: Path, first: list[Any], second: list[Any]) -> None:
    found = scanned(tmp_path, a=jsonl(*(explicit(*r) for r in first)), b=jsonl(*(explicit(*r) for r in second)))
    both = ((file, place, *record) for file, part in enumerate((first, second)) for place, record in enumerate(part, 1))
    records = [(file, place, f"{'ab'[file]}.jsonl:{place}", name, text) for file, place, name, text in both]
    places = {name: [at for *_, at, other, text in records if other == name and text] for name in "abc"}
    usable = {name for name in "abc" if len({text for *_, other, text in records if other == name and text}) == 1}
    accepted, rejected = {}, []
    for file, place, at, name, text in records:
        if not text:
            why = f" (its id {name} is that of a usable record)" if name in usable else ""
            rejected.append((at if why else name, at, f"empty response: nothing to learn and nothing to score{why}"))
        elif name in usable:
            accepted.setdefault(name, (name, "ab"[file], file, place))
        else:
            rejected.append(
                (name, at, f"duplicate id: different content under one id in {', '.join(places[name][:5])}")
            )
    columns = ("sample_id", "source", "file", "record")
    assert sorted(found.accepted.select(columns).iter_rows()) == sorted(accepted.values())
    got = found.rejected.select("sample_id", "location", pl.col("reason").str.replace(r" and \d+ more$", ""))
    assert sorted(got.iter_rows()) == sorted(rejected)
    assert (found.records, found.duplicates_dropped) == (len(records), len(records) - len(accepted) - len(rejected))
    for sample_id, digest in found.accepted.select("sample_id", "digest").iter_rows():
        (text,) = {text for *_, name, text in records if name == sample_id and text}
        (made,) = to_samples(explicit(sample_id, text), location="", stem="")
        assert isinstance(made, Sample) and made.digest == digest


def test_one_sample_in_conflict_takes_those_of_its_record_with_it(tmp_path: Path) -> None:
    def record(*answers: str) -> dict[str, Any]:
        turns = [({"role": "user", "content": "q"}, {"role": "assistant", "content": answer}) for answer in answers]
        return {"id": "a", "messages": [turn for pair in turns for turn in pair]}

    (tmp_path / "x.jsonl").write_bytes(jsonl(record("1", "2"), record("1", "3")))
    found = scan(resolve_files("x.jsonl", tmp_path), partial(to_samples, turns="each"), silent)
    assert found.accepted.is_empty() and found.rejected["sample_id"].to_list() == ["a#1", "a#1", "a#2", "a#2"]


def session(*answers: str, number: int = 0) -> bytes:
    """A session of Claude Code with an exchange for each answer. number: of the ids of lines and calls."""
    lines: list[dict[str, Any]] = []
    for answer in answers:
        for role, content in (("user", f"question {len(lines)}"), ("assistant", [{"type": "text", "text": answer}])):
            parent = f"u{number}-{len(lines) - 1}" if lines else None
            message = {"role": role, "content": content}
            keys = {"uuid": f"u{number}-{len(lines)}", "parentUuid": parent, "sessionId": f"s{number}"}
            lines.append({"type": role, "message": message, **keys})
    return jsonl(*lines)


def ids_of(folder: Path, turns: Turns = "last", **files: bytes) -> dict[str, list[str]]:
    """The ids of usable samples by file, as the index names them and as they are read again."""
    for name, data in files.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "session.jsonl").write_bytes(data)
    config = LongSftConfig(path=".", shards=1, turns=turns)
    index = build_index(config, folder)
    names = index.accepted["sample_id"].to_list()
    assert [sample.sample_id for sample in read_samples(config, index, index.accepted)] == names
    folders = [index.files[number].path.partition("/")[0] for number in index.accepted["file"]]
    return {folder: [name for name, at in zip(names, folders, strict=True) if at == folder] for folder in folders}


def test_sessions_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    """Only where they differ: a name that was unique, or that of two copies, stays."""
    assert ids_of(tmp_path, a=session("1")) == {"a": ["session"]}
    assert ids_of(tmp_path, b=session("1", number=7)) == {"a": ["session"]}, "a copy"
    two = {"a": ["a/session.jsonl"], "b": ["b/session.jsonl"]}
    assert ids_of(tmp_path, b=session("2")) == two
    assert ids_of(tmp_path, _=session("3")) == {"_": ["_/session.jsonl"], **two}, "a third renames none"
    each = ids_of(tmp_path, turns="each", c=session("4", "5"), d=session("4", "6"))
    assert each["c"] == ["c/session.jsonl#1", "c/session.jsonl#2"] and each["a"] == two["a"]
    (tmp_path / "x.jsonl").write_bytes(jsonl(explicit("session"), explicit("t"), explicit("t", "no")))
    config = LongSftConfig(path=".", shards=1)
    index = build_index(config, tmp_path)
    assert "session" in {*index.accepted["sample_id"]}, "a record's own id is the record's"
    assert index.rejected["sample_id"].to_list() == ["t", "t"], "ids of the data stay as they are"


Turned = tuple[str, bool]
CONVERSATIONS = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "tool 1", "tool 2"]), st.booleans()), min_size=1, max_size=4),
    min_size=1,
    max_size=9,
)


def messages(answers: list[Turned]) -> list[dict[str, Any]]:
    """A question for each answer; `tool` and a number for an answer after a call with an id of this number."""
    turns: list[dict[str, Any]] = []
    for answer, trained in answers:
        turns.append({"role": "user", "content": f"question {len(turns)}"})
        if answer.startswith("tool"):
            call = {"id": answer, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            turns.append({"role": "assistant", "content": "", "tool_calls": [call], "weight": int(trained)})
            turns.append({"role": "tool", "tool_call_id": answer, "content": "found"})
        turns.append({"role": "assistant", "content": answer.split()[0], "weight": int(trained)})
    return turns


def begins(one: list[Turned], other: list[Turned]) -> bool:
    """The definition: the same texts at the start, and the other learns what this one learns."""
    return len(one) <= len(other) and all(
        mine.split()[0] == its.split()[0] and (its_trained or not trained)
        for (mine, trained), (its, its_trained) in zip(one, other, strict=False)
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=CONVERSATIONS)
def test_conversations_that_begin_another_are_those_of_all_pairs(tmp_path: Path, given: list[list[Turned]]) -> None:
    data = {f"c{place}": [*answers[:-1], (answers[-1][0], True)] for place, answers in enumerate(given)}
    found = scanned(tmp_path, a=jsonl(*({"id": name, "messages": messages(each)} for name, each in data.items())))
    digests = dict(found.accepted.select("sample_id", "digest").iter_rows())
    firsts = {digest: min(name for name in data if digests[name] == digest) for digest in digests.values()}
    exchanges = {name for name, each in data.items() if len(each) == 1 and not each[0][0].startswith("tool")}

    def is_left_out(name: str) -> bool:
        mine = data[name]
        for other, its in data.items():
            same = begins(mine, its) and begins(its, mine)
            if len(mine) == len(its) and (digests[other] == digests[name] or name in exchanges):
                continue  # selection.duplicates is for these
            if begins(mine, its) and (not same or firsts[digests[other]] < firsts[digests[name]]):
                return True
        return False

    left_out = dict(found.begun.select("sample_id", "longer").iter_rows())
    assert {*left_out} == {name for name in data if is_left_out(name)}
    for name, longer in left_out.items():
        assert begins(data[name], data[longer]) and longer not in left_out
        lengths = {other: len(messages(its)) for other, its in data.items() if begins(data[name], its)}
        assert lengths[longer] == max(lengths.values())


def test_a_conversation_of_any_form_begins_another(tmp_path: Path) -> None:
    turns = messages([("a", True), ("b", True)])
    explicit_form = {"id": "parts", "instruction": "question 0", "response": "a"}
    forms = [{"id": "messages", "messages": turns[:2]}, explicit_form, {"prompt": "question 0", "completion": "a"}]
    longer = {"id": "longer", "conversations": [{"from": turn["role"], "value": turn["content"]} for turn in turns]}
    other = {"id": "other", "system": "Be brief.", "messages": turns[:2]}
    found = scanned(tmp_path, a=jsonl(*forms, longer, other))
    assert {*found.begun["sample_id"]} == {"messages", "parts", found.accepted["sample_id"][2]}
    assert {*found.begun["longer"]} == {"longer"}
    assert found.begun["location"].sort().to_list() == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]
