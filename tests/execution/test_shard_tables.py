"""A shard that is scored in pieces ends as one that is not, whoever scores which piece, and in which order."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution.shard_tables import Piece, PieceResult, ShardResult, finish_shard
from gateau_dagster.storage import Store
from tests.execution.shards import ASSET, SHARD, Scorer, compute_one, score, work, write_samples
from tests.kit.error_codes import refused


def pieces(store: Store, *groups: Sequence[str]) -> list[Piece]:
    whole = Piece.whole(store, SHARD, [work()])
    return [whole.part([f"s{number}" for number in group]) for group in groups]


def finish(store: Store, results: Sequence[PieceResult]) -> ShardResult:
    shard = Piece(shard=SHARD, works=[work()], lacking={})
    return finish_shard(store, shard, results)[ASSET]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store"))
    write_samples(made, *range(1, 7))
    return made


def test_pieces_in_any_order_make_the_table_of_the_whole(store: Store, tmp_path: Path) -> None:
    cut = pieces(store, "12", "3", "456")
    random.Random(5).shuffle(cut)
    results = [score(store, piece, Scorer(reject="s4")) for piece in cut]
    assert store.stamp(ASSET, SHARD) is None, "no table before all is scored"
    made = finish(store, results)
    whole = Store(str(tmp_path / "whole"))
    write_samples(whole, *range(1, 7))
    wanted = compute_one(whole, Scorer(reject="s4"))
    assert made.table.equals(wanted.table) and made.rejected.equals(wanted.rejected)
    assert (made.computed, made.reused) == (wanted.computed, wanted.reused) == (5, 0)
    assert store.read(ASSET, SHARD).equals(wanted.table) and store.stamp(ASSET, SHARD) == made.stamp
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}")


def test_a_piece_that_was_scored_twice_counts_once(store: Store) -> None:
    """A worker that was thought lost had saved its rows."""
    first, rest = pieces(store, "123", "456")
    score(store, first)
    made = finish(store, [score(store, first), score(store, rest)])
    assert made.table["sample_id"].to_list() == [f"s{number}" for number in range(1, 7)]
    assert (made.computed, made.reused) == (6, 0)


def test_rows_of_a_piece_that_broke_are_not_scored_again(store: Store) -> None:
    [piece] = pieces(store, "123456")
    with pytest.raises(RuntimeError, match="killed"):
        score(store, piece, Scorer(fail_at="s4"))
    rest = Piece.whole(store, SHARD, [work()])
    assert sorted(rest.ids) == ["s4", "s5", "s6"]
    made = finish(store, [score(store, rest)])
    assert (made.table.height, made.computed, made.reused) == (6, 3, 3)


def test_rows_that_cannot_be_seen_end_the_step(store: Store) -> None:
    """A node that writes into a store of its own."""
    [first] = pieces(store, "123")
    results = [score(store, first), PieceResult(computed={ASSET: 3})]
    with refused("execution.rows_lost", match=r"shard 1: 3 rows .* s4\. All machines .* same store"):
        finish(store, results)
    assert store.stamp(ASSET, SHARD) is None


def test_a_damaged_file_of_saved_rows_is_named(store: Store) -> None:
    [piece] = pieces(store, "123456")
    results = [score(store, piece)]
    [file] = Path(store.root, partial.FOLDER).rglob("*.parquet")
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    with refused("execution.rows_lost", match=rf"6 rows .* s1\. .*{file.name} is damaged"):
        finish(store, results)
    assert finish(store, [score(store, piece)]).table.height == 6


def test_efforts_add_up(store: Store) -> None:
    small = {"samples": 2, "tokens": 10, "flops": 1.0, "seconds": 0.5, "peak_memory": 7, "device": "cpu"}
    large = {"samples": 4, "tokens": 90, "flops": 9.0, "seconds": 2.5, "peak_memory": None, "device": "cpu"}
    first, rest = pieces(store, "12", "3456")
    results = [score(store, first, **small), score(store, rest, **large)]
    effort = dict(finish(store, results).stamp.effort)
    assert effort.pop("peak_memory_since_start") is None
    assert effort == {**small, "samples": 6, "tokens": 100, "flops": 10.0, "seconds": 3.0}


def test_a_sample_that_was_given_up_leaves_the_table_short_of_memory(store: Store) -> None:
    results = [score(store, piece) for piece in pieces(store, "12345")]
    reject = Reject(sample_id="s6", reason="it killed three", short_of_memory=True)
    made = finish(store, [*results, PieceResult(rejects={ASSET: [reject]})])
    assert made.rejected.rows() == [("s6", "it killed three")] and made.table.height == 5
    assert made.stamp.lacking == "m" and made.stamp.complete == "f v1" != made.stamp.fingerprint


def test_samples_without_work_are_asked_for_nothing(store: Store) -> None:
    [piece] = pieces(store, "123456")
    finish(store, [score(store, piece)])
    assert not Piece.whole(store, SHARD, [work()]).lacking
    made = finish(store, [])
    assert (made.computed, made.reused, made.table.height) == (0, 6, 6)
