"""Make `variant/selected_subset`, `variant/training_mix` and `variant/checkpoint`: the experiment's models."""

import json
import shutil
from dataclasses import replace
from typing import Any

import polars as pl

from assets.selection import (
    RAW,
    candidates,
    choice,
    limit_figures,
    ranking_scores,
    rejects,
    unfilled,
    with_texts,
)
from assets.steps.step import Output, Step, makes_asset
from assets.steps.training_metadata import trained_model_metadata
from assets.trained_model import TrainingRequest, scratch_of, train_and_publish
from assets.training_mix import mix_statistics, selected_mix
from gateau_dagster import tables
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.evaluation.document_split import SPLIT
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.loadable import downloads
from gateau_dagster.pipeline.project import remove_old_models
from gateau_dagster.pipeline.training_assets import CHECKPOINT_FOLDER, mix_columns
from gateau_dagster.pipeline.variant_assets import IN_STORE, MIXES, SUBSETS, TRAINED
from gateau_dagster.pipeline.variant_configs import draws_lots, rule_reads, variant_config, variant_reads
from gateau_dagster.selection.combine import ranked_by_score
from gateau_dagster.selection.equal_amounts import equal_amount
from gateau_dagster.selection.per_document import LeftOut
from gateau_dagster.selection.rules import left_out
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import rows_digest
from gateau_dagster.storage.documents import (
    fetched_folder,
    finish_publishing,
    folder_stamp,
    publish_folder,
)
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.storage.training_record import read_training_log
from gateau_dagster.training.spec import CODE_VERSION as TRAINING_CODE_VERSION
from resources.models import ModelsResource
from resources.training import TrainingResource


@makes_asset
def variant_selected_subset(step: Step) -> None:
    """Choose the samples that each variant is trained on."""
    for output in step.in_turn():
        _select(output)


@makes_asset
def variant_training_mix(step: Step) -> None:
    """Tokenise these samples and the short conversations, in training order."""
    for output in step.in_turn():
        _mix(output)


@makes_asset
def variant_checkpoint(step: Step, models: ModelsResource, training: TrainingResource) -> None:
    """Train each variant that needs training, and record which model each variant is.

    Outdated models are removed before the first training.
    """
    made_room = False
    for output in step.in_turn():
        if output.variant.trained:
            models.release()
            if not made_room:
                output.metadata["removed_models"] = len(remove_old_models(output.state))
                made_room = True
            _train(output, training)
        elif output.variant.kind == CHECKPOINT:
            _single_run(output)
        else:
            _as_it_is(output)


def _select(output: Output) -> None:
    chosen, limited = _chosen(output)
    subset = pl.DataFrame(schema=tables.schema(tables.SELECTED_SUBSET))
    if chosen.height:
        subset = with_texts(output.state, chosen, output.progress)
    # The digest covers what training reads, as in selected_subset.
    content = rows_digest(subset.select("sample_id", "digest").sort("sample_id"))
    output.write(subset, rejects(output.state, output.asset, output.variant.name, limited), content=content)
    if limited is not None and limited.unfilled:
        output.context.log.warning(f"{output.variant.name}: {unfilled(limited)}")
    output.metadata |= limit_figures(limited)
    output.metadata["by_source"] = dict(subset.group_by("source").len().sort("len", descending=True).iter_rows())


def _chosen(output: Output) -> tuple[pl.DataFrame, LeftOut | None]:
    """Return `sample_id`, `score` and `rank`, and what was left out of the choice."""
    state, variant = output.state, output.variant
    if variant.kind == "full":
        return _all(output)
    if variant.kind != "selected":
        return pl.DataFrame(schema={"sample_id": pl.String()}), None
    config, section = variant_config(state.config, variant), state.config.variants
    assert section is not None
    if draws_lots(state.config, variant):
        method = chosen_methods(config)[config.selection.method]
        found = {asset: state.read(asset, [*columns]) for asset, columns in method.reads().items()}
        scores = ranked_by_score(method.scores(found))
    else:
        scores = ranking_scores(state, config)
    samples = candidates(state, rule_reads(state.config, variant), scores)
    rule = equal_amount(config.selection, section.equal, samples)
    chosen = choice(samples, scores, rule)
    return chosen, left_out(samples, rule, chosen["sample_id"].to_list())


def _all(output: Output) -> tuple[pl.DataFrame, LeftOut]:
    """Return every unreserved sample, one of each text, with score 0 and ranks in the order of ids."""
    reads = variant_reads(output.state.config, output.variant)
    samples = output.state.read(RAW, reads[RAW]).sort("sample_id")
    if SPLIT in reads:
        split = output.state.read(SPLIT, reads[SPLIT])
        samples = samples.join(split.filter("reserved"), on="sample_id", how="anti", maintain_order="left")
    samples = samples.with_columns(score=pl.lit(0.0), rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    every = RuleConfig(fraction=1.0, duplicates=output.state.config.selection.duplicates)
    scores = samples.select("sample_id", "score", "rank")
    chosen = choice(samples, scores, every)
    return chosen, replace(left_out(samples, every, chosen["sample_id"].to_list()), unfilled=0)


def _mix(output: Output) -> None:
    if not output.variant.trained:
        output.write(pl.DataFrame(schema=tables.schema(mix_columns(output.state.config))))
        return
    chosen = output.state.read(SUBSETS, partition=output.variant.name)
    config = variant_config(output.state.config, output.variant)
    mix, rejected, content = selected_mix(output.state, config, chosen, output.progress)
    output.write(mix, rejected, content=content)
    output.metadata |= mix_statistics(mix, drawn=False)


def _train(output: Output, training: TrainingResource) -> None:
    """Train the variant, unless another variant has trained on an equal mix under equal settings.

    The folder's name is the fingerprint of both.
    """
    state, config = output.state, variant_config(output.state.config, output.variant)
    folder, mix = f"{TRAINED}/{output.wanted.fingerprint}", f"{MIXES}/{output.variant.name}"
    wanted = TrainingRequest(
        folder=folder, mix=mix, model=config.training.model, training=config.training, scratch=folder
    )
    finish_publishing(state.store, folder)
    stamp = folder_stamp(state.store, folder) or _taken_from_single_run(output, folder)
    if stamp is None:
        stamp = train_and_publish(output.context, state, output.wanted, wanted, training, output.progress)
    shutil.rmtree(scratch_of(state, wanted), ignore_errors=True)  # the next training has a folder of its own
    _write(output, folder, mix, stamp)
    output.metadata |= trained_model_metadata(state, folder, mix, config.training)


def _taken_from_single_run(output: Output, folder: str) -> Stamp | None:
    """Copy the checkpoint of the single run to `folder` if its training was the same; return None otherwise.

    A copy is needed, since the single run may be replaced later.
    """
    store, wanted, made = output.state.store, output.wanted, output.state.stamp(CHECKPOINT_FOLDER, None)
    if made is None:
        return None
    same = {"training_mix" if name == MIXES else name: version for name, version in wanted.inputs["upstream"].items()}
    inputs = {"code": TRAINING_CODE_VERSION, "settings": wanted.inputs["settings"], "upstream": same}
    if json.dumps(made.inputs, sort_keys=True) != json.dumps(inputs, sort_keys=True):
        return None
    copy = output.state.config.work_folder / "training" / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(fetched_folder(store, CHECKPOINT_FOLDER, downloads(output.state)), copy)
    stamp = Stamp(fingerprint=wanted.fingerprint, inputs=wanted.inputs, content=made.content, files=made.files)
    publish_folder(store, copy, folder, stamp)
    output.metadata["same_as"] = CHECKPOINT_FOLDER
    return stamp


def _single_run(output: Output) -> None:
    stamp = output.state.stamp(CHECKPOINT_FOLDER, None)
    assert stamp is not None, "it is upstream"
    _write(output, CHECKPOINT_FOLDER, "training_mix", stamp)


def _write(output: Output, folder: str, mix: str, stamp: Stamp) -> None:
    """Write the row of a model that was trained here; `stamp`: of its folder."""
    long = output.state.store.read(mix, columns=["sample_id", "origin"]).filter(pl.col("origin") == "long")
    log = read_training_log(output.state.store, folder)
    row: dict[str, Any] = {
        "model": f"{IN_STORE}{folder}",
        "samples": long["sample_id"].n_unique(),
        "tokens": log[-1]["tokens"] if log else None,
        "seconds": _seconds(log),
    }
    output.write(pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT)), content=stamp.content)


def _seconds(log: list[dict[str, Any]]) -> float | None:
    """Return the seconds of all steps, restarts included: the tokens of each step divided by its rate."""
    before = [0, *(metrics["tokens"] for metrics in log)]
    each = [
        (metrics["tokens"] - done) / metrics["tokens_per_second"]
        for done, metrics in zip(before, log, strict=False)
        if metrics["tokens_per_second"] > 0
    ]
    return sum(each) if each else None


def _as_it_is(output: Output) -> None:
    """Write the row of a model that is not trained here."""
    config, other = output.state.config, output.variant.other
    assert other is not None or output.variant.kind == BASE
    path = config.models[config.training.model].path if other is None else other.path
    row = {"model": path, "samples": None, "tokens": None, "seconds": None}
    made_from = {name: output.wanted.inputs[name] for name in ("settings", "upstream")}
    table = pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT))
    output.write(table, content=fingerprint(made_from))
