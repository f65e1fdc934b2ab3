"""HELMET's draws: equal shares, different examples, the same each time."""

from collections import Counter

from gateau_dagster.evaluation.helmet_draws import balanced, drawn_by_key, examples, seed_of

LABELS = [place % 4 for place in range(40)] + [4, 4]


def test_rounds_hold_every_label_once() -> None:
    for seed in range(20):
        drawn = balanced(LABELS, 23, seed)
        rounds = [[LABELS[place] for place in drawn[start : start + 5]] for start in range(0, 20, 5)]
        assert len(drawn) == 23 and all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
        taken = Counter(place for place in drawn if LABELS[place] != 4)
        assert {*taken.values()} == {1}  # the label with two rows alone has some of them again
        assert drawn == balanced(LABELS, 23, seed)
    assert len({tuple(balanced(LABELS, 23, seed)) for seed in range(20)}) == 20


def test_all_rows_of_a_question_are_drawn_or_none() -> None:
    rows = [{"id": place // 2, "row": place} for place in range(20)]
    drawn = drawn_by_key(rows, "id", 3)
    assert sorted(Counter(row["id"] for row in drawn).values()) == [2, 2, 2]
    assert [row["row"] for row in drawn] == sorted(row["row"] for row in drawn)
    assert drawn_by_key(rows, "id", 99) == rows


def test_examples_are_of_different_questions_and_each_question_s_own() -> None:
    rows = [{"id": place % 6, "row": place} for place in range(30)]
    found = {own: examples(rows, "id", own, 4) for own in range(8)}
    assert all(len({row["id"] for row in each}) == 4 for each in found.values())
    assert len({str(each) for each in found.values()}) > 1
    assert len(examples(rows, "id", 0, 9)) == 6


def test_a_seed_is_the_text_s() -> None:
    assert seed_of("a") == int("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", 16) % 2**31
    assert seed_of("a", 42) == (seed_of("a") + 42) % 2**31
