from gateau_dagster.incremental.reason import reason_for
from gateau_dagster.storage import Stamp


def made(**inputs: object) -> Stamp:
    return Stamp(fingerprint="f", inputs=inputs)


def test_a_missing_output() -> None:
    assert reason_for(None, {}) == "missing"


def test_settings_are_named_with_old_and_new_value() -> None:
    stamp = made(code="1", settings={"a": 1, "b": None, "same": 2}, upstream={})
    wanted = {"code": "1", "settings": {"a": 2, "b": "x", "same": 2}, "upstream": {}}
    assert reason_for(stamp, wanted) == "changed: a 1 → 2; b unset → x"


def test_nested_settings_are_named_by_their_path() -> None:
    stamp = made(settings={"evaluation.needle": {"lengths": [1], "repeats": 3}})
    wanted = {"settings": {"evaluation.needle": {"lengths": [1, 2], "repeats": 3}}}
    assert reason_for(stamp, wanted) == "changed: lengths [1] → [1, 2]".replace("lengths", "evaluation.needle.lengths")


def test_code_and_upstream_are_named() -> None:
    stamp = made(code="1", settings={}, upstream={"raw": "x", "cam": "y"})
    wanted = {"code": "2", "settings": {}, "upstream": {"raw": "z", "cam": "y", "new": "n"}}
    assert reason_for(stamp, wanted) == "changed: code version; new; raw"


def test_long_values_are_cut_and_the_unexplained_is_said() -> None:
    text = reason_for(made(settings={"x": "a" * 100}), {"settings": {"x": "b"}})
    assert len(text) < 50 and "…" in text
    assert reason_for(made(code="1"), {"code": "1"}) == "changed"
