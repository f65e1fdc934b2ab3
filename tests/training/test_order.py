"""The order is a function of ids and seed, and all epochs lie in one list."""

from collections import Counter

import pytest

from gateau_dagster.training.order import PADDING, epoch_order, mix_order, training_layout


def test_mix_order_is_stable_under_additions() -> None:
    keys = [("long", f"id{number}") for number in range(40)]
    order = [keys[index] for index in mix_order(keys, 1)]
    assert sorted(order) == sorted(keys)
    assert order != keys
    more = [("short", "new"), *reversed(keys)]
    assert [key for key in (more[index] for index in mix_order(more, 1)) if key in keys] == order
    assert [keys[index] for index in mix_order(keys, 2)] != order


def test_epochs_differ_and_the_first_is_the_mix() -> None:
    assert epoch_order(30, epoch=0, seed=5) == list(range(30))
    second, third = (epoch_order(30, epoch=epoch, seed=5) for epoch in (1, 2))
    assert sorted(second) == sorted(third) == list(range(30))
    assert second not in (third, list(range(30)))
    assert second == epoch_order(30, epoch=1, seed=5) != epoch_order(30, epoch=1, seed=6)


@pytest.mark.parametrize(
    ("count", "epochs", "max_steps", "rows", "steps"),
    [(10, 2.0, None, 20, 5), (11, 1.0, None, 11, 3), (10, 0.25, None, 2, 1), (3, 0.01, None, 1, 1), (5, 9.0, 4, 16, 4)],
)
def test_layout(count: int, epochs: float, max_steps: int | None, rows: int, steps: int) -> None:
    layout = training_layout(count, epochs=epochs, max_steps=max_steps, global_batch=4, seed=3)
    slow = [row for epoch in range(9) for row in epoch_order(count, epoch=epoch, seed=3)][:rows]
    assert layout.steps == steps
    assert layout.rows == slow + [PADDING] * (4 * steps - rows)
    assert Counter(row for step in range(1, steps + 1) for row in layout.step_rows(step)) == Counter(slow)
