"""A process that judges, to be killed: `python -m tests.features.evaluation.judging_process <server> <folder>`."""

import sys
from pathlib import Path

from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.judging.judge_answers import (
    JudgmentRequest,
    answers_by_question,
    judge_answers,
    wanted_judgments,
)
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files
from tests.features.evaluation.builders import answers
from tests.features.evaluation.judges import JUDGED, question, settings

QUESTIONS, CONCURRENT = 60, 3
TABLE = "table.parquet"


def wanted() -> list[JudgmentRequest]:
    names = [f"q{number:02d}" for number in range(QUESTIONS)]
    given = answers({name: ["x", "y"] for name in names})
    return wanted_judgments([question(name, turns=2) for name in names], answers_by_question(given), JUDGED, settings())


def main(server: str, folder: str) -> None:
    config = settings(base_url=server, concurrency=CONCURRENT)
    judged = judge_answers(
        wanted(), JUDGED.parse, JudgeResource().judge(config), Replies(Files(folder), config.model), config, again=1
    )
    judged.table.drop("seconds").write_parquet(Path(folder) / TABLE)


if __name__ == "__main__":
    main(*sys.argv[1:])
