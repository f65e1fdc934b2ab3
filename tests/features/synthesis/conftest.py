"""The demo's trained pair and the command line, as other tests have them."""

from tests.cli.conftest import command
from tests.features.demo.conftest import trained_pair

__all__ = ["command", "trained_pair"]
