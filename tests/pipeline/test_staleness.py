from gateau_dagster.pipeline.plan import staleness_of
from gateau_dagster.storage import Stamp


def made(**inputs: object) -> Stamp:
    return Stamp(fingerprint="f", inputs=inputs)


def test_a_missing_output() -> None:
    assert staleness_of(None, {}) == "missing"


def test_settings_are_named_with_old_and_new_value() -> None:
    stamp = made(code="1", settings={"a": 1, "b": None, "same": 2}, upstream={})
    wanted = {"code": "1", "settings": {"a": 2, "b": "x", "same": 2}, "upstream": {}}
    assert staleness_of(stamp, wanted) == "changed: a 1 → 2; b unset → x"


def test_nested_settings_are_named_by_their_path() -> None:
    stamp = made(settings={"evaluation.needle": {"lengths": [1], "repeats": 3}})
    wanted = {"settings": {"evaluation.needle": {"lengths": [1, 2], "repeats": 3}}}
    assert staleness_of(stamp, wanted) == "changed: evaluation.needle.lengths [1] → [1, 2]"


def test_code_and_upstream_are_named() -> None:
    stamp = made(code="1", settings={}, upstream={"raw": "x", "cam": "y"})
    wanted = {"code": "2", "settings": {}, "upstream": {"raw": "z", "cam": "y", "new": "n"}}
    assert staleness_of(stamp, wanted) == "changed: code version; new; raw"


def test_a_digest_is_cut() -> None:
    old, new = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    assert staleness_of(made(settings={"x": old}), {"settings": {"x": new}}) == (
        "changed: x 0123456789ab… → fedcba987654…"
    )


def test_long_values_are_cut_and_the_unexplained_is_said() -> None:
    text = staleness_of(made(settings={"x": "a" * 100}), {"settings": {"x": "b"}})
    assert len(text) < 50 and "…" in text
    assert staleness_of(made(code="1"), {"code": "1"}) == "changed"
