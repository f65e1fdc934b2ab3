"""Read the definitions and calls of tools from records, without the nulls that Arrow adds to objects.

Arrow gives all objects of a column the same keys, and null where an object has none. So a call gets the arguments of
all other tools, and a definition the properties of all other definitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from gateau_dagster.data.record_fields import Fields, InvalidRecordError, checked_text, holds, is_missing, kind_of
from gateau_dagster.data.sample import Turn

TOOLS_KEYS = ("tools", "functions")
_NAMED_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_LITERALS = {"default", "const", "enum", "examples", "example"}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_TYPES = {"string", "number", "integer", "boolean", "array", "object"}
_Path: TypeAlias = tuple[str, ...]


def tools_of(record: Mapping[str, Any], fields: Fields) -> list[Any]:
    """Return the record's definitions of tools, a list or one as JSON text, in OpenAI's form."""
    for key in TOOLS_KEYS:
        value = record.get(key)
        if not holds(value):
            continue
        given = decoded(value, key)
        tools = [decoded(tool, key) for tool in given] if _is_list(given) else []
        if not tools or not all(isinstance(tool, Mapping) for tool in tools):
            raise InvalidRecordError(
                f"unusable tools: {key} is {kind_of(value)}, not a list of objects or its JSON text"
            )
        fields.use(key)
        read = json.loads(json_text([tool for tool in tools if holds(tool)], key))
        try:
            kept = [_without_nulls(tool) for tool in read]
        except RecursionError:
            raise _too_deep(key) from None
        if kept != read:
            fields.leave_out("nulls in definitions of tools")
        return [_definition(tool) for tool in kept]
    return []


def _definition(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's definition in OpenAI's form, from a bare function or Anthropic's form with `input_schema`."""
    if "name" not in tool or "function" in tool or tool.get("type") not in (None, "function", "custom"):
        return tool
    names = {"input_schema": "parameters"}
    return {"type": "function", "function": {names.get(key, key): tool[key] for key in tool if key != "type"}}


def _without_nulls(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition, or a JSON schema in it, without the members that are null or hold only nulls.

    `default` and `const` may be null where the schema admits null.
    """
    kept = dict[str, Any]()
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS:
            named = pairs_as_object(value)
            if not isinstance(named, Mapping):
                continue
            inner = {name: _inside(one) for name, one in named.items() if not _is_null(one)}
            if inner or not _is_null(schema):
                kept[key] = inner
        elif key in _LITERALS:
            if not is_missing(value) or (key in ("default", "const") and _admits_null(schema) and not _is_null(schema)):
                kept[key] = value
        elif not _is_null(value):
            kept[key] = _inside(value)
    return kept


def _inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_nulls(value)
    return [_inside(item) for item in value] if isinstance(value, list) else value


def _is_null(value: Any) -> bool:
    # pandas writes NaN for null, and an object may hold only the nulls that Arrow added.
    return is_missing(value) or (isinstance(value, Mapping) and bool(value) and all(map(_is_null, value.values())))


def _admits_null(schema: Any) -> bool:
    """Return whether null is valid; so is anything where the types are unknown."""
    if not isinstance(schema, Mapping):
        return True
    if schema.get("nullable") is True or None in _listed(schema.get("enum")):
        return True
    for key in _ALTERNATIVES:
        if inner := _listed(schema.get(key)):
            return any(map(_admits_null, inner))
    types = schema.get("type")
    if types is None:
        return not schema.get("enum")
    return any(name not in _TYPES for name in (types if _is_list(types) else [types]))


def calls_of(item: Mapping[str, Any], place: str, fields: Fields) -> Iterator[dict[str, Any]]:
    """Yield the tool calls of a turn: `tool_calls`, or the older `function_call`. See `call_of`."""
    tool_calls = item.get("tool_calls") or []
    given = decoded(tool_calls, place)
    if not _is_list(given):
        raise InvalidRecordError(f"unusable tool call: tool_calls of {place} is {kind_of(tool_calls)}, not a list")
    older = [item["function_call"]] if holds(item.get("function_call")) else []
    for call in (decoded(call, place) for call in [*given, *older]):
        if isinstance(call, Mapping) and _is_null(call):
            continue
        function = decoded(call.get("function") or call, place) if isinstance(call, Mapping) else call
        if not isinstance(function, Mapping):
            raise InvalidRecordError(f"unusable tool call: a call of {place} is {kind_of(function)}, not an object")
        yield call_of({**call, **function, "id": call.get("id")}, function.get("arguments"), place, fields)


def calls_in(content: Any, place: str, fields: Fields) -> Iterator[dict[str, Any]]:
    """Yield the tool calls of ShareGPT's `function_call`: JSON text of one with name and arguments, or several."""
    given = decoded(content, place)
    for call in given if isinstance(given, list) else [given]:
        if not isinstance(call, Mapping):
            raise InvalidRecordError(f"unusable tool call: {place} is not JSON with name and arguments")
        arguments = call.get("arguments")
        as_text = json_text(arguments, place) if isinstance(arguments, Mapping) else arguments
        yield call_of(call, as_text, place, fields)


def call_of(call: Mapping[str, Any], arguments: Any, place: str, fields: Fields) -> dict[str, Any]:
    """Return a tool call in OpenAI's form. Its arguments are JSON text, or an object until `with_arguments`.

    Arguments that are JSON text in JSON text are decoded. An object may be a list of pairs, as Arrow's maps are.

    Raises:
        InvalidRecordError: the arguments are no object.
    """
    text, value = None, arguments
    # Some data sets encode arguments twice. The text that is kept is the inner one, as models write it.
    while isinstance(value, str) and value.strip():
        if text is not None:
            fields.leave_out("second encoding of tool arguments")
        text, value = value, _parsed(value, place)
        if value is None and text.strip() != "null":
            raise InvalidRecordError(
                f"unusable tool call: the arguments of a call of {place} are no JSON, or cut ({len(text)} characters)"
            )
    value = {} if value is None or isinstance(value, str) else pairs_as_object(value)
    if not isinstance(value, Mapping):
        raise InvalidRecordError(
            f"unusable tool call: the arguments of a call of {place} are {kind_of(value)}, not an object"
        )
    as_text = json_text(value, place)  # raises the reason for what cannot be stored
    if text is not None:
        is_object = text.lstrip().startswith("{")
        value = checked_text(text, place) if is_object else as_text
    function = {"name": checked_text(call.get("name"), place), "arguments": value}
    own_id = {"id": checked_text(call["id"], place)} if call.get("id") else {}
    return {**own_id, "type": "function", "function": function}


def with_arguments(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], fields: Fields) -> list[Turn]:
    """Return the turns with the arguments of all calls as JSON text, without the nulls that a tool does not have.

    A null is left out where the tool's definition does not have the argument, or has one that is optional and not
    nullable. Without a definition, it is left out where no call of the tool in the record has a value for it. Arguments
    that the record has as JSON text are the model's words. A null stays there, unless the definition does not have the
    argument. Without a definition it stays unless only other tools have a value for it.
    """
    try:
        filled = _Filled(tools, [call for turn in turns for call in turn.tool_calls], fields)
        return [replace(turn, tool_calls=tuple(map(filled.read, turn.tool_calls))) for turn in turns]
    except RecursionError:
        raise _too_deep("the arguments of tool calls") from None


class _Filled:
    """The calls of a record, in which objects may have been filled with nulls.

    _seen: the tool and the place of every value that is not null.
    """

    def __init__(self, tools: Sequence[Any], calls: Sequence[Mapping[str, Any]], fields: Fields) -> None:
        self._fields = fields
        self._schemas = {name: schema for tool in tools for name, schema in [_parameters(tool)]}
        functions = [call["function"] for call in calls]
        self._seen = set[tuple[str, _Path]]()
        if any(_may_have_null(function["arguments"]) for function in functions):
            for function in functions:
                self._seen.update((function["name"], path) for path in _paths(_value_of(function["arguments"])))
        self._of_any = {path for _, path in self._seen}

    def read(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call with its arguments as JSON text."""
        function, given = call["function"], call["function"]["arguments"]
        self._tool, self._as_text = function["name"], isinstance(given, str)
        if not _may_have_null(given):
            return call
        value = _value_of(given)
        kept = self._without(value, self._schemas.get(self._tool))
        if kept != value:
            self._fields.leave_out("nulls in arguments of tool calls")
        elif self._as_text:
            return call
        return {**call, "function": {**function, "arguments": json_text(kept, self._tool)}}

    def _without(self, value: Any, schema: Any, path: _Path = ()) -> Any:
        if isinstance(value, list):
            items = schema.get("items") if isinstance(schema, Mapping) else None
            return [self._without(item, items, (*path, "[]")) for item in value]
        if not isinstance(value, Mapping):
            return value
        of_object = schema if isinstance(schema, Mapping) else {}
        given, required = of_object.get("properties"), _listed(of_object.get("required"))
        properties = given if isinstance(given, Mapping) else None  # None: the members are unknown
        kept = dict[str, Any]()
        for key, inner in value.items():
            own, at = None if properties is None else properties.get(key), (*path, key)
            if not _is_null(inner):
                kept[key] = self._without(inner, own, at)
            elif properties is None:
                if (self._tool, at) in self._seen or (self._as_text and at not in self._of_any):
                    kept[key] = inner
            elif key in properties and (self._as_text or key in required or _admits_null(own)):
                kept[key] = inner
        return kept


def _parameters(tool: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a tool's name and the schema of its arguments; some sets have the properties in place of the schema."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        return "", None
    schema = decoded(function.get("parameters"), name)
    bare = isinstance(schema, Mapping) and bool(schema) and all(isinstance(one, Mapping) for one in schema.values())
    return name, {"properties": schema} if bare and "properties" not in schema else schema


def _paths(value: Any, path: _Path = ()) -> Iterator[_Path]:
    """Yield the path of each member that is not null."""
    if isinstance(value, list):
        for item in value:
            yield from _paths(item, (*path, "[]"))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not _is_null(inner):
                yield (*path, key)
                yield from _paths(inner, (*path, key))


def _may_have_null(arguments: Any) -> bool:
    # Parsing a text costs more than a search in it.
    return not isinstance(arguments, str) or "null" in arguments or "NaN" in arguments


def _value_of(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def pairs_as_object(value: Any) -> Any:
    """Return an object that is given as a list of keys and values; anything else unchanged."""
    if not _is_list(value):
        return value
    pairs: list[Any] = [
        (item["key"], item["value"]) if isinstance(item, Mapping) and item.keys() == {"key", "value"} else item
        for item in value
    ]
    if not all(_is_list(pair) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        return value
    found = dict(pairs)
    return found if len(found) == len(pairs) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _listed(value: Any) -> list[Any]:
    return [*value] if _is_list(value) else []


def decoded(value: Any, place: str) -> Any:
    """Return the value of JSON text, also of JSON text in JSON text; None if it is no JSON."""
    while isinstance(value, str):
        value = _parsed(value, place)
    return value


def _parsed(text: str, place: str) -> Any:
    """Return the value of JSON text, None if it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep(place) from None
    except ValueError:
        return None


def json_text(value: Any, place: str) -> str:
    """Return a value as JSON text that can be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        raise _too_deep(place) from None
    except TypeError as error:  # of a key
        raise InvalidRecordError(f"non-string key: in an object of {place}: {error}") from None
    return checked_text(text, place)


def _too_deep(place: str) -> InvalidRecordError:
    return InvalidRecordError(f"nested too deeply: the JSON in {place} cannot be read")
