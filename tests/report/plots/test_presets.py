"""Matrices and bars show the numbers given."""

import numpy as np

from gateau_dagster.report.plots import auroc_bars, preset_agreement

_NAMES = ("paper", "official", "robust")


def test_matrices_show_their_values_and_say_undefined() -> None:
    rho = np.array([[1.0, -0.25, np.nan], [-0.25, 1.0, 0.5], [np.nan, 0.5, 1.0]])
    left, right = preset_agreement(_NAMES, spearman=rho, overlap=np.full((3, 3), 0.5), chosen=1200).axes
    assert [text.get_text() for text in left.texts][:3] == ["1.00", "−0.25", "undefined"]
    assert {text.get_text() for text in right.texts} == {"50 %"}
    assert "1,200" in right.get_title(loc="left")


def test_bars_are_in_order_with_their_values() -> None:
    axis = auroc_bars({"paper": 0.43, "official": 0.5, "robust": 0.98}).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [0.98, 0.5, 0.43]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axis.texts] == ["0.980", "0.500", "0.430", "chance"]
