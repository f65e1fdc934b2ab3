"""Which models come to an end of their positions."""

import pytest

from gateau_dagster.models.positions import learned_positions
from tests.tiny_models import model_config


@pytest.mark.parametrize(("kind", "most"), [("gpt2", 2048), ("llama", None), ("gemma2", None), ("mamba", None)])
def test_learned_positions_end_and_computed_ones_do_not(kind: str, most: int | None) -> None:
    assert learned_positions(model_config(kind)) == most
