"""The labelled set of meetings: what theta_A's prompt shows of each sample holds the marked turns, or does not."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import qmsum
from qmsum import KINDS, Meeting, read_meetings
from real_text_passages import Room

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt, open_tokenizer
from tests.benchmarks.meetings import COUNT, TURNS, write_meetings
from tests.kit import tiny_models

ROOM = {"tokens": 1600, "window": 560}
REAL = os.environ.get("QMSUM", "")
"""The file of meetings, as for `make benchmark-qmsum`; MODELS names the folders of its models."""
Texts = dict[str, list[str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_meetings(tmp_path_factory.mktemp("qmsum") / "meetings.jsonl")


@pytest.fixture(scope="module")
def meetings(file: Path) -> list[Meeting]:
    return read_meetings(file)


@pytest.fixture(scope="module")
def records(meetings: list[Meeting]) -> list[dict[str, Any]]:
    return made(meetings, tiny_models.tokenizer(), per_kind=3)


def made(meetings: list[Meeting], tokenizer: Any, **options: Any) -> list[dict[str, Any]]:
    room = Room(tokenizer=tokenizer, tokens=options.pop("tokens", 1600), window=options.pop("window", 560))
    return qmsum.make_samples(meetings, room, **{"fold": "choose", "seed": 0, **options})


def shown_text(record: dict[str, Any], tokenizer: Any) -> str:
    """Return what the product's prompt within the window, as theta_A reads it, shows of the context."""
    (sample,) = to_samples(record, location="", stem="")
    assert isinstance(sample, Sample) and sample.sample_id == record["sample_id"]
    shown = build_prompt(tokenizer, sample, max_length=record["window"]).context
    whole = tuple(tokenizer(record["context"], add_special_tokens=False)["input_ids"])
    assert len(whole) == record["context_tokens"] and whole[len(whole) - len(shown) :] == shown
    visible = tokenizer.decode(shown, clean_up_tokenization_spaces=False).lstrip("\ufffd")
    assert record["context"].endswith(visible)
    return visible


def check_places(records: list[dict[str, Any]], tokenizer: Any, tokens: int) -> None:
    """Hold the labels against what theta_A is shown."""
    for record in records:
        assert tokens - 24 <= record["context_tokens"] <= tokens
        border = len(record["context"]) - len(shown_text(record, tokenizer))
        places = [
            "far" if end <= border + 1 else "near" if begin >= border - 1 else "?" for begin, end in record["evidence"]
        ]
        assert places == record["places"], record["sample_id"]
        kind = KINDS[record["source"]]
        assert set(places) == kind.places and record["needs_far"] == kind.needs_far


def marked_texts(file: Path) -> Texts:
    """Return the words of the marked turns of each question, from the file as it is."""
    found: Texts = {}
    for line in file.read_text().splitlines():
        record = json.loads(line)
        for query in record["queries"]:
            turns = sorted({turn for first, last in query["spans"] for turn in range(first, last + 1)})
            texts = (" ".join(re.sub(r"\{\w+\}", "", record["turns"][turn][1]).split()) for turn in turns)
            found[query["query"]] = [each for each in texts if each]
    return found


def test_marked_turns_stand_where_the_label_says(records: list[dict[str, Any]]) -> None:
    check_places(records, tiny_models.tokenizer(), ROOM["tokens"])
    assert Counter(each["source"] for each in records) == dict.fromkeys(KINDS, 3)


def test_evidence_is_the_text_of_the_marked_turns(records: list[dict[str, Any]], file: Path) -> None:
    marked = marked_texts(file)
    for record in records:
        texts = [record["context"][begin:end] for begin, end in record["evidence"]]
        lines = [line.partition(": ")[2] for text in texts for line in text.split("\n")]
        assert lines == (marked[record["instruction"]] if KINDS[record["source"]].places else [])


def test_a_context_is_a_stretch_of_the_meeting_that_it_names(
    records: list[dict[str, Any]], meetings: list[Meeting]
) -> None:
    by_name = {each.name: each for each in meetings}
    for record in records:
        read = by_name[record["meeting"]]
        _, stretch = record["context"].split("\n", 1)
        assert f"\n{stretch}\n" in "\n".join(["", *read.turns, ""])
        asked = {query.text for query in (*read.queries, *read.general)}
        assert (record["instruction"] in asked) != (record["source"] == "other")


def test_questions_are_asked_once_in_a_kind_and_meetings_stay_in_their_half(meetings: list[Meeting]) -> None:
    halves = [made(meetings, tiny_models.tokenizer(), per_kind=COUNT, fold=fold) for fold in ("choose", "report")]
    assert not {each["meeting"] for each in halves[0]} & {each["meeting"] for each in halves[1]}
    for half in halves:
        asked = Counter((each["source"], each["instruction"]) for each in half if each["source"] != "whole")
        assert set(asked.values()) == {1}


def test_the_same_arguments_make_the_same_samples(
    meetings: list[Meeting], records: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert made(meetings, tiny_models.tokenizer(), per_kind=3) == records
    fewer = made(meetings, tiny_models.tokenizer(), per_kind=1, kinds=["near", "whole"])
    assert fewer == [each for each in records if each["sample_id"] in {"near-choose-0-0000", "whole-choose-0-0000"}]
    other = made(meetings, tiny_models.tokenizer(), per_kind=3, seed=1)
    assert [each["context"] for each in other] != [each["context"] for each in records]


def test_both_forms_of_the_file_are_read_alike(meetings: list[Meeting], tmp_path: Path) -> None:
    assert read_meetings(write_meetings(tmp_path / "public.jsonl", form="public")) == meetings
    first = meetings[0]
    assert len(first.turns) == TURNS - 1 and not any("{" in turn for turn in first.turns)
    # Turn 7 has no words: later turns move up. Ranges that touch are one.
    assert [query.marked for query in first.queries] == [
        ((19, 20),),
        ((24, 41),),
        ((29, 29), (39, 39)),
        ((32, 34),),
        (),
    ]
    (tmp_path / "wrong.jsonl").write_text(json.dumps({"turns": [["A", "b"]]}) + "\n")
    with pytest.raises(ValueError, match="line 1"):
        read_meetings(tmp_path / "wrong.jsonl")


def test_a_room_without_samples_is_refused(meetings: list[Meeting], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="kind far"):
        made(meetings, tiny_models.tokenizer(), tokens=20_000, per_kind=1)


def test_the_command_writes_the_explicit_form(file: Path, tmp_path: Path, records: list[dict[str, Any]]) -> None:
    tiny_models.tokenizer().save_pretrained(tmp_path / "tokenizer")
    sizes = ["--tokens", "1600", "--window", "560", "--per-kind", "3"]
    arguments = ["--qmsum", str(file), "--tokenizer", str(tmp_path / "tokenizer"), *sizes]
    assert qmsum.main([*arguments, "--out", str(tmp_path / "made.jsonl")]) == 0
    assert [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()] == records
    assert qmsum.main([*arguments[:-5], "90000", *arguments[-4:], "--out", str(tmp_path / "none.jsonl")]) == 1


def test_uncut_meetings_are_written_with_every_question(file: Path, tmp_path: Path, meetings: list[Meeting]) -> None:
    out = tmp_path / "uncut.jsonl"
    assert qmsum.main(["--qmsum", str(file), "--tokenizer", "none", "--uncut", "--out", str(out)]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == sum(len(each.queries) + len(each.general) for each in meetings)
    (sample,) = to_samples(records[0], location="", stem="")
    assert isinstance(sample, Sample) and sample.context == "\n".join(meetings[0].turns)


@pytest.mark.long
@pytest.mark.skipif(not REAL, reason="QMSUM names no file of meetings")
def test_the_real_meetings_have_right_labels() -> None:
    for folder in os.environ["MODELS"].split():
        tokenizer = open_tokenizer(folder)
        for fold in ("choose", "report"):
            sizes = {"tokens": 4096, "window": 1024}
            check_places(made(read_meetings(Path(REAL)), tokenizer, per_kind=8, fold=fold, **sizes), tokenizer, 4096)
