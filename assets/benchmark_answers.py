"""Make the assets `answers/<benchmark>`: each variant's answers to a benchmark's questions."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.assets.steps.compared_models import asked_questions, located_variant, placed_variant
from gateau_dagster.assets.steps.metadata import first_histogram
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.generation.answering import answer_scorer, template_of
from gateau_dagster.execution.answer_rows import answer_questions
from gateau_dagster.pipeline.evaluation_assets import shared_answers
from gateau_dagster.pipeline.recipes import CHECKPOINTS
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.pools.pool import chosen_pool

if TYPE_CHECKING:
    from gateau_dagster.evaluation.generation.answering import Engine


@makes_asset
def benchmark_answers(step: Step, models: ModelsResource) -> None:
    """Ask each stale variant the questions that it has not answered yet; load no model if all answers are kept."""
    questions = cache(partial(asked_questions, step, models))
    for output in step.in_turn():
        _answer(output, questions(), models)


def _answer(output: Output, questions: Sequence[Question], models: ModelsResource) -> None:
    model, trained_here = output.wanted.inputs["upstream"][CHECKPOINTS], output.variant.other is None
    frame = output.state.variant_frame(output.variant.name)
    scorer = answer_scorer(output.state.config, model, trained_here=trained_here, frame=frame)
    output.wanted = replace(output.wanted, scorer=scorer)
    with ExitStack() as opened:
        found = answer_questions(
            output.state.store,
            output.asset,
            output.variant.name,
            scorer=scorer,
            questions=questions,
            engine=cache(lambda: opened.enter_context(_engine(output, models))),
            write=partial(_write, output),
            progress=output.progress,
            shared=shared_answers(output.state.config, output.name),
        )
    output.metadata |= {"answered": len(found.made), "kept": len(found.kept)}


def _template(output: Output) -> str:
    return template_of(output.state.config, trained_here=output.variant.other is None)


@contextmanager
def _engine(output: Output, models: ModelsResource) -> "Iterator[Engine]":
    """Yield the configured server, the workers of its pool, or an engine in this process.

    Raises:
        GateauError, TransientError: the model cannot be loaded, or the server or the pool does not answer.
    """
    config, template = output.state.config, _template(output)
    answers = chosen_pool(config).answers
    if config.evaluation.engine is not None or answers is None:
        yield _engine_here(output, models)
        return
    models.release()  # frees memory for other processes
    placed = placed_variant(output.state, output.variant.name)
    with answers(config, placed, template, output.context.log.warning) as engine:
        yield engine


def _engine_here(output: Output, models: ModelsResource) -> "Engine":
    from gateau_dagster.evaluation.generation.in_process import InProcess
    from gateau_dagster.evaluation.generation.prompts import PromptBuilder
    from gateau_dagster.evaluation.generation.server import Server
    from gateau_dagster.models.loading import load_tokenizer

    config, template = output.state.config, _template(output)
    section, version = located_variant(output.state, output.variant.name)
    lengths = {"max_length": config.scoring.max_length, "input_length": config.evaluation.input_length}
    if config.evaluation.engine is not None:
        tokenizer = load_tokenizer(section, folder=config.folder)
        prompts = PromptBuilder(tokenizer=tokenizer, template=template, **lengths)
        return Server(config.evaluation.engine, output.variant.name, prompts)
    loaded = models.load(config, section, version=version)
    prompts = PromptBuilder(tokenizer=loaded.tokenizer, template=template, **lengths)
    return InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)


def _write(
    output: Output, table: pl.DataFrame, rejected: pl.DataFrame, content: str, unanswered: Sequence[str]
) -> None:
    output.write(table, rejected, content=content, absent=unanswered)
    cut = pl.col("cut_tokens") > 0
    figures = table.select(
        answer_tokens=pl.col("answer_tokens").sum(),
        prompt_tokens=pl.col("prompt_tokens").sum(),
        cut=cut.sum(),
        ended_by_length=(pl.col("finish_reason") == "length").sum(),
        seconds=pl.col("seconds").sum(),
    )
    output.metadata |= figures.row(0, named=True) | first_histogram(table)
