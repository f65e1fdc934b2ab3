"""Ask a generator about all passages in a process of its own, which a test kills: ADDRESS FOLDER."""

import sys

from gateau_dagster.config.synthesis import GeneratorConfig
from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.resources.judge import JudgeResource
from gateau_dagster.storage.files import Files
from gateau_dagster.synthesis.passages import candidates
from gateau_dagster.synthesis.questions import Generating, questions
from tests.synthesis.test_passages import documents, options

COUNT = 150


def main(address: str, folder: str) -> None:
    """Write how many candidates have a question, and what was paid in this process."""
    settings = GeneratorConfig(base_url=address, model="scripted", key=None, concurrency=1)
    chosen, given = options(count=COUNT), documents(6)
    rows = candidates(iter(given), chosen, COUNT)
    replies = Replies(Files(folder), settings.model, settings.replies_folder)
    generating = Generating(settings=settings, judge=JudgeResource().judge(settings), replies=replies)
    table, lost = questions(rows, lambda: iter(given), generating, chosen)
    sys.stdout.write(f"{table.height} {len(lost)} {generating.paid.requests}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
