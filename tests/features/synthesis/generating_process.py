"""Ask a generator about all passages, and again for the checks, in a process that a test kills."""

from pathlib import Path

import polars as pl

from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.synthesis.candidate_checks import Checking
from gateau_dagster.features.synthesis.config import GeneratorConfig, SynthesisChecksConfig
from gateau_dagster.features.synthesis.contexts import contexts
from gateau_dagster.features.synthesis.passages import candidates
from gateau_dagster.features.synthesis.questions import Generating, questions
from gateau_dagster.storage.files import Files
from tests.features.synthesis.test_passages import documents, options

COUNT = 60
# The checks by asking alone; theta_B asks nobody.
ASKING = SynthesisChecksConfig(closed_book=None, near_only=None, needed=None, robust=None, ask_without_context=True)


def main(address: str, folder: str) -> None:
    """Write into a file how many candidates there are, how many are accepted, and what was paid in this process."""
    settings = GeneratorConfig(base_url=address, model="scripted", key=None, concurrency=1)
    chosen, given = options(count=COUNT, lengths={1024: 1.0}), documents(6)
    rows = candidates(iter(given), chosen, COUNT)
    replies = Replies(Files(folder), settings.model, settings.replies_folder)
    generating = Generating(settings=settings, judge=JudgeResource().judge(settings), replies=replies)
    table, lost = questions(rows, lambda: iter(given), generating, chosen)
    assert not lost
    built = contexts(table, given, build_tokenizer(4096), chosen)
    checking = Checking(checks=ASKING, score=lambda given: iter(()), near_end=str, generating=generating)
    checked = checking.table(table, built)
    assert not checking.unanswered
    accepted = checked.filter(pl.col("accepted")).height
    Path(folder, "said").write_text(f"{checked.height} {accepted} {generating.paid.requests}")
