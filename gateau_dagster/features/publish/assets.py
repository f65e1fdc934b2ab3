"""Make the assets `published/…`: a selection as a data set on the Hugging Face hub."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow.parquet as pq

from gateau_dagster import tables
from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.assets.runs.launching import told
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.secret_scan import (
    SCANNER,
    named_findings,
    scanner_version,
    secrets_in,
    secrets_of_files,
    secrets_of_rows,
    secrets_of_text,
)
from gateau_dagster.data.trainer_records import FORMS, trainer_records, trainer_schema, write_parquet
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.explanation.trust import trust_lines
from gateau_dagster.features.evaluation.contamination import FAMILY, LEAST_SHARE, NEAR
from gateau_dagster.features.publish.card import (
    CARD,
    CARD_MARK,
    LENGTHS_CHART,
    OWN_FILES,
    CardFacts,
    data_card,
    data_file,
    lengths_chart,
)
from gateau_dagster.features.publish.config import SECTION, PublishConfig
from gateau_dagster.features.publish.feature import ANYWAY, COLUMNS, UPLOADED, published_tables
from gateau_dagster.features.publish.hub import hub_token, publish_files
from gateau_dagster.pipeline.asset import HOMOLOGOUS, PRE_EXPERIENCED
from gateau_dagster.pipeline.choice import counted_rule, response_share
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.pipeline.recipes import Recipe, recipe_of
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE, PRESETS_TABLE
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress, silent
from gateau_dagster.readable import listed, plural
from gateau_dagster.selection.evidence import far_share

_NAMED = 5  # samples in a message


@makes_asset
def published(step: Step) -> None:
    """Check the chosen samples, write them and a card into a folder, and make the hub hold it."""
    for output in step.in_turn():
        state, token = output.state, hub_token()
        with _empty_folder(state.config.work_folder / UPLOADED) as folder:
            files, facts = write_data_set(state, output.asset, folder, output.progress)
            options, samples = facts.options, plural(facts.sizes["selected"], "sample")
            revision = publish_files(
                options.repository,
                folder,
                private=options.private,
                summary=f"Publish {samples} (fingerprint {output.wanted.fingerprint})",
                own=OWN_FILES,
                mark=CARD_MARK,
                token=token,
            )
        address = {"repository": options.repository, "revision": revision.sha, "url": revision.url}
        rows = [{**file, **address} for file in files]
        output.write(pl.DataFrame(rows, tables.schema(COLUMNS)), content=revision.sha)
        output.metadata |= {"data_set": dg.MetadataValue.url(revision.url), "revision": revision.sha}


def write_data_set(
    state: State, asset: str, folder: Path, progress: Progress
) -> tuple[list[dict[str, Any]], CardFacts]:
    """Check the chosen samples of an asset `published/…`, and write their data set with its card into an empty folder.

    Returns:
        Config, rows and bytes of each table, and the facts of the card.

    Raises:
        GateauError: a check refuses the data; the folder may hold files.
    """
    options, variant = SECTION.of(state.config), state.asset(asset).variant
    assert options is not None
    if variant:
        options = options.model_copy(update={"repository": options.variants[variant]})
    recipe = recipe_of(state.config, variant or None)
    selected = state.read(recipe.asset(CHOSEN), partition=recipe.partition)
    _check_scanner(options)
    contamination = _contamination(state, asset, options, selected)
    failed = _failed_checks(state, recipe)
    files, facts = _written(state, recipe, options, selected, contamination, folder)
    facts = replace(facts, checks=[contamination, *failed])  # which the scan of the card reads
    secrets = _secrets(state, options, folder, facts, progress)
    facts = replace(facts, checks=[contamination, secrets, *failed])
    (folder / CARD).write_text(data_card(facts), encoding="utf-8")
    return files, facts


def write_into(state: State, asset: str, folder: Path) -> None:
    """Write the data set of an asset `published/…` into a folder: completely, or not at all.

    Raises:
        GateauError: a check refuses the data, or the folder holds other files than a data set of this command.
    """
    card = folder / CARD
    is_ours = card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")
    if folder.exists() and not is_ours and (not folder.is_dir() or any(folder.iterdir())):
        raise GateauError(
            "publish.folder",
            f"--to: {folder} exists and holds no data set of this command. Name a new folder, or an empty one.",
        )
    partial, old = (folder.with_name(f".{folder.name}.{name}") for name in ("partial", "old"))
    with _empty_folder(partial):
        write_data_set(state, asset, partial, silent)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _upstream(state: State, recipe: Recipe) -> set[str]:
    reads = state.asset(recipe.asset(CHOSEN)).of_partition(recipe.partition).reads
    return {recipe.asset(CHOSEN), *state.pipeline.ancestors(reads)}


def _failed_checks(state: State, recipe: Recipe) -> list[str]:
    """Return a sentence per check that fails on the chosen samples or on what they are made of.

    Raises:
        GateauError: a check fails as an error, and the command has no --anyway.
    """
    lines, errors = [], []
    for key in sorted(_upstream(state, recipe)):
        for name in state.asset(key).checks:
            result = checked(state, state.asset(key), name)
            if not result.passed:
                lines.append(f"{key}: check {name} failed ({told(result.metadata)})")
                errors += lines[-1:] if result.severity is dg.AssetCheckSeverity.ERROR else []
    if errors and ANYWAY not in os.environ:
        command = gateau_command("publish --anyway")
        raise GateauError(
            "publish.failed_checks",
            f"publish: {'; '.join(errors)}. Correct the data, or upload it with `{command}`, which puts this on the "
            "card. Nothing was uploaded.",
        )
    return lines


@contextmanager
def _empty_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder without what a killed upload has left in it, and remove it afterwards.

    The texts may be private, so they stay out of the system's folder for temporary files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _contamination(state: State, published: str, options: PublishConfig, selected: pl.DataFrame) -> str:
    """Return how many chosen samples contain a benchmark's question; raise GateauError if that is too many."""
    assets = [asset for asset in state.asset(published).reads if asset.startswith(f"{FAMILY}/")]
    if not assets:
        return "Contamination: not looked for, since no configured benchmark asks questions."
    contains = (pl.col("share") >= LEAST_SHARE) | (pl.col("similarity") >= NEAR)
    found = pl.concat(state.read(asset, ["sample_id", "share", "similarity"]).filter(contains) for asset in assets)
    samples = selected.join(found, on="sample_id", how="semi")["sample_id"].sort().to_list()
    benchmarks = listed([asset.partition("/")[2] for asset in assets])
    amount = f"{len(samples):,} of {plural(selected.height, 'chosen sample')}"
    if len(samples) > options.max_contaminated * selected.height:
        raise GateauError(
            "publish.contaminated",
            f"publish.max_contaminated: {amount} contain a question of {benchmarks}, more than a share of "
            f"{options.max_contaminated:g} (such as {', '.join(samples[:_NAMED])}). Remove them from the data, or "
            "raise publish.max_contaminated. Nothing was uploaded.",
        )
    return f"Contamination: {amount} contain a question of {benchmarks}."


def _check_scanner(options: PublishConfig) -> None:
    """Raise GateauError if a public data set cannot be scanned with the package."""
    if not scanner_version() and not options.private:
        raise GateauError(
            "publish.no_scanner",
            f"publish.private: a public data set is scanned for secrets first, but {SCANNER} is not installed: pip "
            "install 'gateau-dagster[publish]'.",
        )


def _secrets(state: State, options: PublishConfig, folder: Path, facts: CardFacts, progress: Progress) -> str:
    """Return how the files were scanned; raise GateauError if one has a secret.

    Args:
        folder: holds all files but the card.
        facts: of the card.
    """
    found = [*secrets_of_files(folder, progress)]
    # The card names the sources of all samples, so those of the samples that were not chosen, too.
    sources = [source for source in facts.lengths["source"].drop_nulls().unique() if secrets_in(source)]
    rows = facts.lengths.filter(pl.col("source").is_in(sources)).select("sample_id", "source")
    found += secrets_of_rows(rows.iter_rows(named=True), "raw_long_sft")
    of_samples = {each.secret_hash for each in found}
    found += [each for each in secrets_of_text(data_card(facts), CARD) if each.secret_hash not in of_samples]
    accepted = {*options.accepted_findings}
    if refused := sorted({each for each in found if each.secret_hash not in accepted}):
        every = state.config.work_folder / "samples-with-secrets.csv"
        every.parent.mkdir(parents=True, exist_ok=True)
        cells = [(each.sample, each.field, each.kind, each.secret_hash) for each in refused]
        pl.DataFrame(cells, ["sample_id", "field", "kind", "hash"], orient="row").write_csv(every)
        raise GateauError(
            "publish.secrets",
            f"publish: {named_findings(refused)}. All are listed in {every}. Remove each secret from the data, and "
            "replace it where it is in use. If it is none, add its hash to publish.accepted_findings. Nothing was "
            "uploaded.",
        )
    count = len({each.secret_hash for each in found})
    other = f" other than {plural(count, 'finding')} that its publisher calls no secret" if count else ""
    scanner = scanner_version()
    patterns = f"{SCANNER} {scanner}" if scanner else f"the common services; {SCANNER} was not installed"
    return f"Secrets: no key{other} matched the patterns of {patterns}. Passwords are only looked for in addresses."


def _written(
    state: State,
    recipe: Recipe,
    options: PublishConfig,
    selected: pl.DataFrame,
    contamination: str,
    folder: Path,
) -> tuple[list[dict[str, Any]], CardFacts]:
    """Write the data set's files into a folder, apart from the card.

    Returns:
        Config, rows and bytes of each table, and the facts of the card.
    """
    found = []
    tables_by_config = published_tables(recipe)
    for config, asset in tables_by_config.items():
        path = folder / data_file(config)
        path.parent.mkdir(exist_ok=True)
        if config == "selected":
            columns, conversations = FORMS["messages"].columns, tables.CONVERSATION.name in selected.columns
            records = trainer_records(selected, "messages", state.config.trained_turns)
            write_parquet(records, trainer_schema(columns, conversations=conversations), path)
        else:
            table = state.read(asset)
            if EVIDENCE in tables_by_config.values() and asset != EVIDENCE:
                table = table.drop(*tables.schema(tables.DEPENDS), strict=False)
            table.write_parquet(path)
        found.append({"config": config, "rows": pq.read_metadata(path).num_rows, "bytes": path.stat().st_size})
    lengths, unit = _lengths(state, is_counted=PRESETS_TABLE in tables_by_config.values())
    lengths = lengths.with_columns(selected=pl.col("sample_id").is_in(selected["sample_id"].to_list()))
    stamp, upstream = state.stamp(recipe.asset(CHOSEN), recipe.partition), _upstream(state, recipe)
    assert stamp is not None
    remade = any(asset.partition("/")[0] in {SPLIT, HOMOLOGOUS, PRE_EXPERIENCED} for asset in upstream)
    facts = CardFacts(
        config=recipe.config.model_copy(update={"selection": counted_rule(state, recipe)}),
        options=options,
        sizes={file["config"]: file["rows"] for file in found},
        lengths=lengths,
        unit=unit,
        losses=[f"{loss.asset}: {loss.sentence}" for loss in losses(state, upstream)],
        checks=[contamination],
        fingerprint=stamp.fingerprint,
        rule=stamp.rule,
        responses=response_share(state, selected),
        trust=trust_lines(state) if recipe.is_main else (),
        far=far_share(selected["dependency"]) if "dependency" in selected.columns else None,
        is_whole=recipe.is_main and not remade,
    )
    (folder / LENGTHS_CHART).parent.mkdir()
    (folder / LENGTHS_CHART).write_bytes(lengths_chart(facts))
    return found, facts


def _lengths(state: State, *, is_counted: bool) -> tuple[pl.DataFrame, str]:
    """Return source and lengths of every sample, and their unit: tokens if the ranking counts them."""
    raw = state.read("raw_long_sft", ["sample_id", "source"])
    if is_counted:
        counted = state.read(PRESETS_TABLE, ["sample_id", "context_tokens", "response_tokens"])
        return raw.join(counted, on="sample_id", how="left"), "tokens"
    parts = ["context", "response"]
    sizes = [
        state.store.read("raw_long_sft", each, ["sample_id", *parts]).select(
            "sample_id", pl.col(parts).str.len_bytes().name.suffix("_bytes")
        )
        for each in state.shards
    ]
    return raw.join(pl.concat(sizes), on="sample_id", how="left"), "bytes"
