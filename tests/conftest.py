"""For all tests: no time limit an example, since the cores are shared, and the long modules begin first."""

import pytest
from hypothesis import settings

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow modules first: one that began last would keep one process busy while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
