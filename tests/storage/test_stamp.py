"""Stamps survive JSON; fingerprints are the same in any process."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.storage import Stamp
from gateau_dagster.storage.stamp import fingerprint, joint
from tests.kit.project import command_environment

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


@given(parts=PARTS)
def test_the_order_of_the_parts_does_not_count(parts: dict[str, object]) -> None:
    assert fingerprint(dict(reversed(parts.items()))) == fingerprint(parts)
    assert len(fingerprint(parts)) == 32


@given(one=PARTS, two=PARTS)
def test_unequal_parts_have_unequal_fingerprints(one: dict[str, object], two: dict[str, object]) -> None:
    if one != two:
        assert fingerprint(one) != fingerprint(two)


def test_another_process_finds_the_same() -> None:
    code = "from gateau_dagster.storage.stamp import fingerprint as f; print(f({'b': [1, 2.5, None], 'a': 'ü'}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=command_environment(PYTHONHASHSEED="7"),
    )
    assert done.stdout.strip() == fingerprint({"a": "ü", "b": [1, 2.5, None]}) == "703dceec79c30480a5c3da98f5873d45"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_canonical_form_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        fingerprint({"x": value})


def test_joint_versions_count_names() -> None:
    assert joint({"0": "a", "1": "b"}) == joint({"1": "b", "0": "a"}) != joint({"0": "b", "1": "a"})


def test_a_stamp_survives_json() -> None:
    stamp = Stamp(fingerprint="f", content="c", inputs={"code": "1", "upstream": {"a": "b"}}, scorer="s", rows=3)
    assert Stamp.from_json(stamp.to_json()) == stamp
    assert Stamp.from_json(stamp.to_json().encode()) == stamp
    assert Stamp.from_json('{"fingerprint": "f", "rows": 3}') == Stamp(fingerprint="f", rows=3)
    assert Stamp.from_json(Stamp(fingerprint="f", inputs={"a": {1: (2, 3)}}).to_json()).inputs == {"a": {"1": [2, 3]}}
    old = '{"fingerprint": "f", "short_of_memory": "m", "complete": "c"}'
    assert Stamp.from_json(old) == Stamp(fingerprint="f", lacking="m", complete="c")


def test_the_stamp_of_a_table_that_lacks_rows_says_which_settings_they_failed_under() -> None:
    stamp = Stamp(fingerprint="f", content="c")
    assert stamp.without([], "m") is stamp
    made = stamp.without(["b", "a"], "m")
    assert (made.complete, made.lacking, made.content) == ("f", "m", "c")
    others = [stamp.without(["a"], "m"), stamp.without(["a", "b"], "n"), stamp]
    assert made.fingerprint == stamp.without(["a", "b"], "m").fingerprint not in [each.fingerprint for each in others]
    assert "\n" not in stamp.to_json()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "3", '{"content": "c"}', '{"fingerprint": "f", "new_field": 1}', b"\xff"),
        pytest.param("[" * 200_000, id="deep"),
    ],
)
def test_anything_else_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        Stamp.from_json(text)
