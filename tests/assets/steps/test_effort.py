"""What a shard took, as its materialisation shows it."""

from typing import Any

import polars as pl
import pytest

from assets.steps.metadata import effort_metadata, statistics

EFFORT: dict[str, Any] = {
    "samples": 4,
    "tokens": 1000,
    "flops": 6e9,
    "seconds": 2.0,
    "peak_memory": 3 * 2**20,
    "peak_memory_since_start": False,
    "device": "cuda:1",
    "matrix_product_speed": 1e10,
    "planned": {"samples": 5, "tokens": 900, "flops": 5e9, "seconds": 1.5},
}


def test_rates_and_the_share_of_the_peak() -> None:
    found = effort_metadata(EFFORT)
    assert found == {
        "scoring_seconds": 2.0,
        "tokens_scored": 1000,
        "flops": 6e9,
        "peak_gpu_memory_mib": 3.0,
        "device": "cuda:1",
        "samples_per_second": 2.0,
        "tokens_per_second": 500.0,
        "flops_per_second": 3e9,
        "share_of_matrix_product_peak": pytest.approx(0.3),
        "planned_seconds": 1.5,
    }


def test_what_is_unknown_is_left_out() -> None:
    unknown = {**EFFORT, "seconds": 0.0, "planned": {"seconds": None}}
    assert set(effort_metadata(unknown)) == {
        "scoring_seconds", "tokens_scored", "flops", "peak_gpu_memory_mib", "device"
    }  # fmt: skip
    assert "share_of_matrix_product_peak" not in effort_metadata({**EFFORT, "matrix_product_speed": None})
    assert effort_metadata({}) == {}, "all rows were kept"


@pytest.mark.parametrize(
    ("since_start", "name"), [(False, "peak_process_memory_mib"), (True, "peak_process_memory_since_start_mib")]
)
def test_memory_is_named_for_what_it_is(since_start: bool, name: str) -> None:
    assert effort_metadata({**EFFORT, "device": "cpu", "peak_memory_since_start": since_start})[name] == 3.0


def test_means_of_the_number_columns() -> None:
    table = pl.DataFrame({"sample_id": ["a", "b"], "cas": [0.5, None], "lists": [[1.0], [2.0]]})
    assert statistics(table) == {"mean_cas": 0.5}
    assert statistics(table.clear()) == {}
