import pytest

from gateau_dagster.cli.plan import _duration, _flops, _shards
from gateau_dagster.incremental.plan import Work


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0.2, "< 1 s"), (12.4, "12 s"), (90, "2 min"), (7200, "2.0 h"), (864_000, "10.0 days")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0.0, "0"),
        (999.0, "999"),
        (1500.0, "1.5 k"),
        (5.2e7, "52 M"),
        (1.3e15, "1.3 P"),
        (1e30, "1000000 Y"),
    ],
)
def test_flops(count: float | None, text: str) -> None:
    assert _flops(count) == text


def test_shards() -> None:
    def work(*shards: str | None) -> Work:
        return Work(asset="cam", reasons=dict.fromkeys(shards, "missing"))

    assert _shards(work(None), 4) == ""
    assert _shards(work("0", "1"), 2) == "all 2"
    assert _shards(work("3", "1"), 16) == "2 of 16: 1, 3"
    assert _shards(work(*"0123456"), 16) == "7 of 16: 0, 1, 2, 3, …"
