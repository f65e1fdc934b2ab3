"""Grouping of rejects."""

import polars as pl

from gateau_dagster.pipeline.losses import DataLoss
from gateau_dagster.report.build import reject_groups

from .builders import inputs, page_of


def _table(*rows: tuple[str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"sample_id": pl.String, "reason": pl.String}, orient="row")


def test_reasons_that_differ_in_numbers_and_names_are_one_kind() -> None:
    table = _table(("b", "line 17: role 'bot' is unknown"), ("a", "line 3: role 'x' is unknown"), ("c", "empty"))
    first, second = reject_groups({"raw_long_sft": table})
    assert (first.asset, first.count, first.examples) == ("raw_long_sft", 2, ["a", "b"])
    assert first.reason == "line 3: role 'x' is unknown"
    assert (second.reason, second.count) == ("empty", 1)


def test_assets_stay_apart_and_in_order() -> None:
    groups = reject_groups({"cam": _table(("a", "x")), "empty": _table(), "perplexity/long": _table(("a", "x"))})
    assert [group.asset for group in groups] == ["cam", "perplexity/long"]


def test_no_sample_is_lost_among_many_kinds() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    table = _table(*((f"{name}{i}", f"reason {name}") for name in names for i in range(1 + (name == "q"))))
    groups = reject_groups({"cam": table}, most=5)
    assert [group.count for group in groups] == [2, 1, 1, 1, 1, 21]
    assert groups[0].reason == "reason q"
    assert groups[-1].reason == "21 other kinds of reason"
    assert sum(group.count for group in groups) == table.height


def test_null_and_endless_reasons() -> None:
    groups = reject_groups({"cam": _table(("a", None), ("b", "y" * 5000))})
    assert [len(group.reason) for group in groups] == [len("no reason given"), 302]


def test_what_is_lost_stands_among_the_rejects_and_much_of_it_on_top() -> None:
    much = DataLoss(asset="raw_long_sft", sentence="53 of 56 records rejected", notable=True)
    little = DataLoss(asset="perplexity/long", sentence="1 of 9 samples cut", notable=False)
    page = page_of(inputs(5, losses=[much, little]))
    assert much.sentence in page.text("summary") and little.sentence not in page.text("summary")
    assert f"{much.asset}: {much.sentence}" in page.text("rejected")
    assert f"{little.asset}: {little.sentence}" in page.text("rejected")
    assert "lost on the way" not in page_of(inputs(5)).text()
