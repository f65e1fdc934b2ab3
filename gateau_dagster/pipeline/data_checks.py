"""Check, before any model runs, whether the data suffice for selection and training, and the settings are plausible."""

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import psutil

from gateau_dagster.config import Config
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.config.values import MOST_ROWS
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import Sample, shard_keys
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.errors import GateauError, error_at
from gateau_dagster.models.model_config import learned_positions
from gateau_dagster.models.model_facts import facts_of, local_facts, short_window
from gateau_dagster.pipeline.model_checks import characters_a_token
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.recipes import recipes
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE_READS, has_evidence
from gateau_dagster.readable import nearest_name, percent, percentage, plural
from gateau_dagster.selection.rules import check_data, countable_samples, most_by_source, most_of_all
from gateau_dagster.storage import Store
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
from gateau_dagster.training.launch import training_command
from gateau_dagster.training.readiness import check_device, check_packages

_CHARACTERS = 4  # per token, about
_TOKEN_BYTES = 8  # per token of the mix in every rank: its id and its label
_WEIGHT_BYTES = 4  # the same where the mix has weights
_RANK_BYTES = 300 << 20  # per process that has imported torch
_FAR_ABOVE = 2  # as a factor


def check_training(config: Config, accepted: pl.DataFrame) -> None:
    """Check that the training can start, that this machine can hold it, and that the sources of its mix exist.

    Args:
        config: with `training`.
        accepted: the samples of the data, schema catalogue.ACCEPTED.

    Raises:
        GateauError: training cannot start, or a source, a package, a launcher or a device is missing.
    """
    if not config.training.enabled:
        return
    _check_launch(config)
    _check_positions(config)
    _check_model(config)
    check_sources(config, accepted)
    for each in (recipe.config for recipe in recipes(config)):
        _check_rows(each, accepted)
        _check_memory(each, accepted)


def _check_launch(config: Config) -> None:
    """Check everything that the training itself would check first, after all scoring."""
    training = config.training
    hosts = None if training.hostfile is None else config.folder / training.hostfile
    check_packages(training)
    several = training.deepspeed is not None
    training_command(
        Path(), processes=training.processes, deepspeed=several, launcher=training.launcher, hostfile=hosts
    )
    fa3 = training.attention == "fa3"
    if training.launcher is None and hosts is None and (training.dtype == "float16" or training.liger or fa3):
        import torch

        from gateau_dagster.models.devices import check_flash_attention_3

        cuda = torch.cuda.is_available()
        check_device(training, cuda=cuda)
        if fa3:
            check_flash_attention_3(torch.device("cuda" if cuda else "cpu"), key="training.attention")


def _check_positions(config: Config) -> None:
    training = config.training
    if training.positions is None or config.models[training.model].base is not None:
        return
    known = facts_of(config, training.model).config
    if known is None:
        return  # not on this machine yet: the training checks it
    from gateau_dagster.training.position_extension import extend_positions

    with error_at("training.positions"):
        extend_positions(copy.deepcopy(known), training.positions, name=config.models[training.model].path)


def _check_model(config: Config) -> None:
    """Check positions in the model's config.json; a model that is made here has those of its origin."""
    training = config.training
    agreed_deepspeed_config(training, folder=config.folder)  # raises
    facts = local_facts(config, training.model)
    if facts.window is not None and facts.window >= training.max_length:
        return  # learned positions suffice, too, and the checks below import transformers, which takes seconds
    known = facts.config
    if known is None:
        return  # not on this machine yet: the training checks it
    name = config.models[training.model].path
    positions = learned_positions(known)
    if positions is not None and positions < training.max_length:
        raise GateauError(
            "models.positions",
            f"training.max_length: {training.max_length:,} tokens are more than the {positions:,} learned positions "
            f"of {name} (models.{training.model}): set at most {positions:,}",
        )


def check_sources(config: Config, accepted: pl.DataFrame) -> None:
    """Raise GateauError if `training.mix.weights` names a source without samples; see `check_training`."""
    weights, chat = config.training.mix.weights, config.located_short_chat
    sources = set(accepted["source"].unique())
    if weights and chat is not None:
        sources = {*sources, *(file.stem for file in resolve_files(chat.path, config.folder))}
    unknown = sorted(set(weights) - set(sources))
    if unknown:
        meant = nearest_name(unknown[0], sorted(sources))
        raise GateauError("training.unknown_source", f"training.mix.weights: no sample is from {unknown[0]}; {meant}")


def _check_rows(config: Config, accepted: pl.DataFrame) -> None:
    training = config.training
    rows = training.epochs * chosen_share(config, accepted) * accepted.height
    if training.max_steps is None and rows > MOST_ROWS:
        raise GateauError(
            "training.too_many_rows",
            f"training.epochs: {training.epochs:,g} passes over the selected samples are about {rows:,.0f} rows. At "
            f"most {MOST_ROWS:,} can be planned: lower it",
        )


def _check_memory(config: Config, accepted: pl.DataFrame) -> None:
    """Check that every rank can hold the whole mix; skip ranks of a launcher or hostfile, maybe on other machines."""
    training, there = config.training, psutil.virtual_memory().total
    if training.launcher is not None or training.hostfile is not None:
        return
    tokens = _tokens(accepted, most=training.max_length) * chosen_share(config, accepted)
    each = _TOKEN_BYTES + (_WEIGHT_BYTES if training.weighs_in_mix else 0)
    wanted = training.processes * (_RANK_BYTES + each * tokens)
    if training.processes > 1 and wanted > there:
        raise GateauError(
            "machine.memory",
            f"training.processes: {training.processes:,} processes take about {wanted / 2**30:,.0f} GiB without their "
            f"models, but this machine has {there / 2**30:,.0f} GiB. Each process holds the mix (about {tokens:,.0f} "
            f"tokens of {each} bytes). Lower the number, or name other machines in training.hostfile",
        )


def _tokens(accepted: pl.DataFrame, *, most: int) -> float:
    return float((accepted["characters"] / _CHARACTERS).clip(upper_bound=most).sum())


def chosen_share(config: Config, accepted: pl.DataFrame) -> float:
    """Return the least share of the samples that is trained on, as far as it is known before they are ranked."""
    rule, mix = config.selection, config.training.mix
    every, characters = max(1, accepted.height), max(1.0, float(accepted["characters"].sum()))
    if rule.use_sources:
        accepted = accepted.filter(~pl.col("source").is_in(rule.use_sources))
    if mix.without_long or not accepted.height:
        return 0.0
    if rule.most_tokens is None:
        left = accepted["digest"].n_unique() if rule.duplicates == "one" else accepted.height
        share = min(rule.chosen(accepted.height), left) / every
    else:
        share = min(float(accepted["characters"].sum()), rule.most_tokens * _CHARACTERS) / characters
    return share * mix.long_fraction


def warnings_of(config: Config, accepted: pl.DataFrame) -> list[str]:
    """Return a sentence for each setting that is valid but may be unintended. `accepted`: as for `check_training`."""
    return [
        *_scored_again(config, accepted),
        *_beyond_the_samples(config, accepted),
        *_beyond_the_scored(config, accepted),
        *_beyond_the_machine(config),
        *without_evidence(config),
    ]


def without_evidence(config: Config) -> list[str]:
    """Return a sentence if the table `evidence` is wanted, but is not made."""
    if not config.selection.evidence or has_evidence(config):
        return []
    return [
        f"selection.evidence is on, but no configured method reads both {' and '.join(EVIDENCE_READS)}, so there is no "
        "table evidence. Add gateau to selection.compare, or remove the key."
    ]


def _beyond_the_machine(config: Config) -> list[str]:
    """Return a sentence for ranks, and one for scoring workers, that share a core or a GPU of this machine."""
    training, scoring, found = config.training, config.scoring, list[str]()
    here = training.launcher is None and training.hostfile is None
    ranks = training.processes if training.enabled and here else 1
    workers = scoring.workers if scoring.workers != "auto" and config.execution.pool_name == "processes" else 1
    if max(ranks, workers) == 1:
        return []
    import torch

    gpus, cores = torch.cuda.device_count(), os.cpu_count() or 1
    places, noun = (gpus, "GPU") if gpus else (cores, "CPU core")
    if ranks > places:
        found.append(
            f"training.processes is {ranks:,}, but this machine has {plural(places, noun)}. Ranks that share one are "
            f"slower and take more memory. Set at most {places:,}, or give training.launcher or training.hostfile for "
            "several machines."
        )
    # Workers on a named GPU share it, as configured.
    if not gpus or scoring.device == "cpu":
        places, noun = cores, "CPU core"
    if workers > places:
        found.append(
            f"scoring.workers is {workers:,}, but this machine has {plural(places, noun)}. Workers that share one are "
            f"slower and take more memory. Set at most {places:,}, or remove the key."
        )
    return found


def _scored_again(config: Config, accepted: pl.DataFrame) -> list[str]:
    """Return a sentence about the tokens that are scored again because samples of one conversation repeat turns."""
    if config.long_sft.turns != "each" or not accepted.height:
        return []
    tokens = (pl.col("characters") / _CHARACTERS).clip(upper_bound=config.scoring.max_length)
    of_records = accepted.group_by("file", "record").agg(all=tokens.sum(), longest=tokens.max())
    factor = float(of_records["all"].sum()) / max(1.0, float(of_records["longest"].sum()))
    return [
        f"long_sft.turns: each makes {plural(accepted.height, 'sample')} of {plural(of_records.height, 'record')}. "
        f"Each repeats the turns before its own. About {factor:.1f} times the tokens of the conversations are scored."
    ]


def _beyond_the_samples(config: Config, accepted: pl.DataFrame) -> list[str]:
    count, once = config.selection.count, config.selection.duplicates == "one"
    left = accepted["digest"].n_unique() if once else accepted.height
    if count is None or count <= left or not left:  # without any, synthetic samples are still to be made
        return []
    different = " with different texts" if left < accepted.height else ""
    return [f"selection.count asks for {count:,} samples, but only {left:,}{different} can be chosen."]


def _beyond_the_scored(config: Config, accepted: pl.DataFrame) -> list[str]:
    scored, trained = config.scoring.max_length, config.training.max_length
    longer = float((accepted["characters"] > scored * _CHARACTERS).mean() or 0)  # pyright: ignore[reportArgumentType]
    if not config.training.enabled or trained < _FAR_ABOVE * scored or longer == 0:
        return []
    return [
        f"training.max_length is {trained:,}, but samples are scored by their last {scored:,} tokens "
        f"(scoring.max_length). In about {percent(longer)} of the samples, the text before these tokens does not "
        "affect the choice. Set both to the same value, unless you intend this."
    ]


def document_warnings(config: Config, store: Store, whole: Callable[[], Plan], index: InputIndex) -> list[str]:
    """Return warnings: the limit per document leaves too few samples, or samples have the same texts."""
    rule = config.selection
    repeats = [] if rule.per_document == 1 else index.repeats(kept=rule.duplicates == "keep")
    found = [*index.beginnings, *repeats]
    return found if rule.per_document is None else [*found, *filter(None, [limit_leaves(config, store, whole())])]


def limit_leaves(config: Config, store: Store, whole: Plan) -> str:
    """Return `too_few` for the documents in the store, if a selection is to be made from them; else an empty text.

    The documents do not depend on the limit, so they stay valid when it changes. If they are still to be computed, that
    step gives the warning. `whole`: the plan of all assets.
    """
    rule = config.selection
    if rule.per_document is None or whole.of(SPLIT) is not None or whole.of(CHOSEN) is None:
        return ""
    free = store.read(SPLIT, None).filter(~pl.col("reserved"))
    sources = store.read_all("raw_long_sft", shard_keys(config.long_sft.shards), ["sample_id", "source", "digest"])
    return too_few(free.join(sources, on="sample_id"), rule)


def too_few(candidates: pl.DataFrame, rule: RuleConfig) -> str:
    """Return the settings that need more samples than remain, before any model runs; empty if there are enough.

    `candidates`: tables.DOCUMENT_SPLIT without reserved samples, with `source` and `digest`. Raises GateauError as
    `check_data` does.
    """
    most, (sources, counted) = rule.per_document, countable_samples(candidates, rule)
    if most is None or rule.budget is not None:
        check_data(sources, counted)
        return ""
    once = rule.duplicates == "one"
    texts = candidates.unique("digest") if once else candidates
    wanted, left = rule.chosen(candidates.height), most_of_all(texts, most)
    of_sources = candidates.unique(["source", "digest"]) if once else candidates
    check_data(sources, rule.taking(count=min(wanted, left)), left=most_by_source(of_sources, most))
    return (
        f"selection.per_document: {most} leaves {left} samples, fewer than the {wanted} to choose"
        if left < wanted
        else ""
    )


_MOST = 8  # more characters per token than any language has on average


def without_far_text(config: Config, accepted: pl.DataFrame, samples: Callable[[], Sequence[Sample]]) -> list[str]:
    """Return a sentence if more than half of the samples fit into theta_A's window, by their characters.

    `accepted`: the index of the usable samples. `samples`: returns some of them; called only if their tokens matter.
    """
    window = short_window(config)
    if window is None or not accepted.height:
        return []
    middle = float(accepted["characters"].median() or 0)  # pyright: ignore[reportArgumentType]
    rate = characters_a_token(config, samples()) if middle <= _MOST * window else None
    if rate is None or middle > rate * window:
        return []
    share = accepted.filter(pl.col("characters") <= rate * window).height / accepted.height
    return [
        f"models.short sees the last {window:,} tokens of a prompt. By their characters, about "
        f"{percentage(round(share, 2))} of the samples are not longer: they have no far context and rank last. Set "
        f"models.short.window to at most half of the median length, which is about {middle / rate:,.0f} tokens"
    ]
