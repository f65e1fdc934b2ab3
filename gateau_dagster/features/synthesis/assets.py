"""Make the synthetic samples: `synthetic/passages`, `/questions`, `/contexts`, `/checks` and `synthetic_long_sft`."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import polars as pl

from gateau_dagster.assets.steps.metadata import source_chart
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.assets.training_mix import mix_tokenizer
from gateau_dagster.execution.row_checkpoints import RowCheckpoints
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.features.evaluation.assets.benchmarks import materials
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.contamination import AskedTexts
from gateau_dagster.features.evaluation.generation.answering import partly_read_answers
from gateau_dagster.features.evaluation.judging.asking import cost_sentence
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.evaluation.registry import asking_benchmarks
from gateau_dagster.features.evaluation.server_client import partly_read
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import (
    CHECKED,
    CHECKS_CODE_VERSION,
    NO_REPLY,
    Checking,
    FigureDigests,
    Given,
    Score,
    accepted_samples,
    answer_probabilities,
    near_end,
    same_by_judge,
)
from gateau_dagster.features.synthesis.checks import documents_of, lost_documents
from gateau_dagster.features.synthesis.config import section_of
from gateau_dagster.features.synthesis.contexts import contexts
from gateau_dagster.features.synthesis.declarations import (
    LONG,
    comparing_judge,
    document_number,
    figure_digests,
    near_tokens,
)
from gateau_dagster.features.synthesis.forecast import (
    SynthesisYield,
    check_generator,
    planned_requests,
    question_requests,
    remember_yield,
)
from gateau_dagster.features.synthesis.passages import PASSAGES, candidates, quota
from gateau_dagster.features.synthesis.questions import Generating, questions, with_unread
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.tables import schema


@makes_asset
def synthetic_passages(step: Step, models: ModelsResource) -> None:
    """Choose passages of each stale shard of documents."""
    if not step.stale:
        return
    state, options = step.state, section_of(step.state.config)
    asked = asked_texts(state, models, step.progress)
    for done, output in enumerate(step.in_turn(), start=1):
        number = shard_number(output)
        rows = candidates(documents_of(state).documents(number), options, quota(options, number), asked)
        rejected = rejected_frame(documents_of(state).rejected(number))
        output.write(pl.DataFrame(rows, schema=schema(PASSAGES), orient="row"), rejected, computed=len(rows))
        output.metadata |= {
            "documents": documents_of(state).shard(number).height,
            "candidates": len(rows),
            "kinds": dict(Counter(row["kind"] for row in rows)),
        }
        step.progress(done, len(step.stale), "shards")
    for warning in lost_documents(state):
        step.log.warning(warning)


@makes_asset
def synthetic_questions(step: Step, judge: JudgeResource) -> None:
    """Ask the generator about the passages, shard by shard; reuse kept replies."""
    if not step.stale:
        return
    state, options = step.state, section_of(step.state.config)
    check_generator(state, planned_requests(state, asking=[str(output.partition) for output in step.stale]))
    generating = generator(state, judge, step.progress)
    for output in step.in_turn():
        documents = partial(documents_of(state).documents, shard_number(output))
        before = generating.paid
        rows = state.store.read(PASSAGES_TABLE, output.partition).to_dicts()
        table, unanswered = questions(rows, documents, generating, options)
        table = with_unread(table, generating.partly_read)
        output.write(
            table, rejected_frame(unanswered), absent=[each.sample_id for each in unanswered], computed=len(rows)
        )
        output.metadata |= {
            "paid": cost_sentence(options.generator, generating.paid - before),
            "faults": dict(Counter(table["fault"].to_list())),
        }
        output.warn("partly_read", partly_read_answers(table, at_least=True))


@makes_asset
def synthetic_contexts(step: Step, models: ModelsResource) -> None:
    """Build the long contexts, shard by shard."""
    if not step.stale:
        return
    state, tokenizer = step.state, mix_tokenizer(step.state, LONG, step.progress)
    of_benchmarks = asked_texts(state, models, step.progress)
    for done, output in enumerate(step.in_turn(), start=1):
        asked = state.store.read(QUESTIONS_TABLE, output.partition)
        documents = documents_of(state).documents(shard_number(output))
        output.write(contexts(asked, documents, tokenizer, section_of(state.config), of_benchmarks))
        step.progress(done, len(step.stale), "shards")


@makes_asset
def synthetic_checks(step: Step, models: ModelsResource, judge: JudgeResource) -> None:
    """Check the candidates, shard by shard; keep the figures of unchanged ones."""
    if not step.stale:
        return
    state = step.state
    check_generator(state, planned_requests(state, checking={str(output.partition): True for output in step.stale}))
    checking = checking_of(state, models, judge, step.progress)
    for output in step.in_turn():
        shard, unfinished = output.partition, unfinished_checks(output)
        before = [unfinished.load()]
        if state.store.stamp(CHECKS_TABLE, shard) is not None:
            before.append(state.store.read(CHECKS_TABLE, shard))
        asked, built = (state.store.read(asset, shard) for asset in (QUESTIONS_TABLE, CONTEXTS_TABLE))
        paid = checking.generating.paid
        try:
            table = checking.table(asked, built, pl.concat(before), unfinished)
        finally:
            unfinished.close()
        absent = sorted(checking.unanswered)
        output.write(table, checking.rejected(), absent=absent, computed=asked.height)
        if not absent:  # the table lacks the others, whose figures the next try needs
            unfinished.remove()
        checking.unanswered.clear()
        counts = checking.generating.partly_read
        output.warn("partly_read", partly_read(asked.height, [*counts.values()], at_least=True))
        counts.clear()
        output.metadata |= {
            "accepted": int(table["accepted"].sum()),
            "reasons": dict(Counter(table.filter(~pl.col("accepted"))["reason"].to_list())),
            "paid": cost_sentence(section_of(state.config).generator, checking.generating.paid - paid),
        }


@makes_asset
def synthetic_long_sft(step: Step) -> None:
    """Write the accepted samples, shard by shard."""
    for output in step.in_turn():
        tables = (QUESTIONS_TABLE, CONTEXTS_TABLE, CHECKS_TABLE)
        table = accepted_samples(*(step.state.store.read(asset, output.partition) for asset in tables))
        output.write(table)
        output.metadata["sources"] = source_chart(table["source"], "samples")


def tried(
    state: State, models: ModelsResource, judge: JudgeResource, progress: Progress, count: int
) -> tuple[SynthesisYield, pl.DataFrame]:
    """Write and check candidates about the first `count` documents, and return the yield and CHECKED with its texts.

    The table has the columns of QUESTIONS, too, and `reply` of candidates whose reply cannot be read. Candidates
    without a reply have the reason `no reply`, and why in `detail`.

    Nothing but the generator's replies is stored, so that `gateau run` does not pay for them again. The cache keeps the
    yield for `gateau plan`.

    Raises:
        GateauError: theta_B is still to be made; or as the generator and the checks do.
    """
    options, index = section_of(state.config), documents_of(state)
    if options.is_verified:
        model_version(state, LONG)  # a model that is still to be made ends the trial before anything is paid
    ids = sorted(index.table["document"].drop_nulls())
    chosen = {*ids[:count]}
    numbers = sorted(
        {number for number in range(options.shards) if not chosen.isdisjoint(index.shard(number)["document"])}
    )
    texts = [each for number in numbers for each in index.documents(number) if each.name in chosen]
    most = max(len(texts), math.ceil(options.count * len(texts) / max(1, len(ids))))
    of_benchmarks = asked_texts(state, models, progress)
    rows = candidates(iter(texts), options, most, of_benchmarks)
    generating = generator(state, judge, progress)
    asking = question_requests(rows, lambda: iter(texts), options, generating.replies)
    check_generator(state, planned_requests(state, asking))
    asked, lost = questions(rows, lambda: iter(texts), generating, options)
    built = contexts(asked, texts, mix_tokenizer(state, LONG, progress), options, of_benchmarks)
    checking = checking_of(state, models, judge, progress)
    checked = checking.table(asked, built)
    found = SynthesisYield.of(checked)
    remember_yield(state, found)
    unanswered = {each.sample_id: each.reason for each in lost} | checking.unanswered
    kinds = {row["sample_id"]: row["kind"] for row in rows}
    without = [
        {"sample_id": name, "kind": kinds[name], "accepted": False, "reason": NO_REPLY, "detail": why}
        for name, why in sorted(unanswered.items())
    ]
    every = pl.concat([checked, pl.DataFrame(without, schema=schema(CHECKED), orient="row")])
    replies = pl.DataFrame(
        [*generating.unread.items()], schema={"sample_id": pl.String, "reply": pl.String}, orient="row"
    )
    asked = with_unread(asked, generating.partly_read)
    written = asked.select("sample_id", *(name for name in asked.columns if name not in every.columns))
    return found, every.join(written, on="sample_id", how="left").join(replies, on="sample_id", how="left")


def asked_texts(state: State, models: ModelsResource, progress: Progress) -> list[AskedTexts]:
    """Return the questions of benchmarks, which no passage may hold."""
    return [
        AskedTexts.of(chosen.questions(materials(state, PASSAGES_TABLE, models, progress)))
        for chosen in asking_benchmarks(state.config).values()
    ]


def shard_number(output: Output) -> int:
    """Return the number of the output's shard of documents."""
    return document_number(str(output.partition))


def unfinished_checks(output: Output) -> RowCheckpoints:
    """Return the figures of theta_B that are kept beside the table: of a run that has ended, of unanswered candidates.

    Each figure has a digest of what it was computed from, so that they are kept whatever the settings are.
    """
    scorer = fingerprint({"code": CHECKS_CODE_VERSION})
    return RowCheckpoints(output.state.store, CHECKS_TABLE, str(output.partition), scorer, schema(CHECKED))


def generator(state: State, judge: JudgeResource, progress: Progress) -> Generating:
    """Return the generator with its kept replies."""
    settings = section_of(state.config).generator
    replies = Replies(state.store.files, settings.model, settings.replies_folder)
    return Generating(settings=settings, judge=judge.judge(settings), replies=replies, progress=progress)


def checking_of(state: State, models: ModelsResource, judge: JudgeResource, progress: Progress) -> Checking:
    """Return the means of the checks; theta_B is loaded when a figure has to be computed."""
    config, options = state.config, section_of(state.config)
    tokenizer = mix_tokenizer(state, LONG, progress)
    judging, same = comparing_judge(config), None
    if judging is not None:
        same = partial(same_by_judge, judging, judge.judge(judging), Replies(state.store.files, judging.model))
    return Checking(
        checks=options.checks if options.is_verified else None,
        score=scoring(state, models, progress),
        near_end=partial(near_end, tokenizer, near_tokens(config)),
        generating=generator(state, judge, progress),
        same=same,
        scorer=figure_digests(config, state.observed, model_version(state, LONG))
        if options.is_verified
        else FigureDigests(),
    )


def scoring(state: State, models: ModelsResource, progress: Progress) -> Score:
    """Return a function that computes the probabilities of answers by theta_B."""

    def score(given: Sequence[Given]) -> Iterator[Any]:
        from gateau_dagster.models.loading import effective_max_length

        config = state.config
        prepare_inputs(config, "models", progress)
        section = loadable_model(state, LONG)
        loaded = models.load(config, section, version=model_version(state, LONG))
        longest = effective_max_length(loaded, section, config.scoring)
        found = answer_probabilities(loaded, given, config.scoring, max_length=longest)
        for done, each in enumerate(found, start=1):
            progress(done, len(given), "answers", "theta_B reads")
            yield each

    return score
