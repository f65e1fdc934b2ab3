"""What each model lost of a benchmark: questions without an answer or a value, empty answers, and prompts cut short."""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from gateau_dagster.config.inputs import NOTABLE_REJECTS
from gateau_dagster.data.rejects import rejects_among
from gateau_dagster.evaluation.grading import thoughts_sentence, unfinished_thoughts
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.loss import Loss, Truncation, truncation_among
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_assets import ANSWERS, SCORES
from gateau_dagster.readable import percentage, plural


def benchmark_losses(state: State, asset: Asset) -> Iterator[Loss]:
    """Of `answers/<benchmark>` or `scores/<benchmark>`, model by model: a comparison leaves out what one of them lacks.

    Questions without a value count where they have an answer, those without one by their answers.
    """
    stamps = state.table_stamps((asset.key, name) for name in state.pipeline.partitions(asset.key))
    for (key, name), stamp in stamps.items():
        if name is None or stamp is None:
            continue
        place, answers = f"{key}[{name}]", f"{ANSWERS}/{key.split('/', maxsplit=1)[1]}"
        rejected = state.store.read_rejected(key, [name])
        given = state.store.read(key, name, ["question_id"])["question_id"].n_unique() + rejected.height
        if asset.family == SCORES and answers in state.pipeline.by_key:
            unanswered = state.store.read_rejected(answers, [name])
            rejected = rejected.join(unanswered, on="sample_id", how="anti")
        if (rejects := rejects_among(rejected, given)).count:
            yield Loss(asset=place, sentence=rejects.sentence("question"), notable=rejects.notable)
        if asset.family == ANSWERS:
            if (cut := _cut_prompts(state, key, name)).cut:
                yield Loss(asset=place, sentence=cut.sentence(), notable=cut.notable, intended=cut.intended)
            yield from _empty_answers(state, key, name)
            yield from _thoughts(state, key, name)


def _empty_answers(state: State, key: str, variant: str) -> Iterator[Loss]:
    """A filter's, or of a model that spent its tokens on reasoning; graded like any other."""
    texts = state.store.read(key, variant, ["answer"])["answer"]
    if empty := int((texts.str.strip_chars() == "").sum()):
        share = empty / texts.len()
        sentence = f"{empty:,} of {plural(texts.len(), 'answer')} empty ({percentage(share)}): graded as they are"
        yield Loss(asset=f"{key}[{variant}]", sentence=sentence, notable=share > NOTABLE_REJECTS)


def _thoughts(state: State, key: str, variant: str) -> Iterator[Loss]:
    texts, thoughts = state.store.read(key, variant, ["answer"])["answer"], state.config.evaluation.thoughts
    if sentence := thoughts_sentence(texts, thoughts):
        notable = thoughts == "keep" or unfinished_thoughts(texts) > NOTABLE_REJECTS * texts.len()
        yield Loss(asset=f"{key}[{variant}]", sentence=sentence, notable=notable)


def _cut_prompts(state: State, key: str, variant: str) -> Truncation:
    """What was cut out of the middle of the prompts of tables.ANSWERS."""
    asked, most = state.config.evaluation.input_length, state.config.scoring.max_length
    limit = f"scoring.max_length is {most:,}" if asked is None else f"evaluation.input_length is {asked:,}"
    prompts = state.store.read(key, variant, ["prompt_tokens", "cut_tokens"])
    # A server may not say how long a prompt was; one that was cut is as long as may be.
    told = (pl.col("prompt_tokens") > 0) | (pl.col("cut_tokens") == 0)
    kept = prompts.select(pl.when(told).then("prompt_tokens").otherwise(asked or most)).to_series()
    found = truncation_among(kept, prompts["cut_tokens"], limit=limit, intended=asked is not None)
    return replace(found, nouns=("prompt", "tokens"))
