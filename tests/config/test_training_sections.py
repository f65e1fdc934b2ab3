"""The section about positions: what each method needs, and what it has no use for."""

import pytest
from pydantic import ValidationError

from gateau_dagster.config.training_sections import ExtensionMethod, PositionExtension


@pytest.mark.parametrize("method", ["ntk", "yarn", "linear"])
def test_scaling_needs_a_target_and_no_base(method: ExtensionMethod) -> None:
    assert PositionExtension(method=method, target_length=65_536).target_length == 65_536
    with pytest.raises(ValidationError, match=f"method: {method} needs the key target_length"):
        PositionExtension(method=method)
    with pytest.raises(ValidationError, match="remove theta"):
        PositionExtension(method=method, target_length=65_536, theta=1e6)


def test_another_base_needs_the_base_and_may_declare_a_window() -> None:
    assert PositionExtension(method="theta", theta=8e6).target_length is None
    assert PositionExtension(method="theta", theta=8e6, target_length=65_536).target_length == 65_536
    with pytest.raises(ValidationError, match="needs the key theta"):
        PositionExtension(method="theta", target_length=65_536)


@pytest.mark.parametrize("keys", [{"theta": 0.0}, {"theta": float("inf")}, {"theta": 1e6, "target_length": 1}])
def test_impossible_values_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        PositionExtension.model_validate({"method": "theta"} | keys)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValidationError, match="'theta', 'ntk', 'yarn' or 'linear'"):
        PositionExtension.model_validate({"method": "dynamic", "target_length": 100})
