"""Long samples, and turns of conversations, from records of every form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Reject, Sample, text_digest

from .inputs import PATH

TURNS = [{"role": "user", "content": "c\n\nd\n\nq"}, {"role": "assistant", "content": "r"}]
EXPLICIT = {"context": "c", "instruction": "q", "response": "r"}
EXCHANGE = [("user", "q"), ("assistant", "a")]
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
STEPS = [
    {"role": "user", "content": "Fix all of it."},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "x = 1\n\ny = 2", "tool_call_id": "c1", "name": "read"},
    {"role": "assistant", "content": "Fixed."},
]
CONTEXT = 'Assistant:\nLet me look.\nread {"path": "a.py"}\n\nTool read:\nx = 1\n\ny = 2'
USE = {"type": "tool_use", "id": "c1", "name": "read", "input": PATH}
NAMELESS = [{key: text for key, text in step.items() if key not in ("tool_call_id", "name")} for step in STEPS]
NAMELESS[1] = {**STEPS[1], "tool_calls": [{key: value for key, value in CALL.items() if key != "id"}]}
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())


def convert(record: Any) -> Sample | Reject:
    (made,) = to_samples(record, location="x.jsonl:7", stem="x")
    return made


def sample(record: Any) -> Sample:
    made = convert(record)
    assert isinstance(made, Sample), made
    return made


def reason(record: Any) -> str:
    made = convert(record)
    assert isinstance(made, Reject), made
    return made.reason


def messages(*turns: tuple[Any, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def steps_with(arguments: Any) -> dict[str, Any]:
    """Return a trace whose call has these arguments."""
    call = {**CALL, "function": {"name": "read", "arguments": arguments}}
    return steps_calling(**call)


def steps_calling(**call: Any) -> dict[str, Any]:
    return {"messages": [STEPS[0], {**STEPS[1], "tool_calls": [call]}, *STEPS[2:]]}


def samples(record: Any, **options: Any) -> list[Sample]:
    made = [*to_samples(record, location="x.jsonl:7", stem="x", **options)]
    assert all(isinstance(each, Sample) for each in made), made
    return [each for each in made if isinstance(each, Sample)]


def test_without_a_feature_for_conversations_only_exchanges_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = [("user", "Who?"), ("assistant", "He.")]
    assert sample(messages(*exchange, *exchange)).border == "conversation"
    monkeypatch.setattr("gateau_dagster.data.forms._read_conversation", lambda: None)
    assert reason(messages(*exchange, *exchange)).startswith("several turns: ")
    assert sample(messages(*exchange)).response == "He."


@given(context=TEXT, instruction=TEXT, response=TEXT)
def test_explicit_round_trip(context: str, instruction: str, response: str) -> None:
    made = sample({"context": context, "instruction": instruction, "response": response})
    assert (made.context, made.instruction, made.response) == (context, instruction, response)
    assert made.sample_id == text_digest([context, instruction, response])[:32]


@given(context=TEXT, instruction=TEXT.filter(lambda text: "\n" not in text), response=TEXT)
def test_user_turn_round_trip(context: str, instruction: str, response: str) -> None:
    made = sample(messages(("user", f"{context}\n\n{instruction}"), ("assistant", response)))
    assert (made.context, made.instruction, made.response) == (context, instruction, response)


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (EXPLICIT, ("c", "q", "r")),
        ({"context": "c", "response": "r"}, ("c", "", "r")),
        ({"context": "c", "response": "r", "question": " "}, ("c", "", "r")),
        ({"context": "c", "response": "r", "pages": 3, "score": 1}, ("c", "", "r")),
        ({"context": "c", "response": "r", "instruction": "", "question": "q"}, ("c", "", "r")),
        ({**EXPLICIT, "input": "x"}, ("c", "q", "r")),
        ({"instruction": "q", "input": "c", "output": "r"}, ("c", "q", "r")),
        ({"instruction": "q", "input": "", "output": "r"}, ("", "q", "r")),
        ({"instruction": "q", "input": float("nan"), "output": "r"}, ("", "q", "r")),
        ({"instruction": "", "input": "c\n\nq", "output": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "completion": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "response": "r"}, ("c", "q", "r")),
        ({"prompt": "c\n\nq", "question": "q", "answer": "r"}, ("c", "q", "r")),
        ({"input": "c\n\nq", "output": "r"}, ("c", "q", "r")),
        ({"context": "c", "query": "q", "response": "r"}, ("c", "q", "r")),
        ({"document": "c", "question": "q", "answer": "r"}, ("c", "q", "r")),
        ({"context": "c", "input": "q", "output": "r"}, ("c", "q", "r")),
        ({"context": "c", "prompt": "q", "completion": "r"}, ("c", "q", "r")),
        ({"system": "s", "context": "c", "question": "q", "answer": "r"}, ("s\n\nc", "q", "r")),
        ({"messages": TURNS}, ("c\n\nd", "q", "r")),
        ({"chosen": TURNS, "messages": TURNS}, ("c\n\nd", "q", "r")),
        ({"prompt": "c\n\nd\n\nq", "messages": TURNS}, ("c\n\nd", "q", "r")),
        (messages(("user", [{"type": "text", "text": text} for text in "cq"]), ("assistant", "r")), ("c", "q", "r")),
        (messages(("developer", "s"), ("user", "q"), ("assistant", "r")), ("s", "q", "r")),
        ({"messages": [{"role": "system", "content": " "}, *TURNS]}, ("c\n\nd", "q", "r")),
        ({"system_prompt": "s", "messages": TURNS}, ("s\n\nc\n\nd", "q", "r")),
        ({"system": "s", "messages": [{"role": "system", "content": "s"}, *TURNS]}, ("s\n\nc\n\nd", "q", "r")),
        (messages(("system", "s"), ("user", "q"), ("assistant", "r")), ("s", "q", "r")),
        (messages(("system", "s"), ("user", ""), ("assistant", "r")), ("s", "", "r")),
        ({"messages": None, "data": ["q", "r"]}, ("", "q", "r")),
        ({"conversations": [{"from": "User", "value": "q"}, {"from": " gpt", "value": "r"}]}, ("", "q", "r")),
        ({"conversations": [{"role": "human", "content": "q", "from": None}, TURNS[1]]}, ("", "q", "r")),
        ({"data": ["c\n\nd\n\nq", "r"]}, ("c\n\nd", "q", "r")),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, ("c\n\nd", "q", "r")),
        (
            {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "completion": "r"},
            ("s", "q", "r"),
        ),
        ({"prompt": TURNS[:1], "completion": "r"}, ("c\n\nd", "q", "r")),
        ({"prompt": "c\n\nd\n\nq", "completion": TURNS[1:]}, ("c\n\nd", "q", "r")),
    ],
)
def test_every_form_of_one_exchange(record: dict[str, Any], parts: tuple[str, str, str]) -> None:
    counts: FieldCounts = {}
    (made,) = samples(record, counts=counts)
    assert (made.context, made.instruction, made.response, made.conversation) == (*parts, "")
    assert made.sample_id == text_digest(parts)[:32] and made.source == "x"
    assert not any("rejected" in uses for uses in counts.values())


@pytest.mark.parametrize(
    ("more", "sample_id"),
    [
        ({"id": "a", "prompt_id": "c"}, "a"),
        ({"id": None, "sample_id": "b"}, "b"),
        ({"id": " ", "prompt_id": "c"}, "c"),
        ({"id": float("nan"), "prompt_id": "c"}, "c"),
        ({"id": 17}, "17"),
        ({"id": 0}, "0"),
        ({"id": -3.0}, "-3"),
        ({"id": 2.0**53 - 1}, str(2**53 - 1)),
    ],
)
def test_ids(more: dict[str, Any], sample_id: str) -> None:
    assert sample({**EXPLICIT, **more}).sample_id == sample_id


@pytest.mark.parametrize(
    ("more", "source"),
    [({"source": "books"}, "books"), ({"dataset": "d"}, "d"), ({"source": 3}, "x"), ({"source": "\ud800"}, "x")],
)
def test_sources(more: dict[str, Any], source: str) -> None:
    assert sample({**EXPLICIT, **more}).source == source


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ([1], "wrong type: the record is a list, not an object"),
        ("text", "wrong type: the record is text"),
        (None, "wrong type: the record is null"),
        ({}, "unknown form: messages, conversations, data, or context/instruction/response wanted, but found no keys"),
        ({"text": "x", "\ud800": 1}, "unknown form: "),
        ({"context": "c", "instruction": "i"}, "missing response: the record has context and instruction only"),
        ({"context": "c", "instruction": "i", "response": None}, "missing response: the record has context and"),
        ({"context": "c", "response": " \n"}, "empty response: nothing to learn and nothing to score"),
        ({"context": " ", "response": "r"}, "empty prompt: neither context nor instruction"),
        (
            {"id": "a", "source": "s", "context": "c", "ask": "q", "\ud800": "x", "response": "r"},
            "missing instruction: found \\ud800, ask; call it instruction",
        ),
        ({"ask": "q", "instruction": None, "response": "r"}, "missing instruction: found ask; call it instruction"),
        ({"context": 3, "response": "r"}, "non-string content: context is a number"),
        ({"context": "c", "instruction": [], "response": "r"}, "non-string content: instruction is a list"),
        ({"context": "c", "response": {"text": "r"}}, "non-string content: response is an object"),
        ({"context": "\ud800", "response": "r"}, "invalid text: lone surrogate U+D800 in context"),
        ({"id": True, "response": "r"}, "invalid id: id is a boolean, not text or an integer"),
        ({"id": 1.5, "messages": TURNS}, "invalid id: id is 1.5, a number with a fraction"),
        ({"id": 2.0**53, "messages": TURNS}, f"invalid id: id is {2.0**53}, a float too large"),
        ({"id": float("inf"), "messages": TURNS}, "invalid id: id is inf, a float too large"),
        ({"id": "\udc00", "response": "r"}, "invalid text: lone surrogate U+DC00 in id"),
        (messages(("user", "q")), "missing response: no assistant turn follows the user turn"),
        (messages(("user", "q"), ("assistant", "")), "empty response: nothing to learn and nothing to score"),
        (messages(("user", "q"), ("tool", "a")), "wrong order of turns: user, tool; a user turn, then"),
        (messages(("user", "q"), ("assistant", "a"), ("assistant", "b")), "wrong order of turns: "),
        (messages(("assistant", "a"), ("user", "q")), "wrong order of turns: "),
        (messages(("system", "s")), "wrong order of turns: "),
        (messages(("user", "q"), ("assistant", "a"), ("user", "q"), ("assistant", " ")), "empty response: "),
        (messages(("user", "q"), ("assistant", "a"), ("tool", "r")), "incomplete trace: it ends with a tool turn"),
        ({"messages": "hello"}, "wrong type: messages "),
        ({"messages": []}, "no turns: messages is empty"),
        ({"messages": ["hello"]}, "wrong type: turn 1 is text, not an object with role and content"),
        ({"messages": [{"content": "x"}]}, "unknown role: turn 1 has no role"),
        (messages((3, "x")), "unknown role: turn 1 has a number"),
        (messages(("robot", "x")), "unknown role: 'robot' in turn 1"),
        (messages(("\ud800", "x")), "unknown role: '\\ud800' in turn 1"),
        (messages(("user", ["x"])), "non-string content: turn 1 (user) is a list"),
        ({"messages": [{"role": "user"}]}, "non-string content: turn 1 (user) is null"),
        ({"data": ["q", {"a": 1}]}, "unknown role: turn 2 has no role"),
        ({"data": ["q", 7]}, "wrong type: turn 2 is a number, not an object with role and content"),
        ({"data": ["q", "\udfff"]}, "invalid text: lone surrogate U+DFFF in turn 2"),
        ({"prompt": [], "completion": [], "system": "s"}, "no turns: prompt and completion are empty"),
        ({**messages(("user", [USE])), "system": "s"}, "unusable part turn.content.tool_use: turn 1 (user) has"),
        (messages(("system", [USE]), *EXCHANGE), "unusable part turn.content.tool_use: turn 1 (system) has"),
        (
            messages(("user", "q"), ("assistant", [{"type": "tool_result", "content": "o"}, {"text": "a"}])),
            "unusable part turn.content.tool_result: turn 2 (assistant) has",
        ),
        ({**messages(*EXCHANGE), "tools": "[" * 200_000}, "nested too deeply: the JSON in tools"),
        ({"data": ["q", {"from": "function_call", "value": "[" * 200_000}]}, "nested too deeply: the JSON in turn 2"),
        ({"prompt": [{"role": "robot", "content": "x"}], "completion": "a"}, "unknown role: 'robot' in turn 1"),
        (steps_calling(function={"name": 3}), "non-string content: turn 2 (assistant) is a number"),
        (steps_calling(id=3, function={"name": "f"}), "non-string content: turn 2 (assistant) is a number"),
        (steps_with("[" * 200_000), "nested too deeply: the JSON in turn 2 (assistant)"),
        (steps_with('{"x": "\\ud83d"}'), "invalid text: lone surrogate U+D83D in turn 2 (assistant)"),
    ],
)
def test_a_reject_names_what_was_found(record: Any, why: str) -> None:
    said = reason(record)
    assert said.startswith(why)
    said.encode("utf-8")  # a reason goes into a table


def test_a_reject_is_called_by_its_id_or_its_place() -> None:
    why = "missing response: the record has context only"
    assert convert({"id": "a", "context": "c"}) == Reject(sample_id="a", reason=why)
    assert convert({"context": "c"}) == Reject(sample_id="x.jsonl:7", reason=why)


KEYS = ["id", "messages", "role", "content", "data", "response", "context", "conversations", "from", "value"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    )
)
def test_no_record_crashes(record: Any) -> None:
    made = convert(record)
    assert made.sample_id


@pytest.mark.parametrize(
    ("record", "steps"),
    [
        ({"messages": STEPS}, STEPS),
        ({"messages": [{**STEPS[0], "tool_calls": None}, {**STEPS[1], "name": None}, *STEPS[2:]]}, STEPS),
        ({"prompt": STEPS[:1], "completion": STEPS[1:]}, STEPS),
        (
            messages(
                ("user", "Fix all of it."),
                ("assistant", [{"type": "text", "text": "Let me look."}, USE]),
                ("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "x = 1\n\ny = 2"}]),
                ("assistant", [{"type": "text", "text": "Fixed."}]),
            ),
            STEPS,
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Fix all of it."},
                    {"from": "gpt", "value": "Let me look."},
                    {"from": "function_call", "value": '{"name": "read", "arguments": {"path": "a.py"}}'},
                    {"from": "observation", "value": "x = 1\n\ny = 2"},
                    {"from": "gpt", "value": "Fixed."},
                ]
            },
            NAMELESS,
        ),
    ],
)
def test_every_form_of_a_trace(record: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    (made,) = samples(record)
    assert json.loads(made.conversation) == {"messages": steps}
    assert (made.context.replace("Tool:", "Tool read:"), made.instruction, made.response) == (
        CONTEXT,
        "Fix all of it.",
        "Fixed.",
    )
    assert made.border == "conversation"
    assert samples({"id": "s", **record})[0].digest == made.digest


def test_tools_are_part_of_the_context() -> None:
    tools = [{"type": "function", "function": {"name": "read"}}]
    for form in (tools, json.dumps(tools)):
        (made,) = samples({"messages": [{"role": "system", "content": "Be brief."}, *STEPS], "tools": form})
        assert made.context == f"Tools:\n{json.dumps(tools[0])}\n\nSystem:\nBe brief.\n\n{CONTEXT}"
        assert json.loads(made.conversation)["tools"] == tools


def test_a_document_in_a_late_request_is_context() -> None:
    document = "A line of a document.\n" * 200
    turns = [("user", "Hello"), ("assistant", "Hello!"), ("user", f"{document}\n\nSummarise."), ("assistant", "Short.")]
    (made,) = samples(messages(*turns, ("user", "Thanks")))
    assert made.context == f"User:\nHello\n\nAssistant:\nHello!\n\nUser:\n{document}"
    assert (made.instruction, made.response) == ("Summarise.", "Short.")
    assert [turn["content"] for turn in json.loads(made.conversation)["messages"]] == [text for _, text in turns]


def test_each_turn_is_a_sample_that_is_learned_once() -> None:
    record = {
        "id": "s",
        "messages": [*STEPS, {"role": "user", "content": "More."}, {"role": "assistant", "content": "Ok."}],
    }
    made = samples(record, turns="each")
    assert [each.sample_id for each in made] == ["s#1", "s#2", "s#3"]
    assert [each.response for each in made] == ['Let me look.\nread {"path": "a.py"}', "Fixed.", "Ok."]
    assert [each.instruction for each in made] == ["Fix all of it.", "Fix all of it.", "More."]
    assert [each.context for each in made] == ["", CONTEXT, f"User:\nFix all of it.\n\n{CONTEXT}\n\nAssistant:\nFixed."]
    whole = json.loads(made[2].conversation)["messages"]
    assert [turn.get("trained", True) for turn in whole if turn["role"] == "assistant"] == [False, False, True]
    for each in made:
        turns = json.loads(each.conversation)["messages"]
        assert [turn["content"] for turn in turns] == [turn["content"] for turn in whole[: len(turns)]]
    unlearned = {**record, "messages": [*STEPS[:3], {**STEPS[3], "train": False}, *record["messages"][4:]]}
    assert [each.sample_id for each in samples(unlearned, turns="each")] == ["s#1", "s#3"]
    cut = samples({"messages": STEPS[:3]}, turns="each")
    assert [each.response for each in cut] == [made[0].response]
    assert len({each.sample_id.partition("#")[0] for each in samples({"messages": STEPS}, turns="each")}) == 1
    silent = {**record, "messages": [*record["messages"][:5], {"role": "assistant", "content": " "}]}
    assert [each.sample_id for each in samples(silent, turns="each")] == ["s#1", "s#2"]
    (rejected,) = to_samples(silent, location="", stem="", turns="last")
    assert isinstance(rejected, Reject) and rejected.reason.startswith("empty response")
    assert samples(messages(("user", "c\n\nq"), ("assistant", "a")), turns="each")[0].context == "c"


def test_observations_are_the_context_of_the_first_request() -> None:
    counts: FieldCounts = {}
    tool = {"role": "tool", "content": "z = 3"}
    turns = [*STEPS[:3], tool, STEPS[3], {"role": "user", "content": "More."}, {"role": "assistant", "content": "Ok."}]
    (made,) = samples({"messages": turns}, turns="observations", counts=counts)
    assert (made.context, made.instruction, made.response) == ("x = 1\n\ny = 2\n\nz = 3", "Fix all of it.", "Ok.")
    assert made.conversation == "" and counts["turns that are no observations"] == {"ignored": 3}
    (made,) = to_samples(
        {"messages": [STEPS[0], STEPS[3], *STEPS[:1], STEPS[3]]}, location="x", stem="x", turns="observations"
    )
    assert isinstance(made, Reject) and made.reason.startswith("no observations")


def test_parts_that_are_no_text_are_left_out_if_that_is_set() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "ab"}
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [image, {"type": "text", "text": "x = 1\n\ny = 2"}],
    }
    record = messages(
        ("user", [{"type": "text", "text": "Fix all of it."}, image]),
        ("assistant", [thought, {"type": "text", "text": "Let me look."}, USE]),
        ("user", [result]),
        ("assistant", "Fixed."),
    )
    assert reason(record).startswith("unusable part turn.content.image: turn 1 (user) has a part that is not text")
    assert "long_sft.parts: drop" in reason(record)
    counts: FieldCounts = {}
    (made,) = samples(record, parts="drop", counts=counts)
    assert json.loads(made.conversation) == {"messages": STEPS}
    assert counts["turn.content.image"] == counts["turn.content.thinking"] == {"ignored": 1}
    part = {"type": "text", "text": "hi", "image": "abc"}
    assert "parts: drop" not in reason(messages(("user", [part]), ("assistant", "a"))), "which has no effect on it"


def made_of(record: Any, **options: Any) -> list[tuple[str, str]]:
    """Return the roles and contents of a record's conversation."""
    (made,) = samples(record, **options)
    return [(turn["role"], turn["content"]) for turn in json.loads(made.conversation)["messages"]]


THOUGHT = [{"type": "thinking", "thinking": "Hm."}]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        # A system turn after the user turn must not come before the document.
        (
            [("system", "s"), ("user", "q"), ("system", "m"), ("assistant", "a")],
            [("system", "s"), ("user", "q"), ("system", "m"), ("assistant", "a")],
        ),
        (
            [("user", "q"), ("system", "m"), ("system", "n"), ("assistant", "a")],
            [("user", "q"), ("system", "m\n\nn"), ("assistant", "a")],
        ),
        (
            [("user", "q"), ("assistant", [USE]), ("system", "m"), ("tool", "o"), ("assistant", "a")],
            [("user", "q"), ("assistant", ""), ("system", "m"), ("tool", "o"), ("assistant", "a")],
        ),
        # Turns without text are left out; then adjacent turns of one speaker become one.
        (
            [
                ("user", "q"),
                ("assistant", "b"),
                ("user", "r"),
                ("assistant", THOUGHT),
                ("user", "s"),
                ("assistant", "a"),
            ],
            [("user", "q"), ("assistant", "b"), ("user", "r\n\ns"), ("assistant", "a")],
        ),
        (
            [("user", "q"), ("assistant", "b"), ("user", " "), ("assistant", [USE]), ("tool", ""), ("assistant", "a")],
            [("user", "q"), ("assistant", "b"), ("tool", ""), ("assistant", "a")],
        ),
    ],
)
def test_turns_that_are_no_exchange_in_turn(given: list[tuple[str, Any]], read: list[tuple[str, str]]) -> None:
    counts: FieldCounts = {}
    assert made_of(messages(*given), parts="drop", counts=counts) == read
    textless = any(content in (" ", THOUGHT) for _, content in given)
    assert counts.get("turns without text") == ({"ignored": 1} if textless else None)


def test_a_result_has_the_name_of_the_last_call_with_its_id() -> None:
    second = {**CALL, "function": {"name": "write", "arguments": "{}"}}
    result = {"role": "tool", "content": "o", "tool_call_id": "c1"}
    steps = [*STEPS[:2], result, {"role": "assistant", "content": "", "tool_calls": [second]}, result, STEPS[3]]
    turns = json.loads(samples({"messages": steps})[0].conversation)["messages"]
    assert [turn["name"] for turn in turns if turn["role"] == "tool"] == ["read", "write"]


def test_tools_of_every_form_are_in_one_form_and_part_of_the_id() -> None:
    function = {"name": "read", "description": "d", "parameters": {"type": "object"}}
    wanted = {"type": "function", "function": function}
    anthropic = {"name": "read", "description": "d", "input_schema": {"type": "object"}}
    web = {"type": "web_search_20250305", "name": "web_search"}
    for form, read in [
        *((form, wanted) for form in (wanted, function, {**function, "type": "function"}, anthropic)),
        (web, web),
    ]:
        (made,) = samples({**messages(*EXCHANGE), "tools": [form]})
        assert json.loads(made.conversation)["tools"] == [read]
    ids = {sample({"messages": STEPS, "tools": [{"name": name}]}).sample_id for name in ("f", "g")}
    assert len(ids) == 2


@pytest.mark.parametrize("key", ["context", "document"])
@pytest.mark.parametrize("more", [{"messages": [*STEPS[::3], *STEPS[::3]]}, {"tools": [{"name": "f"}]}])
def test_a_document_beside_a_conversation_is_not_lost(key: str, more: dict[str, Any]) -> None:
    record = {"messages": STEPS[::3], **more, key: "long " * 160}
    assert reason(record).startswith(f"unknown field {key}: 800 characters of text are not part of the turns: put them")
    assert sample({**record, key: "Fix all"}).conversation
    assert sample({**record, key: None, "patch": "long " * 160}).conversation
