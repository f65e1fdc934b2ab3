from collections import Counter

import numpy as np
import pytest
from common_harder import KINDS, harder_samples, needs_far_context
from common_page import SIZES

from gateau_dagster.demo.language import VOCABULARY
from gateau_dagster.demo.long_samples import FAR_KINDS
from gateau_dagster.demo.long_samples import KINDS as BASE_KINDS
from gateau_dagster.demo.pair import LONG_WINDOW
from tests.benchmarks.evidence import ALL_VALUES, PER_KIND, SEEN_AT_LEAST, WINDOW, made


def test_records_are_complete_and_the_kinds_take_turns() -> None:
    assert Counter(record["source"] for record in made()) == dict.fromkeys(KINDS, PER_KIND)
    assert len({record["id"] for record in made()}) == len(made())
    assert all(set(record) == {"id", "source", "context", "instruction", "response"} for record in made())
    assert not set(KINDS) & set(BASE_KINDS)


@pytest.mark.parametrize("size", SIZES)
def test_every_word_is_of_the_language_and_every_prompt_fits_the_long_window(size: str) -> None:
    for record in made(size):
        words = [word for part in ("context", "instruction", "response") for word in record[part].split()]
        assert set(words) <= set(VOCABULARY)
        assert len(words) + 7 <= LONG_WINDOW


def test_the_label_says_whether_the_decisive_values_are_in_sight() -> None:
    """A slow definition: the values of the response that stand in the context, and where their last copy is."""
    unseen = {"order_coded", "ordered_values", "two_hop"}  # all far, too; their order or link decides, not the value
    for record in made():
        words = record["context"].split()
        values = {word for word in record["response"].split() if word in ALL_VALUES} & set(words)
        last = [words[::-1].index(value) + 1 for value in values]
        kind = KINDS[record["source"]]
        if kind.needs_far_context:
            assert last and min(last) > WINDOW, record["id"]
        else:
            assert all(distance <= SEEN_AT_LEAST + 10 for distance in last), record["id"]
        assert kind.needs_far_context or kind.name not in unseen


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_do_not_tell_the_kinds_apart(kind: str) -> None:
    lengths = [len(record["context"].split()) for record in harder_samples(25, 3, kinds=[kind])]
    assert 520 <= min(lengths) < 800 and 1100 < max(lengths) <= 168 * 8 + 4 * 34
    assert np.mean(lengths) == pytest.approx(980, abs=170)


def test_sizes_differ() -> None:
    lengths = {size: [len(record["context"].split()) for record in made(size)] for size in SIZES}
    assert max(lengths["small"]) <= 800 + 4 * 34 and min(lengths["large"]) >= 1200
    assert max(lengths["medium"]) > max(lengths["small"])


def test_seed_index_and_size_decide_and_a_larger_set_begins_with_the_smaller_one() -> None:
    assert tuple(harder_samples(5, 5)) == made()[:5]
    first = [
        harder_samples(1, seed, size=size)[0]["context"] for seed, size in ((5, "medium"), (6, "medium"), (5, "small"))
    ]
    assert len(set(first)) == 3
    (alone,) = harder_samples(1, 5, kinds=["far_count_1"])
    assert alone == made()[0]


def test_both_labels_are_frequent_and_each_has_a_reason() -> None:
    labels = [kind.needs_far_context for kind in KINDS.values()]
    assert 0.4 < np.mean(labels) < 0.6
    assert all(kind.why.endswith(".") and kind.name == name for name, kind in KINDS.items())
    assert {name for name, kind in KINDS.items() if not kind.within_reach} == {
        *("ordered_values", "ordered_values_near", "two_hop", "two_hop_near"),
        *("order_coded", "order_coded_near"),
    }


def test_labels_by_source_are_those_of_both_sets() -> None:
    assert [kind for kind in BASE_KINDS if needs_far_context(kind)] == list(FAR_KINDS)
    assert needs_far_context("two_hop") and not needs_far_context("look_alikes")
    with pytest.raises(KeyError):
        needs_far_context("no such kind")


def test_an_unknown_size_or_kind_is_named() -> None:
    with pytest.raises(ValueError, match="no size 'huge': one of small, medium, large"):
        harder_samples(1, 0, size="huge")
    with pytest.raises(ValueError, match="no kinds nothing"):
        harder_samples(1, 0, kinds=["nothing", "two_hop"])
