"""The labelled set of real text: what theta_A's prompt shows of each sample holds the evidence, or does not."""

import copy
import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import real_text
from real_text_kinds import ALL_KINDS, FAR_KINDS, KINDS, LENGTH_KINDS, NEEDS, first_sentence, reworded
from real_text_passages import FOLDS, Passages, Question, Room, normalised, read_questions

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt
from tests.benchmarks.questions import COUNT, answer, write_questions
from tests.kit import tiny_models

ROOM = {"tokens": 2600, "window": 1000}
REAL = os.environ.get("NQ", "")
"""The file of Natural Questions, as for `make benchmark-real`."""
BOTH = {"far_and_near", "far_summary", "near_repeated_far", *(kind for kind in LENGTH_KINDS if "mixed" in kind)}
NOWHERE = {"absent", "closed_book", "chat", "noise", *(kind for kind in LENGTH_KINDS if "nowhere" in kind)}
ALL_FAR = {*FAR_KINDS, *(kind for kind in LENGTH_KINDS if kind.startswith("far"))}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> list[Question]:
    return read_questions(write_questions(tmp_path_factory.mktemp("nq") / "nq.jsonl"))


def made(questions: list[Question], tokenizer: Any, **options: Any) -> list[dict[str, Any]]:
    room = Room(tokenizer=tokenizer, tokens=options.pop("tokens"), window=options.pop("window"))
    return real_text.make_samples(questions, room, **{"fold": "choose", "per_kind": 2, "seed": 3, **options})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The tiny one, to which every other made answer is one token."""
    found = copy.deepcopy(tiny_models.tokenizer())
    found.add_tokens([answer(number) for number in range(1, COUNT, 2)])
    return found


@pytest.fixture(scope="module")
def records(questions: list[Question], tokenizer: Any) -> list[dict[str, Any]]:
    return made(questions, tokenizer, **ROOM)


def check_places(records: list[dict[str, Any]], tokenizer: Any) -> None:
    """Against the product's prompt within the window, as theta_A reads it: what it shows of the context, as text."""
    for record in records:
        (sample,) = to_samples(record, location="", stem="")
        assert isinstance(sample, Sample) and sample.sample_id == record["sample_id"]
        shown = build_prompt(tokenizer, sample, max_length=record["window"]).context
        whole = tuple(tokenizer(record["context"], add_special_tokens=False)["input_ids"])
        assert len(whole) == record["context_tokens"] and whole[len(whole) - len(shown) :] == shown
        visible = tokenizer.decode(shown, clean_up_tokenization_spaces=False).lstrip("\ufffd")
        assert record["context"].endswith(visible)
        first = len(record["context"]) - len(visible)
        places = [
            "far" if end <= first + 1 else "near" if begin >= first - 1 else "?" for begin, end in record["evidence"]
        ]
        assert places == record["places"], record["sample_id"]
        kind = record["source"]
        expected = {"far", "near"} if kind in BOTH else {"far"} if kind in ALL_FAR else {"near"}
        assert set(places) == (set() if kind in NOWHERE else expected)
        assert record["needs_far"] == (kind in FAR_KINDS or kind.startswith(("far", "mixed")))


def check_answers(records: list[dict[str, Any]], questions: list[Question]) -> None:
    """Search every context for every accepted answer, word by word."""
    by_text = {each.text: each for each in questions}
    for record in records:
        for begin, end in record["answers"]:
            assert record["context"][begin:end] in record["response"]
            assert any(a <= begin and end <= b for a, b in record["evidence"])
        rest = list(record["context"])
        for begin, end in record["evidence"]:
            rest[begin:end] = "." * (end - begin)
        outside = normalised("".join(rest))
        for asked in record["questions"]:
            aliases = [normalised(each) for each in by_text[asked].answers]
            assert not any(alias in outside for alias in aliases if len(alias) > 3), record["sample_id"]
            inside = [alias for alias in aliases if alias in normalised(record["context"])]
            assert bool(inside) != (record["source"] in NOWHERE)


def test_evidence_is_where_the_label_says(records: list[dict[str, Any]], tokenizer: Any) -> None:
    check_places(records, tokenizer)
    assert Counter(each["source"] for each in records) == dict.fromkeys(KINDS, 2)


def test_answers_stand_in_the_evidence_only(records: list[dict[str, Any]], questions: list[Question]) -> None:
    check_answers(records, questions)


def test_a_context_is_asked_for_more(records: list[dict[str, Any]], questions: list[Question], tokenizer: Any) -> None:
    asked = made(questions, tokenizer, **ROOM, follow_ups=3)
    assert [each for each in asked if "follows" not in each] == records, "the first samples are as without"
    followed = [each for each in asked if "follows" in each]
    check_places(followed, tokenizer)
    check_answers(followed, questions)
    first = {each["sample_id"]: each for each in records}
    for each in followed:
        one = first[each["follows"]]
        assert (each["context"], each["page"]) == (one["context"], one["page"])
        assert not {*each["questions"]} & {*one["questions"]} or each["source"] in NEEDS["none"]
        shown = {each["response"][begin:end] for begin, end in each["gold"]}
        assert not each["evidence"] or shown == {each["context"][slice(*span)] for span in each["answers"]}
    of_passages = [each for each in followed if each["source"] not in NEEDS["none"]]
    texts = [each["instruction"] for each in of_passages]
    assert {each["source"] for each in of_passages} == {"far_one", "near"} and len({*texts}) == len(texts)
    titles = {each.text: each.title for each in questions}
    contexts: dict[str, set[str]] = {}
    for each in asked:
        for text in each["questions"][: 1 if each["source"] == "noise" else None]:  # the second one is not asked
            contexts.setdefault(titles[text], set()).add(each.get("follows", each["sample_id"]))
    of_firsts = {titles[text] for each in records for text in each["questions"]}
    follow_up_titles = {titles[text] for each in followed for text in each["questions"][:1]}
    assert not follow_up_titles & of_firsts and len(follow_up_titles) > 20
    assert {title for title, of in contexts.items() if len(of) > 1} <= of_firsts
    for key, count in Counter(each["follows"] for each in of_passages).items():
        assert count <= 3, key
    assert {each["source"] for each in followed} >= {*NEEDS["none"]}


@pytest.fixture(scope="module")
def length_records(questions: list[Question], tokenizer: Any) -> list[dict[str, Any]]:
    return made(questions, tokenizer, **ROOM, per_kind=1, kinds=LENGTH_KINDS)


def test_several_answers_are_where_the_label_says(
    length_records: list[dict[str, Any]], tokenizer: Any, questions: list[Question]
) -> None:
    assert [each["source"] for each in length_records] == list(LENGTH_KINDS) and len(LENGTH_KINDS) == 30
    assert not KINDS.keys() & LENGTH_KINDS.keys() and ALL_KINDS.keys() == KINDS.keys() | LENGTH_KINDS.keys()
    check_places(length_records, tokenizer)
    check_answers(length_records, questions)


def test_a_response_gives_each_answer_in_turn_bare_or_in_prose(
    length_records: list[dict[str, Any]], questions: list[Question]
) -> None:
    by_text = {each.text: each for each in questions}
    for record in length_records:
        place, count, form = record["source"].split("_")
        answers = [by_text[asked].answer for asked in record["questions"]]
        assert len(answers) == len(set(answers)) == int(count)
        assert record["places"].count("far") == {"far": int(count), "mixed": int(count) // 2}.get(place, 0)
        starts = [record["response"].index(each) for each in answers]
        asked = [record["instruction"].index(by_text[each].asked) for each in record["questions"]]
        assert starts == sorted(starts) and asked == sorted(asked)
        assert (record["response"] == "; ".join(answers)) == (form == "bare")
        assert not any(each in record["instruction"] for each in answers)
        spans = zip(record["places"], record["evidence"], strict=True)
        far = [record["context"][begin:end] for at, (begin, end) in spans if at == "far"]
        about = [each for each in answers if not record["needs_far"] or any(each in text for text in far)]
        assert [record["response"][begin:end] for begin, end in record["gold"]] == about


def test_gold_is_the_answers_that_the_kind_is_about(records: list[dict[str, Any]], questions: list[Question]) -> None:
    by_text = {each.text: each for each in questions}
    for record in records:
        gold = [record["response"][begin:end] for begin, end in record["gold"]]
        asked, kind = [by_text[each] for each in record["questions"]], record["source"]
        if kind in {"absent", "chat", "noise", "continuation"}:
            assert not gold
        elif kind.endswith("summary"):
            assert len(gold) == record["places"].count("far" if kind == "far_summary" else "near")
            assert all(any(each.rstrip(".") in text.passage for text in questions) for each in gold)
        elif kind == "far_and_near":
            far = [record["context"][begin:end] for begin, end in record["evidence"]][record["places"].index("far")]
            assert gold == [each.answer for each in asked if far.startswith(f"{each.title}\n")]
        else:
            assert gold == [each.answer for each in asked]
        assert record["page"] == (asked[0].title if asked else record["page"]) and record["page"]


def test_numbers_by_need_are_shared_by_its_kinds(
    questions: list[Question], records: list[dict[str, Any]], tokenizer: Any
) -> None:
    counts = real_text.by_kind({"far": 9, "none": 2})
    assert [counts[name] for need in ("far", "none") for name in NEEDS[need]] == [2, *[1] * 7, 1, 1, 0, 0]
    assert sorted(name for names in NEEDS.values() for name in names) == sorted(KINDS)
    few = made(questions, tokenizer, **ROOM | {"per_kind": {"far_one": 2, "chat": 1}})
    rest = {each["sample_id"]: each for each in records}
    assert [each["source"] for each in few] == ["far_one", "far_one", "chat"]
    assert all(rest[each["sample_id"]] == each for each in few), "a smaller pool is a part of a larger one"


def test_contexts_have_the_wanted_tokens(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert ROOM["tokens"] - 40 <= record["context_tokens"] <= ROOM["tokens"]


def test_the_same_arguments_make_the_same_samples(
    questions: list[Question], records: list[dict[str, Any]], tokenizer: Any
) -> None:
    some = ["far_one", "far_two_hop", "noise"]
    again = made(questions, tokenizer, kinds=some, **ROOM)
    assert again == [each for each in records if each["source"] in some]
    other = made(questions, tokenizer, kinds=some, **ROOM | {"seed": 4})
    assert not {each["context"] for each in again} & {each["context"] for each in other}


def test_halves_share_no_page(questions: list[Question]) -> None:
    halves = [Passages(questions, fold) for fold in FOLDS]
    assert sum(len(half.all) for half in halves) == len(questions)
    assert not {each.title for each in halves[0].all} & {each.title for each in halves[1].all}
    assert min(len(half.all) for half in halves) > 40


def test_hard_distractors_are_the_best_by_bm25_without_the_answer(questions: list[Question]) -> None:
    passages = Passages(questions, "choose")
    question = passages.askable[0]
    scores = {each.title: passages.bm25(normalised(question.text), n) for n, each in enumerate(passages.all)}
    found = passages.hard_distractors(question, 3)
    fits = [e for e in passages.all if e.answer_type == question.answer_type and e.title != question.title]
    fits = [e for e in fits if not any(a in e.words for a in question.aliases)]
    assert [e.title for e in found] == [e.title for e in sorted(fits, key=lambda e: -scores[e.title])][:3]


def test_a_second_hop_is_asked_without_its_entity(records: list[dict[str, Any]]) -> None:
    for record in records:
        if record["source"] == "far_two_hop":
            (entity,) = set(re.findall(r"qu[a-z]+\d+", record["context"].lower())) & set(
                re.findall(r"qu[a-z]+\d+", " ".join(record["questions"]).lower())
            )
            assert entity not in record["instruction"].lower() + record["response"].lower()


def test_short_answers_are_bare(records: list[dict[str, Any]]) -> None:
    for record in records:
        if record["source"] in {"far_short", "near_short"}:
            assert record["short"] and record["response"] == record["context"][slice(*record["answers"][0])]


def test_rewording_and_first_sentence() -> None:
    assert reworded("who wrote the song") == ("I would like to know this: which person authored the piece of music?", 3)
    assert first_sentence("It is so. And more.", 20) == "It is so." and first_sentence("a b c d", 2) == "a b."


def test_both_forms_are_read(tmp_path: Path) -> None:
    gold = {"title": "T", "text": "The answer\u00a0is here.", "isgold": True}
    lines = [{"question": "q", "answers": ["here"], "ctxs": [{"title": "X", "text": "x", "isgold": False}, gold]}]
    with gzip.open(tmp_path / "public.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) for line in lines)
    (only,) = read_questions(tmp_path / "public.jsonl.gz")
    assert (only.shown, only.answer) == ("T\nThe answer is here.", "here")
    (tmp_path / "bad.jsonl").write_text('{"question": "q", "answers": ["a"]}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_questions(tmp_path / "bad.jsonl")


def test_too_little_room_is_said(questions: list[Question]) -> None:
    with pytest.raises(ValueError, match="cannot be made with 1000 tokens, a window of 1000"):
        made(questions, tiny_models.tokenizer(), tokens=1000, window=1000)


def test_the_script_writes_what_the_pipeline_reads(tmp_path: Path) -> None:
    tiny_models.tokenizer().save_pretrained(tmp_path / "model")
    nq, out = write_questions(tmp_path / "nq.jsonl"), tmp_path / "out.jsonl.gz"
    given = f"--nq {nq} --tokenizer {tmp_path / 'model'} --tokens 2600 --window 1000 --per-kind 1 --kinds near chat"
    assert real_text.main([*given.split(), "--out", str(out)]) == 0
    with gzip.open(out, "rt") as file:
        assert [json.loads(line)["source"] for line in file] == ["near", "chat"]


@pytest.mark.long
@pytest.mark.skipif(not REAL, reason="the environment variable NQ names no file of Natural Questions")
def test_real_questions() -> None:
    questions = read_questions(Path(REAL))
    tokenizer = tiny_models.tokenizer()
    for fold in FOLDS:
        records = made(questions, tokenizer, tokens=6000, window=2500, fold=fold, kinds=ALL_KINDS)
        check_places(records, tokenizer)
        check_answers(records, questions)
