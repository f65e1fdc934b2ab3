"""Find what benchmarks lost: questions without an answer or a value, cut prompts, empty answers, open thoughts.

Also tell what a finished experiment shows of earlier forecasts.
"""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from gateau_dagster.config.inputs import NOTABLE_REJECTS
from gateau_dagster.data.rejects import rejects_among
from gateau_dagster.features.evaluation import ANSWERS, JUDGMENTS, SCORES
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.experiment_values import finished_experiment, forecasts_and_outcomes
from gateau_dagster.features.evaluation.generation.answering import partly_read_answers
from gateau_dagster.features.evaluation.grading import thoughts_sentence, unfinished_thoughts
from gateau_dagster.features.evaluation.judging.judge_answers import partly_read_judgments
from gateau_dagster.pipeline.losses import DataLoss, Truncation, truncation_among
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.selection.forecast import Slopes
from gateau_dagster.tables import UNREAD


def losses(state: State, asset: str) -> Iterator[DataLoss]:
    """Yield the losses of a benchmark's answers, judgments or scores, model by model; other assets lose none here.

    A comparison leaves out every question that one of the models lacks. A question with an answer and no value counts
    in `scores`; a question without an answer counts in `answers`.
    """
    family, _, benchmark = asset.partition("/")
    if family not in {ANSWERS, JUDGMENTS, SCORES}:
        return
    stamps = state.table_stamps((asset, name) for name in state.pipeline.partitions(asset))
    for name in (name for (_, name), stamp in stamps.items() if name is not None and stamp is not None):
        place = f"{asset}[{name}]"
        if family == JUDGMENTS:
            judgments = state.store.read(asset, name, ["prompt", "prompt_tokens", "requests"])
            yield from _partly_read(place, partly_read_judgments(judgments))
            continue
        rejected = state.store.read_rejected(asset, [name])
        given = state.store.read(asset, name, ["question_id"])["question_id"].n_unique() + rejected.height
        answers = f"{ANSWERS}/{benchmark}"
        if family == SCORES and answers in state.pipeline.by_key:
            unanswered = state.store.read_rejected(answers, [name])
            rejected = rejected.join(unanswered, on="sample_id", how="anti")
        if (rejects := rejects_among(rejected, given)).count:
            yield DataLoss(asset=place, sentence=rejects.sentence("question"), notable=rejects.notable)
        if family == ANSWERS:
            if (cut := _cut_prompts(state, asset, name)).cut:
                yield DataLoss(asset=place, sentence=cut.sentence(), notable=cut.notable, intended=cut.intended)
            if UNREAD.name in state.store.columns(asset, name):
                counts = state.store.read(asset, name, ["prompt_tokens", UNREAD.name])
                yield from _partly_read(place, partly_read_answers(counts))
            yield from _empty_answers(state, asset, name)
            yield from _thoughts(state, asset, name)


def _partly_read(place: str, sentence: str) -> Iterator[DataLoss]:
    # By the server's own count. Its replies count as they are.
    if sentence:
        yield DataLoss(asset=place, sentence=sentence, notable=True)


def _empty_answers(state: State, key: str, variant: str) -> Iterator[DataLoss]:
    """Yield the loss for empty answers, from a filter or from a model that spent its tokens on reasoning. They are
    graded like any other answer.
    """
    texts = state.store.read(key, variant, ["answer"])["answer"]
    if empty := int((texts.str.strip_chars() == "").sum()):
        share = empty / texts.len()
        sentence = f"{empty:,} of {plural(texts.len(), 'answer')} empty ({percentage(share)}): graded as they are"
        yield DataLoss(asset=f"{key}[{variant}]", sentence=sentence, notable=share > NOTABLE_REJECTS)


def _thoughts(state: State, key: str, variant: str) -> Iterator[DataLoss]:
    texts, thoughts = state.store.read(key, variant, ["answer"])["answer"], evaluation_of(state.config).thoughts
    if sentence := thoughts_sentence(texts, thoughts):
        notable = thoughts == "keep" or unfinished_thoughts(texts) > NOTABLE_REJECTS * texts.len()
        yield DataLoss(asset=f"{key}[{variant}]", sentence=sentence, notable=notable)


def _cut_prompts(state: State, key: str, variant: str) -> Truncation:
    """Return the truncation in the middle of the prompts of tables.ANSWERS."""
    asked, most = evaluation_of(state.config).input_length, state.config.scoring.max_length
    limit = f"scoring.max_length is {most:,}" if asked is None else f"evaluation.input_length is {asked:,}"
    prompts = state.store.read(key, variant, ["prompt_tokens", "cut_tokens"])
    # A server may not report the length of a prompt; a prompt that was cut has the greatest length.
    told = (pl.col("prompt_tokens") > 0) | (pl.col("cut_tokens") == 0)
    kept = prompts.select(pl.when(told).then("prompt_tokens").otherwise(asked or most)).to_series()
    found = truncation_among(kept, prompts["cut_tokens"], limit=limit, intended=asked is not None)
    return replace(found, nouns=("prompt", "tokens"))


def learned(state: State, depends: pl.DataFrame) -> tuple[list[str], Slopes] | None:
    """Return a sentence per earlier forecast beside its outcome, and the slopes; None without a finished experiment."""
    experiment = finished_experiment(state)
    if experiment is None:
        return None
    outcomes, slopes = forecasts_and_outcomes(state, experiment, depends)
    return [sentence for outcome in outcomes for sentence in outcome.lines], slopes
