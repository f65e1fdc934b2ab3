"""Bring a model's answers to a benchmark up to date; valid rows are kept, including those of a killed run."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import polars as pl

from gateau_dagster import tables
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.generation.answering import AnsweringResult, Engine, Row, answer_all
from gateau_dagster.execution.row_checkpoints import RowCheckpoints, rows_frame
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.progress import TimedProgress
from gateau_dagster.storage import Store
from gateau_dagster.storage.content import frame_digest
from gateau_dagster.storage.store import DamagedTableError

Write = Callable[[pl.DataFrame, pl.DataFrame, str, Sequence[str]], None]


def answer_questions(
    store: Store,
    asset: str,
    partition: str,
    *,
    scorer: str,
    questions: Sequence[Question],
    engine: Callable[[], Engine],
    write: Write,
    progress: TimedProgress,
    shared: Sequence[str] = (),
) -> AnsweringResult:
    """Ask the unanswered questions; each group of answers is stored before the next one is asked.

    Args:
        store: of the project.
        asset: of the answers.
        partition: of the asset.
        scorer: digest of the answering model and settings: other rows are not kept.
        questions: all of the benchmark.
        engine: called once there is something to ask.
        write: receives tables.ANSWERS by question and turn, the rejects, a content digest without timings, and the
            questions that other means may answer. A rejected question has no row.
        progress: receives questions.
        shared: other assets whose rows are kept like this one's.

    Raises:
        GateauError, TransientError: the engine or the store fails; earlier answers are saved.
    """
    schema = tables.schema(tables.ANSWERS)
    partial = RowCheckpoints(store, asset, partition, scorer, schema)
    made = (_previous(store, each, partition, scorer) for each in (*shared, asset))
    before = pl.concat([partial.load(), *made]).to_dicts()

    def save(rows: Sequence[Row]) -> None:
        for row in rows:
            partial.add(row)
        partial.save()

    try:
        found = answer_all(questions, before, engine, save=save, progress=progress)
    finally:
        partial.close()
    table = rows_frame([*found.kept, *found.made], schema).sort("question_id", "turn")
    rejected = rejected_frame(found.rejected)
    table = table.join(rejected, left_on="question_id", right_on="sample_id", how="anti", maintain_order="left")
    unanswered = [each.sample_id for each in found.rejected if each.may_pass]
    write(table, rejected, frame_digest(table.drop("seconds")), unanswered)
    partial.remove()
    return found


def _previous(store: Store, asset: str, partition: str, scorer: str) -> pl.DataFrame:
    stamp = store.stamp(asset, partition)
    if stamp is not None and stamp.scorer == scorer:
        with suppress(DamagedTableError):  # its content is answered again
            return store.read(asset, partition)
    return pl.DataFrame(schema=tables.schema(tables.ANSWERS))
