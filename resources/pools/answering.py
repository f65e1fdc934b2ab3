"""Define workers that answer questions, and find those of the configured pool."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from gateau_dagster.config import Config
from gateau_dagster.evaluation.generation.answering import Engine
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.registry import registered
from gateau_dagster.resources import pools
from gateau_dagster.resources.pools.pool import Warn

Answers: TypeAlias = Callable[[Config, Placed, str, Warn], AbstractContextManager[Engine]]


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Workers of the pool `name` that answer questions. A module of this package that has them defines ANSWERING.

    answers: an engine that answers with a placed model and a template; the last argument receives warnings.
    """

    name: str
    answers: Answers


def pool_answers(config: Config) -> Answers | None:
    """Return the engine of the pool that `execution.pool` names; None if the step's process answers."""
    found = {each.name: each.answers for each in registered(pools, Answering)}
    return found.get(config.execution.pool_name)
