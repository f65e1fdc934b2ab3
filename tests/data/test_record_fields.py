"""What becomes of the fields of a record: none is left out without a word."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateau_dagster.config.models import Template
from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.record_fields import FieldCounts, field_lines
from gateau_dagster.data.sample import Conversation, Reject, Sample
from gateau_dagster.data.short_chat import to_conversation
from gateau_dagster.training.encode import IGNORED, encode_conversation, encode_long
from tests.kit.tiny_models import tokenizer

TURNS = [{"role": "user", "content": "doc\n\nq"}, {"role": "assistant", "content": "a"}]
LONG = "A sentence of a document. " * 20


def long(record: dict[str, Any], *ignore: str) -> tuple[Sample | Reject, FieldCounts]:
    counts: FieldCounts = {}
    (made,) = to_samples(record, location="x:1", stem="x", ignore=ignore, counts=counts)
    return made, counts


def chat(record: dict[str, Any], *ignore: str) -> tuple[Conversation | Reject, FieldCounts]:
    counts: FieldCounts = {}
    return to_conversation(record, location="x:1", stem="x", ignore=ignore, counts=counts), counts


def with_turn(**more: Any) -> dict[str, Any]:
    return {"messages": [TURNS[0], {**TURNS[1], **more}]}


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"context": "c", "input": "d", "instruction": "q", "output": "r"}, "two contexts"),
        ({"question": "p", "query": "q", "answer": "r"}, "two instructions"),
        ({"prompt": "p", "answer": "r", "completion": "s"}, "two responses"),
        ({"system": "s", "system_prompt": "t", "messages": TURNS}, "two system texts"),
        ({"system": "s", "messages": [{"role": "system", "content": "t"}, *TURNS]}, "two system texts"),
        ({"messages": TURNS, "conversations": [{"from": "human", "value": "x"}]}, "unusable field conversations"),
        ({"system": "", "tools": "weather", "messages": TURNS}, "unusable tools"),
        ({"tools": ["weather"], "messages": TURNS}, "unusable tools"),
        ({"tools": [{"name": "weather"}], "prompt": "q", "completion": "a"}, "unusable field tools"),
        ({"images": ["cat.jpg"], "messages": TURNS}, "unusable field images"),
        ({"image": {"bytes": b"x", "path": None}, "messages": TURNS}, "unusable field image"),
        ({"chosen": "a", "rejected": "b", "messages": TURNS}, "unusable field rejected"),
        ({"history": [["q", "a"]], "instruction": "q", "output": "r"}, "unusable field history"),
        ({"reasoning": "because", "question": "q", "answer": "r"}, "unusable field reasoning"),
        (with_turn(reasoning_content="because"), "unusable field turn.reasoning_content"),
        (with_turn(content=None, tool_calls=[{"function": {"name": "weather"}}]), "incomplete trace"),
        (with_turn(tool_calls=["weather"]), "unusable tool call"),
        (with_turn(role="function_call", content="weather"), "unusable tool call"),
        (with_turn(content=[{"type": "image_url", "image_url": {"url": "u"}}]), "unusable part turn.content.image_url"),
        (with_turn(weight=0), "not to be learned"),
        (with_turn(weight=0.5), "unclear flag turn.weight"),
        (with_turn(train="false"), "unclear flag turn.train"),
        (with_turn(mask=True), "unclear flag turn.mask"),
        (with_turn(value="other"), "two contents"),
        ({"prompt": TURNS[:1], "completion": []}, "missing response"),
        ({"prompt": TURNS[:1], "chosen": TURNS[1:]}, "missing response"),
        ({"messages": TURNS, "train": False}, "not to be learned train"),
        ({"prompt": "q", "completion": "a", "label": False}, "not to be learned label"),
        ({"prompt": TURNS[:1], "completion": TURNS[1:], "label": False}, "not to be learned label"),
        ({"messages": TURNS, "kto_tag": False}, "not to be learned kto_tag"),
        ({"messages": TURNS, "loss_mask": [0, 1]}, "unclear flag loss_mask"),
        (with_turn(loss_scale=2.0), "unclear flag turn.loss_scale"),
        ({"instruction": "q", "output": "r", "paper": LONG}, "unknown field paper"),
        ({"instruction": "q", "output": "r", "metadata": {"text": LONG}}, "unknown field metadata.text"),
        ({"instruction": "q", "output": "r", "file": LONG}, "unknown field file"),
    ],
)
def test_what_cannot_be_used_rejects_its_record(record: dict[str, Any], kind: str) -> None:
    made, _ = long(record)
    assert isinstance(made, Reject), made
    assert made.reason.split(":")[0] == kind
    if "field" in kind or "part" in kind or "flag" in kind:
        name = kind.rsplit(maxsplit=1)[-1]
        made, counts = long(record, name)
        assert counts[name] == {"ignored": 1}
        assert isinstance(made, Sample) or "turn.content" in name, made


@pytest.mark.parametrize("more", [{"label": True}, {"label": 0}, {"kto_tag": True}, {"loss_mask": []}])
def test_other_labels_are_irrelevant(more: dict[str, Any]) -> None:
    assert isinstance(long({"prompt": "c\n\nq", "completion": "a", **more})[0], Sample)
    assert isinstance(long({"context": "c", "question": "q", "answer": "a", "label": False})[0], Sample)


@pytest.mark.parametrize("empty", [None, "", " ", [], {}, "[]", "{}", [None], {"a": None}, float("nan"), False])
@pytest.mark.parametrize("name", ["tools", "images", "reasoning", "rejected", "history"])
def test_empty_fields_pass(name: str, empty: Any) -> None:
    bare, _ = long({"messages": TURNS})
    made, counts = long({"messages": [TURNS[0], {**TURNS[1], name: empty}], name: empty})
    assert isinstance(made, Sample) and isinstance(bare, Sample) and made.digest == bare.digest
    assert {field.removeprefix("turn.") for field in counts} == {"messages", "role", "content"}


def test_flags_of_a_conversation_s_turns() -> None:
    flagged = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0}]}
    made, counts = chat(flagged)
    assert isinstance(made, Reject) and made.reason.startswith("not to be learned")
    assert counts["turn.weight"] == {"used": 1}
    first, second = flagged["conversations"]
    same, bare = (
        chat({"system": "s", "tools": "", "conversations": [{**first, "weight": None}, answer]})
        for answer in ({**second, "weight": 1}, {"role": "assistant", "content": "a"})
    )
    assert isinstance(same[0], Conversation) and isinstance(bare[0], Conversation)
    assert same[0].digest == bare[0].digest and "tools" not in same[1]


@pytest.mark.parametrize("name", ["images", "image", "turn.images"])
def test_placeholders_go_with_the_media_that_are_left_out(name: str) -> None:
    def record(text: str, *images: str) -> dict[str, Any]:
        pictures = {} if name.startswith("turn.") else {name: [*images]}
        asked = {"role": "user", "content": text} | ({"images": [*images]} if name.startswith("turn.") else {})
        return {"messages": [asked, {"role": "assistant", "content": "a <video>"}], **pictures}

    made, counts = chat(record("<image>\n<image>What is <audio>?", "1.jpg", "2.jpg"), name)
    assert isinstance(made, Conversation)
    assert [turn.content for turn in made.turns] == ["What is <audio>?", "a <video>"]
    assert counts["<image>"] == counts[name] == {"ignored": 1}
    assert any("<image> 1" in line for line in field_lines(counts, "short_chat"))
    made, counts = chat(record("Which tag is <image>?"), name)
    assert isinstance(made, Conversation) and made.turns[0].content == "Which tag is <image>?", "no picture, a text"
    assert "<image>" not in counts


def test_placeholders_of_a_part_that_is_left_out_go_with_it() -> None:
    parts = [{"type": "image_url", "image_url": "u"}, {"type": "text", "text": "<image>\ndoc\n\nq"}]
    made, counts = long({"messages": [{"role": "user", "content": parts}, TURNS[1]]}, "image_url")
    assert isinstance(made, Sample) and (made.context, made.instruction) == ("doc", "q")
    assert counts["<image>"] == counts["turn.content.image_url"] == {"ignored": 1}


def test_what_is_not_part_of_an_exchange_is_counted() -> None:
    turns = [("gpt", "b"), ("human", "q"), ("gpt", "a"), ("human", "thanks")]
    _, counts = chat({"conversations": [{"from": role, "value": text} for role, text in turns]})
    left_out = {name for name, uses in counts.items() if "ignored" in uses}
    assert left_out == {"turns before the first question", "last question without an answer"}


def test_lines_are_few_and_printable() -> None:
    counts: FieldCounts = {}
    for number in range(400):
        record = {"instruction": "q", "output": "r", f"\x1b[31m{number:03}": "x", "y" * 500: "z"}
        to_samples(record, location="x:1", stem="x", counts=counts)
    lines = field_lines(counts, "long_sft")
    assert len(counts) <= 301 and len(lines) == 2
    assert all(line.isprintable() and len(line) < 2000 for line in lines)


UNUSABLE = ["tools", "reasoning", "image", "history", "rejected"]
NAMES = [*UNUSABLE, "system", "notes", "score", "meta", "input", "weight", "title"]
FLAGS = {"weight": 0, "train": False, "loss": False, "loss_scale": 0.0, "masked": True, "no_loss": 1}
ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
EXPLICIT = {
    "alpaca": ("instruction", "input", "output"),
    "prompt": ("prompt", "completion"),
    "question": ("context", "question", "answer"),
    "given": ("context", "instruction", "response"),
}
PROMPT = "in the prompt of a prompt and completion"
TURN_FORMS = ("messages", "conversations", "prompt and completion", "data")
IGNORED_NAMES = st.just({*UNUSABLE, "image_url"}) | st.sets(st.sampled_from([*NAMES, "turn.reasoning", "turn.train"]))


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record of any form with whatever else data hold. No word is in it twice."""
    numbers = itertools.count()

    def text(most: int = 4) -> str:
        gap = draw(st.sampled_from([" ", "\n", "\n\n", "\r\n\r\n"]))
        return gap.join(f"w{next(numbers)}z" for _ in range(draw(st.integers(1, most))))

    def extra(*more: str) -> dict[str, Any]:
        found = {}
        for name in draw(st.lists(st.sampled_from([*NAMES, *more]), max_size=2)):
            kind = draw(st.sampled_from(["text", "nothing", "list", "object", "flag", "long"]))
            found[name] = {
                "text": text,
                "nothing": lambda: draw(st.sampled_from([None, "", "[]", float("nan"), [], False])),
                "list": lambda: [text(), {"text": text()}],
                "object": lambda: {"text": text(), "score": 1},
                "flag": lambda: draw(st.sampled_from([True, 0, 1, 0.5])),
                "long": lambda: " ".join(f"w{next(numbers)}z" for _ in range(80)),
            }[kind]()
        return found

    def content() -> Any:
        if draw(st.integers(0, 3)):
            return draw(st.sampled_from(["", "", "<image>\n"])) + text()
        media = {"type": "image_url", "image_url": {"url": text()}}
        written = {"type": "text", "text": text()}
        return draw(st.sampled_from([[written], [media, written], [{**written, **extra()}]]))

    def turn(role: str) -> dict[str, Any]:
        names = ("from", "value") if form == "conversations" else ("role", "content")
        flag = draw(st.sampled_from([{}, {}, *({name: value} for name, value in FLAGS.items()), {"train": None}]))
        more = extra() if draw(st.booleans()) else {}
        return {**more, **dict(zip(names, (role, content()), strict=True)), **flag}

    form = draw(st.sampled_from([*TURN_FORMS, *EXPLICIT]))
    more = {"system": text()} if draw(st.integers(0, 3)) == 0 else {}
    more |= extra("id") if draw(st.booleans()) else {}
    if form in EXPLICIT:
        return {**more, **{name: text() for name in EXPLICIT[form]}}
    if form == "data":
        return {**more, form: [text() for _ in range(2 * draw(st.integers(1, 2)))]}
    before = draw(
        st.sampled_from([[], ["system"], ["assistant"], ["user", "assistant"], ["system", "human", "gpt"], ["tool"]])
    )
    requests = [*before, draw(st.sampled_from(["user", "human"]))]
    answers = [draw(st.sampled_from(["assistant", "gpt"])), *draw(st.sampled_from([[], [], ["user"]]))]
    if form == "prompt and completion":
        return {**more, "prompt": [*map(turn, requests)], "completion": [*map(turn, answers)]}
    return {**more, form: [*map(turn, [*requests, *answers])]}


def said(*texts: str) -> list[dict[str, Any]]:
    """Return turns of a user and an assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def words_of(value: Any) -> list[str]:
    return re.findall(r"w\d+z", json.dumps(value, default=str))


def turns_in(record: dict[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """The role, content and further fields of each turn of a record, none for a form without turns."""
    lists = [record[name] for name in ("messages", "conversations", "prompt", "completion") if name in record]
    found = []
    for place, items in enumerate(each for each in lists if isinstance(each, list)):
        prompt = {PROMPT: True} if len(lists) > 1 and place == 0 else {}
        for item in items:
            rest = {key: value for key, value in item.items() if key not in ("role", "from", "content", "value")}
            role, content = (
                item.get(names[0], item.get(names[1])) for names in (("role", "from"), ("content", "value"))
            )
            found.append((ROLES.get(role, role), content, {**rest, **prompt}))
    return found or [(("user", "assistant")[place % 2], text, {}) for place, text in enumerate(record.get("data", []))]


def fields_in(record: dict[str, Any], ignore: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Every field of a record, of its turns and their parts, with its words; the content of turns is `turn.content`."""
    turns = turns_in(record)
    for name, value in record.items():
        if name == "meta" and name not in ignore and isinstance(value, dict):
            yield from ((f"meta.{inner}", words_of(each)) for inner, each in value.items())
        elif not turns or name not in ("messages", "conversations", "data", "prompt", "completion"):
            yield name, words_of(value)
    for _, content, rest in turns:
        yield from ((f"turn.{name}", words_of(value)) for name, value in rest.items())
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if part["type"] == "text":
                yield "turn.content", words_of(part.pop("text"))
                yield from ((f"turn.content.{name}", words_of(value)) for name, value in part.items())
            else:
                yield f"turn.content.{part['type']}", words_of(part)


def left_out_words(turns: list[tuple[str, Any, dict[str, Any]]]) -> list[str]:
    """The words of turns that are no part of an exchange of a conversation."""
    rest = turns[turns[0][0] == "system" :] if turns else []
    first = next((place for place, turn in enumerate(rest) if turn[0] != "assistant"), len(rest))
    outside = [*rest[:first], *(rest[-1:] if rest and rest[-1][0] == "user" else [])]
    return [word for turn in outside for word in words_of(turn[1])]


def account_for(record: dict[str, Any], ignore: set[str]) -> None:
    """Check that every word of a record is in its sample, or counted as not read, or in a reject; and its labels."""
    for convert in (long, chat):
        made, counts = convert(record, *ignore)
        if isinstance(made, Reject):
            assert made.reason
            continue
        texts = [turn.content for turn in made.turns] if isinstance(made, Conversation) else []
        texts += [made.context, made.instruction, made.response] if isinstance(made, Sample) else []
        tools = None
        if isinstance(made, Sample) and made.conversation:
            conversation = json.loads(made.conversation)
            assert sorted(words_of(conversation)) == sorted(words_of(texts))
            texts, tools = [turn["content"] for turn in conversation["messages"]], conversation.get("tools")
        read = words_of([texts, tools])
        assert len({*read}) == len(read) and not re.sub(r"w\d+z|<image>|\[\]", "", "".join(texts)).strip(), (
            "nothing is added"
        )
        turns = turns_in(record)
        open_end = [word for role, content, _ in turns[-1:] if role == "user" for word in words_of(content)]
        outside = left_out_words(turns) if isinstance(made, Conversation) else open_end
        assert ("ignored" in str([uses for name, uses in counts.items() if " " in name])) == bool(outside)
        for name, words in fields_in(copy.deepcopy(record), ignore):
            if words and not {*words} <= {*read, *words_of(made.sample_id), *outside}:
                assert not {*words} & {*read}, "a field is read as a whole or not at all"
                named = {name, name.rpartition(".")[2]} & ignore
                assert counts[name].keys() <= ({"ignored"} if named else {"unknown", "irrelevant"}), (name, counts)
        shown = json.dumps([[content for _, content, _ in turns]])
        assert shown.count("<image>") == "".join(texts).count("<image>") or counts.get("<image>") or outside
        check_labels(record, ignore, made)


def check_labels(record: dict[str, Any], ignore: set[str], made: Sample | Conversation) -> None:
    """Check that exactly the answers that are not flagged have labels, and their ends."""
    turns = turns_in(record)
    answers = [
        word
        for role, content, rest in turns
        if role == "assistant"
        and not any(rest.get(n) == v and not {n, f"turn.{n}"} & ignore for n, v in {**FLAGS, PROMPT: True}.items())
        for word in words_of(content)
    ]
    if not turns:
        answers = words_of([record.get(name) for name in ("output", "completion", "answer", "response")])
    for template in get_args(Template):
        if isinstance(made, Sample):
            encoded = encode_long(tokenizer(), made, template=template, max_length=100_000)
        else:
            messages = [{"role": turn.role, "content": turn.content} for turn in made.turns]
            trained = [turn.role == "assistant" and turn.trained for turn in made.turns]
            encoded = encode_conversation(tokenizer(), messages, template=template, max_length=100_000, trained=trained)
        learned = encoded.input_ids[encoded.labels != IGNORED].tolist()
        told = str(tokenizer().decode(learned))
        read = words_of([made.response] if isinstance(made, Sample) else [turn.content for turn in made.turns])
        if isinstance(made, Sample) and made.conversation and template == "chat":
            read = words_of(json.loads(made.conversation)["messages"])
        assert words_of(told) == [word for word in read if word in answers]
        assert not re.sub(r"w\d+z|<image>|</s>|<\|end\|>", "", told).strip()


@settings(max_examples=150)
@given(records(), IGNORED_NAMES)
@example({"prompt": said("w0z", "w1z", "w2z"), "completion": said("", "w3z")[1:]}, set())
def test_every_word_is_read_or_counted_or_in_a_reject_and_only_answers_are_learned(
    record: dict[str, Any], ignore: set[str]
) -> None:
    account_for(record, ignore)


@pytest.mark.long
@settings(max_examples=10_000)
@given(records(), IGNORED_NAMES)
def test_every_word_of_many_records_is_read_or_counted_or_in_a_reject(record: dict[str, Any], ignore: set[str]) -> None:
    account_for(record, ignore)
