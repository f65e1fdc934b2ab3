import pytest

from gateau_dagster.storage import Stamp


def test_a_stamp_survives_json() -> None:
    stamp = Stamp(fingerprint="f", content="c", inputs={"code": "1", "upstream": {"a": "b"}}, scorer="s", rows=3)
    assert Stamp.from_json(stamp.to_json()) == stamp
    assert Stamp.from_json(stamp.to_json().encode()) == stamp
    assert Stamp.from_json('{"fingerprint": "f"}') == Stamp(fingerprint="f")
    assert "\n" not in stamp.to_json()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"content": "c"}', '{"fingerprint": "f", "new_field": 1}', b"\xff"]
)
def test_anything_else_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        Stamp.from_json(text)
