"""Measure models: `answers/<benchmark>`, `scores/<benchmark>` and `evaluation/<benchmark>`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import amounts_chart, figures_metadata, first_histogram
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.config import ModelConfig
from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.data.sample import Sample
from gateau_dagster.execution.row_checkpoints import RowCheckpoints, rows_frame
from gateau_dagster.execution.shard_tables import rejected_frame, samples_of
from gateau_dagster.features.evaluation import ANSWERS, JUDGMENTS
from gateau_dagster.features.evaluation.assets.answering import pool_answers
from gateau_dagster.features.evaluation.benchmark import (
    MODELS,
    Benchmark,
    Materials,
    Measured,
    MeasuredBenchmark,
    Question,
    QuestionBenchmark,
    check_compared,
)
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.generation.answering import (
    AnsweringResult,
    Engine,
    Row,
    answer_all,
    answer_scorer,
    partly_read_answers,
    template_of,
)
from gateau_dagster.features.evaluation.grading import graded_answers, thoughts_sentence
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import FAMILY, compared_benchmarks, scored_benchmarks, shared_answers
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.loadable import Placed, downloads, fetched_model, loadable_model, placed_model
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, IN_STORE
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress, TimedProgress
from gateau_dagster.readable import PageAmount, PageChart
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.storage import Store
from gateau_dagster.storage.content import frame_digest
from gateau_dagster.storage.store import DamagedTableError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel


def materials(state: State, asset: str, models: ModelsResource, progress: Progress) -> Materials:
    """Return the tables that a benchmark may read for this asset, and the models that it compares."""
    return Materials(
        config=state.config,
        reads=state.asset(asset).reads,
        shards=partial(_shards, state),
        samples=partial(_samples, state),
        model=partial(compared_model, state, models),
        progress=progress,
        only_tokenizer=partial(_tokenizer, state),
    )


def _tokenizer(state: State, name: str) -> "PreTrainedTokenizerBase":
    from gateau_dagster.models.loading import load_tokenizer

    section, _ = located_variant(state, name)
    return load_tokenizer(section, folder=state.config.folder)


def _shards(state: State, asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    for part in state.pipeline.partitions(asset):
        yield state.store.read(asset, part, list(columns))


def _samples(state: State, ids: Collection[str]) -> list[Sample]:
    # One shard at a time, so that other texts do not stay in memory.
    wanted = pl.DataFrame({"sample_id": list(ids)}, schema={"sample_id": pl.String()})
    found = [state.store.read_rows("raw_long_sft", shard, wanted) for shard in state.shards]
    # `conversation` is only in shards that have conversations.
    return list(samples_of(pl.concat(found, how="diagonal").sort("sample_id")))


def asked_questions(step: Step, models: ModelsResource) -> Sequence[Question]:
    """Return the questions of the step's benchmark, which are the same for every variant.

    Raises:
        GateauError: the questions cannot be read.
    """
    (asset,) = step.assets
    chosen = scored_benchmarks(step.state.config)[asset.split("/", maxsplit=1)[1]]
    assert isinstance(chosen, QuestionBenchmark), "another benchmark has no such asset"
    return chosen.questions(materials(step.state, asset, models, step.progress))


def compared_model(state: State, models: ModelsResource, name: str) -> "LoadedModel":
    """Load a variant's model. base: the model that training starts from; checkpoint: the result of the single run.

    Raises:
        GateauError, TransientError: the model cannot be fetched or loaded, or its files are damaged.
    """
    section, version = located_variant(state, name)
    return models.load(state.config, section, version=version)


def located_variant(state: State, name: str) -> tuple[ModelConfig, str]:
    """Return where a variant's model can be loaded from, and its version; raise the errors of `compared_model`."""
    placed = placed_variant(state, name)
    if name == BASE:
        return loadable_model(state, state.config.training.model), placed.version
    return fetched_model(state.store, placed, downloads(state)), placed.version


def placed_variant(state: State, name: str) -> Placed:
    """Return a variant's model in a form that is valid on every machine."""
    config, trained = state.config, state.config.training.model
    if name == BASE:
        prepare_inputs(config, "models", state.progress)
        return placed_model(state, trained)
    if name == CHECKPOINT:  # there is no table of variants where nothing else is compared
        model, stamp = CHECKPOINT_FOLDER, state.stamp(CHECKPOINT_FOLDER, None)
    else:
        model, stamp = state.store.read(CHECKPOINTS, name)["model"].item(), state.stamp(CHECKPOINTS, name)
    version, other = "" if stamp is None else stamp.content, config.variant_set[name].other
    if other is not None:
        return Placed(section=other.model, version=version, place=f"variants.also.{name}")
    folder = model.removeprefix(IN_STORE)
    code = any(config.models[each].trust_remote_code for each in (trained, config.origin(trained)))
    return Placed(section=ModelConfig(path=folder, trust_remote_code=code), version=version, stored=folder)


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
    schema = tables.schema((*tables.ANSWERS, tables.UNREAD))
    saved = RowCheckpoints(store, asset, partition, scorer, schema)
    made = (_previous(store, each, partition, scorer) for each in (*shared, asset))
    before = pl.concat([pl.DataFrame(schema=schema), saved.load(), *made], how="diagonal").to_dicts()

    def save(rows: Sequence[Row]) -> None:
        for row in rows:
            saved.add(row)
        saved.save()

    try:
        found = answer_all(questions, before, engine, save=save, progress=progress)
    finally:
        saved.close()
    table = tables.without_unread(rows_frame([*found.kept, *found.made], schema).sort("question_id", "turn"))
    rejected = rejected_frame(found.rejected)
    table = table.join(rejected, left_on="question_id", right_on="sample_id", how="anti", maintain_order="left")
    unanswered = [each.sample_id for each in found.rejected if each.may_pass]
    write(table, rejected, frame_digest(table.drop("seconds")), unanswered)
    saved.remove()
    return found


def _previous(store: Store, asset: str, partition: str, scorer: str) -> pl.DataFrame:
    stamp = store.stamp(asset, partition)
    if stamp is not None and stamp.scorer == scorer:
        with suppress(DamagedTableError):  # its content is answered again
            return store.read(asset, partition)
    return pl.DataFrame(schema=tables.schema(tables.ANSWERS))


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
            write=partial(_write_answers, output),
            progress=output.progress,
            shared=shared_answers(output.state.config, output.name),
        )
    output.metadata |= {"answered": len(found.made), "kept": len(found.kept)}


@contextmanager
def _engine(output: Output, models: ModelsResource) -> Iterator[Engine]:
    """Yield the configured server, the workers of its pool, or an engine in this process.

    Raises:
        GateauError, TransientError: the model cannot be loaded, or the server or the pool does not answer.
    """
    config = output.state.config
    template, answers = template_of(config, trained_here=output.variant.other is None), pool_answers(config)
    if evaluation_of(config).engine is not None or answers is None:
        yield _engine_here(output, models, template)
        return
    models.release()  # frees memory for other processes
    placed = placed_variant(output.state, output.variant.name)
    with answers(config, placed, template, output.context.log.warning) as engine:
        yield engine


def _engine_here(output: Output, models: ModelsResource, template: str) -> Engine:
    from gateau_dagster.features.evaluation.generation.in_process import InProcess
    from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder
    from gateau_dagster.features.evaluation.generation.server import Server
    from gateau_dagster.models.loading import load_tokenizer

    config = output.state.config
    section, version = located_variant(output.state, output.variant.name)
    options = evaluation_of(config)
    lengths = {"max_length": config.scoring.max_length, "input_length": options.input_length}
    if options.engine is not None:
        tokenizer = load_tokenizer(section, folder=config.folder)
        prompts = PromptBuilder(tokenizer=tokenizer, template=template, **lengths)
        return Server(options.engine, output.variant.name, prompts, warn=output.context.log.warning)
    loaded = models.load(config, section, version=version)
    prompts = PromptBuilder(tokenizer=loaded.tokenizer, template=template, **lengths)
    return InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)


def _write_answers(
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
    output.warn("partly_read", partly_read_answers(table))


@makes_asset
def benchmark_scores(step: Step, models: ModelsResource) -> None:
    """Grade the answers of each stale variant, or measure the variant itself."""
    questions, kept = cache(partial(asked_questions, step, models)), dict[str, Any]()
    for output in step.in_turn():
        chosen = scored_benchmarks(step.state.config)[output.name]
        if isinstance(chosen, MeasuredBenchmark):
            given = materials(step.state, output.asset, models, output.progress)
            measured = chosen.measure(replace(given, kept=kept), output.variant.name)
        else:
            assert isinstance(chosen, QuestionBenchmark), "one of the two ways"
            measured = _graded(output, chosen, questions())
        _write_scores(output, chosen, measured)


def _write_scores(output: Output, chosen: Benchmark, measured: Measured) -> None:
    table = measured.table.select(tables.schema(tables.SCORES).names()).sort("question_id")
    assert table["question_id"].is_unique().all(), f"{output.asset}: a question has two values"
    unmeasured = [each.sample_id for each in measured.rejected if each.may_pass]
    output.write(table, rejected_frame(measured.rejected), absent=unmeasured)
    groups = table.group_by("group").agg(pl.col("value").mean()).sort("group")
    output.metadata |= {"questions": table.height, "unit": chosen.unit}
    amounts = [PageAmount(name=group, value=mean) for group, mean in groups.iter_rows()]
    output.metadata |= amounts_chart(PageChart(name=f"mean by group ({chosen.unit})", amounts=amounts))
    output.metadata["mean_by_group"] = dict(groups.iter_rows())


def _graded(output: Output, chosen: QuestionBenchmark, questions: Sequence[Question]) -> Measured:
    state, variant = output.state, output.variant.name
    answers, thoughts = state.read(f"{ANSWERS}/{chosen.name}", partition=variant), evaluation_of(state.config).thoughts
    if said := thoughts_sentence(answers["answer"], thoughts):
        output.metadata["thoughts"] = said
        output.context.log.info(f"{variant}: {said}")
    rated = isinstance(chosen, RatedBenchmark)
    judgments = state.read(f"{JUDGMENTS}/{chosen.name}", partition=variant) if rated else None
    return chosen.grade(questions, graded_answers(answers, thoughts), judgments)


@makes_asset
def evaluation(step: Step, models: ModelsResource) -> None:
    """Run one benchmark on the base model and the checkpoint."""
    for output in step.in_turn():
        chosen = compared_benchmarks(output.state.config)[output.asset.removeprefix(f"{FAMILY}/")]
        given = materials(output.state, output.asset, models, output.progress)
        compared = chosen.compare(measured_models(chosen, given))
        check_compared(chosen, compared)
        output.write(compared.table, rejected_frame(compared.rejected))
        section = chosen.section(compared.table)
        if section.chart is not None:
            output.metadata |= amounts_chart(section.chart)
        output.metadata |= figures_metadata({figure.name: figure.draw() for figure in section.figures})


def measured_models(chosen: MeasuredBenchmark, given: Materials) -> dict[str, Measured]:
    """Return the benchmark's measurements of MODELS, and report the progress of each as a part of the whole."""

    def measured(place: int) -> Measured:
        def progress(done: float, total: float | None, unit: str, note: str = "") -> None:
            whole = None if total is None else total * len(MODELS)
            given.progress(done + place * (total or 0), whole, unit, note)

        return chosen.measure(replace(given, progress=progress), MODELS[place])

    return {name: measured(place) for place, name in enumerate(MODELS)}
