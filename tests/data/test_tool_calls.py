"""Definitions and calls of tools: without what Arrow adds to them, and in every encoding that sets have."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateau_dagster.data.forms import to_samples
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.data.sources import Record

from .inputs import jsonl, parquet, put

ASKED, ANSWERED = {"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "Mild."}
DEFINITIONS, ARGUMENTS = "nulls in definitions of tools", "nulls in arguments of tool calls"


def tool(properties: dict[str, Any], name: str = "f", **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def record(*arguments: Any, tools: Any = None, name: str = "f") -> dict[str, Any]:
    calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": one}} for one in arguments]
    turns = [ASKED]
    for call in calls:
        turns += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "20", "tool_call_id": "c", "tool_calls": None},
        ]
    return {"id": "r", "messages": [*turns, {**ANSWERED, "tool_calls": []}], **({"tools": tools} if tools else {})}


def read(given: Any) -> tuple[list[str], list[Any], FieldCounts]:
    """The arguments of all calls as text, the definitions, and the counts of fields."""
    counts: FieldCounts = {}
    (made,) = to_samples(given, location="x.jsonl:7", stem="x", counts=counts)
    assert isinstance(made, Sample), made
    content = json.loads(made.conversation)
    calls = [call for turn in content["messages"] for call in turn.get("tool_calls", ())]
    return [call["function"]["arguments"] for call in calls], content.get("tools", []), counts


def refusal(given: Any) -> str:
    (made,) = to_samples(given, location="x.jsonl:7", stem="x")
    assert isinstance(made, Reject), made
    return made.reason


CITY, OPTIONAL = {"city": {"type": "string"}}, {"unit": {"type": ["string", "null"]}}


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"properties": {**CITY, "a": None}}, {"properties": CITY}),
        ({"properties": {**CITY, "a": {"type": None, "enum": None}}}, {"properties": CITY}),
        ({"properties": {"city": {"type": "string", "enum": None, "items": None}}}, {"properties": CITY}),
        ({"properties": {"o": {"properties": {"a": None, **CITY}}}}, {"properties": {"o": {"properties": CITY}}}),
        ({"anyOf": [{"type": "null", "items": None}, CITY]}, {"anyOf": [{"type": "null"}, CITY]}),
        ({"type": "object", "properties": {"a": None}}, {"type": "object", "properties": {}}),
        ({"type": "object", "required": None, "additionalProperties": {"type": None}}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}}),
        (
            {"properties": {"enum": None, "default": {"type": "string", "default": None}}},
            {"properties": {"default": {"type": "string"}}},
        ),
        ({"properties": [["city", CITY["city"]], ("a", None)]}, {"properties": CITY}),
        ({"properties": [{"key": "city", "value": CITY["city"]}]}, {"properties": CITY}),
        *(
            ({"properties": {"a": one}},) * 2
            for one in (
                {"type": ["string", "null"], "default": None},
                {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                {"type": "string", "nullable": True, "default": None},
                {"enum": ["a", None], "default": None},
                {"type": "null", "const": None},
                {"default": {"a": None}, "examples": [None, {"a": None}]},
            )
        ),
    ],
)
def test_nulls_in_definitions_are_left_out_where_they_mean_nothing(schema: Any, kept: Any) -> None:
    for form in (
        {"function": {"name": "f", "parameters": schema}},
        {"name": "f", "parameters": schema},
        {"name": "f", "input_schema": schema, "parameters": None, "function": None},
    ):
        _, (found,), counts = read({"messages": [ASKED, ANSWERED], "tools": [{**form, "strict": None}, {"name": None}]})
        assert found["function"] == {"name": "f", "parameters": kept}
        assert counts[DEFINITIONS] == {"ignored": 1}
    plain = {"type": "function", "function": {"name": "f", "parameters": kept}}
    _, found, counts = read({"messages": [ASKED, ANSWERED], "tools": [plain]})
    assert found == [plain] and DEFINITIONS not in counts


INNER = {"type": "object", "properties": CITY}
BARE = {"q": {"type": "str"}}


@pytest.mark.parametrize(
    ("arguments", "kept", "tools"),
    [
        ({"city": "C", "a": None}, {"city": "C"}, [tool(CITY)]),
        ({"city": "C", "a": {"b": None}}, {"city": "C"}, [tool(CITY)]),
        ({"city": "C", "unit": None, "a": None}, {"city": "C", "unit": None}, [tool({**CITY, **OPTIONAL})]),
        ({"city": None}, {}, [tool(CITY)]),
        ({"city": None}, {"city": None}, [tool(CITY, required=["city"])]),
        ({"a": None, "b": None}, {}, [tool({})]),
        ({"o": {"city": "C", "a": None}}, {"o": {"city": "C"}}, [tool({"o": INNER})]),
        ({"l": [{"city": "C", "a": None}, None]}, {"l": [{"city": "C"}, None]}, [tool({"l": {"items": INNER}})]),
        ({"o": {"city": "C", "a": None}}, {"o": {"city": "C"}}, [tool({"o": {"type": "object"}})]),
        (
            {"q": "x", "n": None},
            {"q": "x", "n": None},
            [{"name": "f", "parameters": {**BARE, "n": {"type": "int, optional"}}}],
        ),
        ({"q": "x", "a": None}, {"q": "x"}, [{"name": "f", "parameters": BARE}]),
        ({"city": "C", "a": None}, {"city": "C"}, [{"name": "f", "parameters": json.dumps({"properties": CITY})}]),
        ({"city": "C", "a": None}, {"city": "C"}, [tool(OPTIONAL, "g")]),
        ({"city": "C", "a": None}, {"city": "C"}, None),
        ({"city": "C", "a": float("nan")}, {"city": "C"}, None),
    ],
)
def test_nulls_that_a_tool_does_not_have_are_left_out(arguments: Any, kept: Any, tools: Any) -> None:
    for form in (arguments, [*arguments.items()], [{"key": key, "value": value} for key, value in arguments.items()]):
        texts, _, counts = read(record(form, {"city": "D"}, tools=tools))
        assert [json.loads(text) for text in texts] == [kept, {"city": "D"}]
        assert counts.get(ARGUMENTS) == (None if kept == arguments else {"ignored": 1})


def test_without_a_definition_a_null_stays_where_the_tool_has_had_a_value() -> None:
    texts, _, _ = read(record({"city": "C", "limit": None, "a": None}, {"city": "C", "limit": 3, "a": None}))
    assert texts == ['{"city": "C", "limit": null}', '{"city": "C", "limit": 3}']


def test_nulls_in_text_are_the_models_words() -> None:
    """They go where the definition, or else what other tools have, says that they are no argument of this tool."""
    text = '{"city":  "C", "a": null}'
    assert read(record(text))[0] == [text]
    assert read(record(text, tools=[tool({**CITY, "a": {"type": "integer"}})]))[0] == [text]
    assert read(record(text, tools=[tool(CITY)]))[0] == ['{"city": "C"}']
    both = record(text, '{"a": 3, "city": null}')
    both["messages"][3]["tool_calls"][0]["function"]["name"] = "g"
    assert read(both)[0] == ['{"city": "C"}', '{"a": 3}']


def slow_fill(value: Any, every: list[Any]) -> Any:
    """Fill an object as Arrow does: with the keys of all others, and null for those that it lacks."""
    if not isinstance(value, dict):
        return value
    keys = {key: [one[key] for one in every if key in one] for one in every for key in one}
    return {key: slow_fill(value[key], inner) if key in value else None for key, inner in keys.items()}


NAMES, LEAVES = st.sampled_from("abcd"), st.integers(0, 9)
SCHEMAS = st.dictionaries(NAMES, st.sampled_from(["integer", "object"]), max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Records with tools of unlike arguments; `a` is an object with members that the tool's definition has."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from(["f", "g", "h"]), min_size=1, max_size=3, unique=True))
        owned: dict[str, dict[str, Any]] = {
            name: draw(st.dictionaries(NAMES, st.just({"type": "integer"}), max_size=3)) for name in names
        }
        for properties in owned.values():
            inner = draw(st.dictionaries(NAMES, st.just({"type": "integer"}), min_size=1, max_size=2))
            properties["o"] = {"type": "object", "properties": inner}
        calls = []
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)):
            properties = owned[name]
            arguments: dict[str, Any] = {key: draw(LEAVES) for key in properties if key != "o" and draw(st.booleans())}
            inner = properties["o"]["properties"]
            calls.append((name, {**arguments, "o": {next(iter(inner)): draw(LEAVES)}}))
        given = record(*(arguments for _, arguments in calls), tools=[tool(owned[name], name) for name in names])
        for (name, _), turn in zip(calls, given["messages"][1::2], strict=False):
            turn["tool_calls"][0]["function"]["name"] = name
        made.append({**given, "id": str(number)})
    return made


def values(path: Path, data: bytes) -> list[Any]:
    return [item.value for item in read_records(put(path, data)) if isinstance(item, Record)]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=traces())
def test_a_way_through_arrow_changes_no_sample(tmp_path: Path, given: list[dict[str, Any]]) -> None:
    plain = [read(each)[:2] for each in given]
    frame = tmp_path / "polars.parquet"
    pl.DataFrame(given, strict=False, infer_schema_length=None).write_parquet(frame)
    filled = pa.Table.from_pylist(given).to_pylist()
    # By the twin, too, which fills the arguments of all calls of the set.
    calls = [call["function"] for each in given for turn in each["messages"] for call in turn.get("tool_calls") or ()]
    by_twin = json.loads(json.dumps(given))
    again = [call["function"] for each in by_twin for turn in each["messages"] for call in turn.get("tool_calls") or ()]
    for function in again:
        function["arguments"] = slow_fill(function["arguments"], [each["arguments"] for each in calls])
    for name, data in {
        "a.parquet": parquet(given),
        "p.parquet": frame.read_bytes(),
        "j.jsonl": jsonl(*filled),
        "t.jsonl": jsonl(*by_twin),
    }.items():
        found = [read(each)[:2] for each in values(tmp_path / name, data)]
        as_objects = [([json.loads(text) for text in texts], tools) for texts, tools in found]
        assert as_objects == [([json.loads(text) for text in texts], tools) for texts, tools in plain], name


def test_maps_of_arrow_are_objects(tmp_path: Path) -> None:
    """`map<string, string>` columns, as arguments and as whole turns."""
    text = pa.map_(pa.string(), pa.string())
    call = pa.struct({"name": pa.string(), "arguments": text})
    turn = pa.struct({"role": pa.string(), "content": pa.string(), "tool_calls": pa.list_(call)})
    rows = [
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("city", "C")]}]},
            {"role": "tool", "content": None},
            ANSWERED,
        ]
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"messages": pa.array(rows, pa.list_(turn))}), sink)
    (found,) = values(tmp_path / "a.parquet", sink.getvalue().to_pybytes())
    assert read(found)[0] == ['{"city": "C"}']
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"messages": pa.array([[[*each.items()] for each in (ASKED, ANSWERED)]], pa.list_(text))}), sink
    )
    (found,) = values(tmp_path / "b.parquet", sink.getvalue().to_pybytes())
    (made,) = to_samples(found, location="", stem="")
    assert isinstance(made, Sample) and made.response == "Mild."


TEXT = '{"city": "C"}'


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", "{}"),
        (None, "{}"),
        ([], "{}"),
        ("null", "{}"),
        ("[]", "{}"),
        (TEXT, TEXT),
        ({"city": "C"}, TEXT),
        ([["city", "C"]], TEXT),
        ('[["city", "C"]]', TEXT),
        ([{"key": "city", "value": "C"}], TEXT),
        (json.dumps(TEXT), TEXT),
        (json.dumps(json.dumps(TEXT)), TEXT),
        (TEXT[:-3], "no JSON, or cut (10 characters)"),
        ("city C", "no JSON, or cut (6 characters)"),
        (json.dumps("city C"), "no JSON, or cut (6 characters)"),
        (3, "are a number, not an object"),
        ("3", "are a number, not an object"),
        ([1, 2], "are a list, not an object"),
        ([["city", "C"], ["city", "D"]], "are a list, not an object"),
        (True, "are a boolean, not an object"),
        ({"a": "\ud800"}, "lone surrogate"),
    ],
)
def test_arguments_are_an_object_or_reject_the_record(given: Any, kept: str) -> None:
    forms = [
        record(given),
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": given}]},
                {"role": "tool", "content": "20"},
                ANSWERED,
            ]
        },
    ]
    sharegpt = [
        ("human", "q"),
        ("function_call", json.dumps({"name": "f", "arguments": given})),
        ("observation", "20"),
        ("gpt", "a"),
    ]
    forms.append({"conversations": [{"from": role, "value": value} for role, value in sharegpt]})
    for form in forms:
        if kept.startswith("{"):
            texts, _, counts = read(form)
            assert texts == [kept]
            twice = isinstance(given, str) and given.startswith('"')
            assert ("second encoding of tool arguments" in counts) == twice
        else:
            assert "turn 2 (assistant)" in refusal(form) and kept in refusal(form)


def test_definitions_and_calls_are_read_in_every_encoding() -> None:
    tools = [tool(CITY)]
    for form in (tools, json.dumps(tools), json.dumps(json.dumps(tools)), [json.dumps(tools[0])]):
        assert read(record(TEXT, tools=form))[1] == tools
    for form in ("[1]", "x", {"a": 1}, ["x"], [1]):
        assert refusal(record(TEXT, tools=form)).startswith("unusable tools: tools is ")
    calls = [{"function": {"name": "f", "arguments": TEXT}}]
    nothing = {"id": None, "function": {"name": None, "arguments": None}}
    for form in (
        calls,
        json.dumps(calls),
        [json.dumps(calls[0])],
        [{"function": json.dumps(calls[0]["function"])}],
        [*calls, nothing],
        [{"function": None, "name": "f", "arguments": TEXT}],
    ):
        turns = [
            ASKED,
            {"role": "assistant", "tool_calls": form, "function_call": nothing["function"]},
            {"role": "tool", "content": ""},
            ANSWERED,
        ]
        assert read({"messages": turns})[0] == [TEXT]
    turns = record(TEXT)["messages"]
    for form in (json.dumps(turns), [*map(json.dumps, turns)]):  # the second form is what `gateau export` writes
        assert read({"messages": form})[0] == [TEXT]
    for form in ("no turns", ["no turn", "no turn"], [3], 3):
        assert refusal({"messages": form}).startswith("wrong type")
    deep = json.loads('{"a":' * 600 + "1" + "}" * 600)
    for form in (record(deep), record({"a": None}, tools=[tool({"a": deep})])):
        assert refusal(form).startswith("nested too deeply")
