"""Make the assets `answers/<benchmark>`: each variant's answers to a benchmark's questions."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import dagster as dg
import polars as pl

from assets.steps.compared_models import located_variant, placed_variant
from assets.steps.definition import makes_asset
from assets.steps.metadata import first_histogram
from assets.steps.partitioned_step import Event
from assets.steps.step_questions import StepQuestions
from assets.steps.variant_step import VariantStep, variant_events
from gateau_dagster.evaluation.generation.answering import answer_scorer, template_of
from gateau_dagster.execution.answer_rows import answer_questions
from gateau_dagster.pipeline.variant_assets import CHECKPOINTS, shared_answers
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource
from resources.pools.registry import chosen_pool

if TYPE_CHECKING:
    from gateau_dagster.evaluation.generation.answering import Engine


@makes_asset
def benchmark_answers(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Iterator[Event]:
    """Ask each stale variant the questions that it has not answered yet; load no model if all answers are kept."""
    asked = StepQuestions(models)
    yield from variant_events(context, configuration, lambda step: _answer(step, asked, models))


def _answer(step: VariantStep, asked: StepQuestions, models: ModelsResource) -> None:
    model, trained_here = step.wanted.inputs["upstream"][CHECKPOINTS], step.variant.other is None
    frame = step.state.variant_frame(step.variant.name)
    scorer = answer_scorer(step.state.config, model, trained_here=trained_here, frame=frame)
    step.wanted = replace(step.wanted, scorer=scorer)
    with ExitStack() as opened:
        found = answer_questions(
            step.state.store,
            step.asset,
            step.variant.name,
            scorer=scorer,
            questions=asked.questions(step),
            engine=cache(lambda: opened.enter_context(_engine(step, models))),
            write=partial(_write, step),
            progress=step.progress,
            shared=shared_answers(step.state.config, asked.chosen(step)),
        )
    step.metadata |= {"answered": len(found.made), "kept": len(found.kept)}


def _template(step: VariantStep) -> str:
    return template_of(step.state.config, trained_here=step.variant.other is None)


@contextmanager
def _engine(step: VariantStep, models: ModelsResource) -> "Iterator[Engine]":
    """Yield the configured server, the workers of its pool, or an engine in this process.

    Raises:
        GateauError, TransientError: the model cannot be loaded, or the server or the pool does not answer.
    """
    config, template = step.state.config, _template(step)
    answers = chosen_pool(config).answers
    if config.evaluation.engine is not None or answers is None:
        yield _engine_here(step, models)
        return
    models.release()  # frees memory for other processes
    placed = placed_variant(step.state, step.variant.name)
    with answers(config, placed, template, step.context.log.warning) as engine:
        yield engine


def _engine_here(step: VariantStep, models: ModelsResource) -> "Engine":
    from gateau_dagster.evaluation.generation.in_process import InProcess
    from gateau_dagster.evaluation.generation.prompts import PromptBuilder
    from gateau_dagster.evaluation.generation.server import Server
    from gateau_dagster.models.loading import load_tokenizer

    config, template = step.state.config, _template(step)
    section, version = located_variant(step.state, step.variant.name)
    lengths = {"max_length": config.scoring.max_length, "input_length": config.evaluation.input_length}
    if config.evaluation.engine is not None:
        tokenizer = load_tokenizer(section, folder=config.folder)
        prompts = PromptBuilder(tokenizer=tokenizer, template=template, **lengths)
        return Server(config.evaluation.engine, step.variant.name, prompts)
    loaded = models.load(config, section, version=version)
    prompts = PromptBuilder(tokenizer=loaded.tokenizer, template=template, **lengths)
    return InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)


def _write(
    step: VariantStep, table: pl.DataFrame, rejected: pl.DataFrame, content: str, unanswered: Sequence[str]
) -> None:
    step.write(table, rejected, content=content, absent=unanswered)
    cut = pl.col("cut_tokens") > 0
    figures = table.select(
        answer_tokens=pl.col("answer_tokens").sum(),
        prompt_tokens=pl.col("prompt_tokens").sum(),
        cut=cut.sum(),
        ended_by_length=(pl.col("finish_reason") == "length").sum(),
        seconds=pl.col("seconds").sum(),
    )
    step.metadata |= figures.row(0, named=True) | first_histogram(table)
