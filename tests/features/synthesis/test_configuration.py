"""Each bad configuration of `synthesis` is refused with the code of its table."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.config.test_bad_configurations import messages, table

TABLE = table(Path(__file__))


@pytest.mark.parametrize("code", TABLE)
def test_a_bad_configuration_is_refused(code: str, snapshot: SnapshotAssertion) -> None:
    assert messages(code, TABLE[code]) == snapshot
