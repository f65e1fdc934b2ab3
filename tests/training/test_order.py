"""The order is a function of ids and seed."""

from gateau_dagster.training.batching import epoch_order, mix_order


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
