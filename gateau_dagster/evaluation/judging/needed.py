"""The judge that a benchmark needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from gateau_dagster.config import Config


def needed_judge(config: Config, benchmark: str) -> JudgeConfig:
    """Return `evaluation.judge`. Raises GateauError where it is not given."""
    judge = config.evaluation.judge
    if judge is None:
        raise GateauError(
            f"evaluation.judge: {benchmark} is rated by a judge, and none is given. Give base_url and model of an "
            "OpenAI-compatible server, and the environment variable with its key"
        )
    return judge
