"""What a configuration has to hold for a benchmark that asks a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from gateau_dagster.config import Config


def check_judge(config: Config, benchmark: str) -> None:
    """Raises GateauError without `evaluation.judge`."""
    if config.evaluation.judge is None:
        raise GateauError(
            f"evaluation.judge: {benchmark} is rated by a judge, and none is given. Give base_url and model of an "
            "OpenAI-compatible server, and the environment variable with its key"
        )
