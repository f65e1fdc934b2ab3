import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data import readers as module
from gateau_dagster.data.readers import json_values


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


VALUES = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.floats(allow_nan=False)))


@given(values=VALUES, size=st.integers(1, 9), chunk=st.integers(1, 40))
def test_any_cutting_gives_the_values(values: list[dict[str, Any]], size: int, chunk: int) -> None:
    original = module._CHUNK
    module._CHUNK = chunk
    try:
        text = json.dumps(values).encode()
        assert list(json_values(cut(text, size))) == [(value, None) for value in values]
    finally:
        module._CHUNK = original


def test_numbers_are_not_cut_in_two() -> None:
    assert list(json_values(cut(b"[123456, 78]", 1))) == [(123456, None), (78, None)]


def test_objects_that_follow_each_other() -> None:
    assert list(json_values([b'{"a": 1}\n{"a":\n 2}\n'])) == [({"a": 1}, None), ({"a": 2}, None)]


def test_malformed_names_the_line_and_ends() -> None:
    found = list(json_values([b'[{"a": 1},\n{"a" 2},\n{"a": 3}]' + b" " * 100]))
    assert found[0] == ({"a": 1}, None)
    assert found[1:] == [(None, "malformed JSON: Expecting ':' delimiter at line 2; nothing after it was read")]


def test_missing_comma_and_trailing_text() -> None:
    assert list(json_values([b"[1\n2]"]))[1:] == [
        (None, "malformed JSON: expected , or ] but found '2' at line 2; nothing after it was read")
    ]
    assert list(json_values([b"[1]\n\nx"]))[1:] == [(None, "malformed JSON: text after the end of the list at line 3")]


def test_bad_bytes_cost_one_value() -> None:
    assert list(json_values([b'[{"a": "x"},\n{"a": "\xff"},{"a": "y"}]'])) == [
        ({"a": "x"}, None),
        (None, "invalid UTF-8: at line 2"),
        ({"a": "y"}, None),
    ]


def test_long_values_cost_linear_time() -> None:
    text = json.dumps([{"a": "x" * 3_000_000}] * 2).encode()
    reads = 0

    def pieces() -> Any:
        nonlocal reads
        for piece in cut(text, 4096):
            reads += 1
            yield piece

    assert [len(value["a"]) for value, _ in json_values(pieces())] == [3_000_000] * 2
    assert reads == len(cut(text, 4096))
