"""A run pipeline, and the commands in this process, for tests of features."""

from tests.assets.conftest import config, fresh, made_once, small
from tests.cli.conftest import command, project

__all__ = ["command", "config", "fresh", "made_once", "project", "small"]
