"""Looking up many hashes at a time against sets."""

import numpy as np
import pytest

from gateau_dagster.evaluation.contamination import HashIndex


@pytest.mark.parametrize("spread", [1, 1 << 40, 1 << 57], ids=["all in one place", "in some", "in all"])
@pytest.mark.parametrize("seed", range(8))
def test_the_texts_of_a_hash_are_found(seed: int, spread: int) -> None:
    drawn = np.random.default_rng(seed)

    def some(most: int) -> np.ndarray:
        return drawn.integers(0, 100, drawn.integers(0, most)).astype(np.uint64) * np.uint64(spread)

    texts = [np.unique(some(60)) for _ in range(drawn.integers(0, 30))]
    index = HashIndex.of(texts)
    for _ in range(20):
        wanted = some(80)
        expected = {number: len({*text} & {*wanted}) for number, text in enumerate(texts)}
        found, counts = index.common(wanted)
        assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == {n: c for n, c in expected.items() if c}
        assert found.tolist() == sorted(found.tolist())


def test_the_smallest_and_the_largest_hash_have_their_place() -> None:
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    index = HashIndex.of([ends, ends[1:], ends[:0]])
    assert [each.tolist() for each in index.common(ends)] == [[0, 1], [2, 1]]
    assert [each.tolist() for each in index.common(ends[:1])] == [[0], [1]]
    assert [each.tolist() for each in index.common(ends[:0])] == [[], []]
