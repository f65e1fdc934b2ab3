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
