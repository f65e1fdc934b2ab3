"""The demo's trained pair, as the demo's own tests have it."""

from tests.demo.conftest import trained_pair

__all__ = ["trained_pair"]
