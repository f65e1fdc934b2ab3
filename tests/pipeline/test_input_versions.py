"""What is said of an input for people."""

from datetime import UTC, datetime

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.pipeline.input_versions import _facts


def test_a_time_beyond_all_years_is_left_out() -> None:
    whole = SourceFile(address="/a", size=3, stamp=str(2 * 10**18))
    damaged = [SourceFile(address="/b", size=4, stamp=stamp) for stamp in (str(2**62 * 2**7), "9" * 40)]
    sizes = {"files": 3, "size_bytes": 11}
    assert _facts([whole, *damaged]) == {**sizes, "last_change": datetime.fromtimestamp(2e9, UTC)}
    assert _facts(damaged) == {"files": 2, "size_bytes": 8}
