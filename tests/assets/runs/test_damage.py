"""A flipped bit anywhere in the store ends a run with the file's name; the next run computes that file again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from tests.assets.harness import Pipeline, key_of, value_of
from tests.project import change_config
from tests.runs.stores import assert_same_rows


def flip(file: Path, place: Callable[[int], int]) -> None:
    """One bit of the byte at `place(size)`."""
    data = bytearray(file.read_bytes())
    data[place(len(data))] ^= 4
    file.write_bytes(data)


def test_a_flipped_bit_in_a_table_is_named_and_the_table_made_again(small: Pipeline) -> None:
    """The footer is whole, so that the plan takes the table for current until it is read."""
    store = small.state().store
    before = store.read("perplexity/long", "1")
    file = small.file.parent / "store" / "perplexity" / "long" / "1.parquet"
    flip(file, lambda size: 300)
    change_config(small.file, selection={"alpha": 0.4})
    with pytest.raises(GateauError) as caught:
        small.refresh()
    assert str(caught.value).startswith("combined_scores: ")
    assert f"{file} is damaged" in str(caught.value) and "run again, and only it is recomputed" in str(caught.value)
    plan = {work.asset: work.partitions for work in small.state().plan().work}
    assert plan["perplexity/long"] == ["1"] and "cam" not in plan
    result = small.refresh()
    made = [key_of(event) for event in small.materialised(result.run_ids[0])]
    assert ("perplexity/long", "1") in made and ("perplexity/long", "0") not in made
    assert_same_rows(store.read("perplexity/long", "1"), before)
    assert not small.state().plan()


def test_a_flipped_bit_in_a_footer_is_seen_by_the_plan(small: Pipeline) -> None:
    file = small.file.parent / "store" / "cam" / "2.parquet"
    flip(file, lambda size: size - 500)
    assert {work.asset: work.partitions for work in small.state().plan().work}["cam"] == ["2"]
    small.refresh()
    assert not small.state().plan()


def test_a_damaged_table_gives_no_rows_to_its_successor(small: Pipeline) -> None:
    """The rows of the old table are kept where they still hold, so it is read when it is replaced."""
    store, data = small.state().store, small.file.parent / "long.jsonl"
    data.write_text(data.read_text().replace('"recall ', '"recall the ', 1))
    [shard] = small.state().plan().of("raw_long_sft").partitions  # type: ignore[union-attr]
    flip(small.file.parent / "store" / "perplexity" / "short" / f"{shard}.parquet", lambda size: 200)
    result = small.refresh("combined_scores")
    [event] = [e for e in small.materialised(result.run_ids[0]) if key_of(e) == ("perplexity/short", shard)]
    samples = store.read("raw_long_sft", shard).height
    assert (value_of(event, "samples_computed"), value_of(event, "samples_kept")) == (samples, 0)
