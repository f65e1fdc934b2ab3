"""Write the viewer to a store: `explore.html`, and the files that it loads in `explore/`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.explore.data_files import DataFiles
from gateau_dagster.explore.index import index_content
from gateau_dagster.explore.page import build_page
from gateau_dagster.explore.rankings import rankings
from gateau_dagster.explore.sample_pages import PAGE_ROWS, Shard, openings, sample_content, shard_files
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.models.known_model import model_folder
from gateau_dagster.pipeline.declarations import EXPLORER_FILE
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.report.evidence_card import LONG, SHORT, EvidenceMaps, span_maps
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.scoring.pair_tables import CAM, THETA_B
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import loaded_files, write_document

RAW = "raw_long_sft"
TOGETHER = 10
"""Pages whose maps are built together."""
UNMEASURED = "There is no evidence map: cam and perplexity/long, which it is made from, are not asked for."
_TEXTS = ("sample_id", "source", "context", "instruction", "response")

MakeMaps: TypeAlias = Callable[[Sequence[Sample]], EvidenceMaps]


def publish(
    state: State, inputs: ReportInputs, method_scores: Mapping[str, pl.DataFrame], stamp: Stamp, progress: Progress
) -> None:
    """Write the viewer's files that have changed, and the page last, in one step; then remove all others.

    Args:
        inputs: of the report.
        method_scores: tables.METHOD_SCORES by method.
        stamp: of the report.

    Raises:
        GateauError, TransientError: the store cannot be read or written.
    """
    data, shards = DataFiles(state.store.files, loaded_files(state.store, EXPLORER_FILE)), []
    makers = _makers(state)
    evidence = inputs.evidence if _is_measured(state) else partial(_unmeasured, inputs.evidence)
    for done, shard in enumerate(state.shards, start=1):
        shards.append(_shard(state, evidence, shard, makers, data))
        progress(done, len(state.shards), "shards")
    found = rankings(inputs.config, inputs.combined_scores, method_scores)
    index = data.put("index", index_content(inputs, found, shards, data.put))
    page = build_page(inputs, index)
    write_document(state.store, EXPLORER_FILE, page, replace(stamp, files=data.versions()))
    data.remove_others()


def _unmeasured(evidence: MakeMaps, samples: Sequence[Sample]) -> EvidenceMaps:
    """Return the methods' own maps, and why there are no others."""
    return replace(evidence(samples), missing=UNMEASURED)


def _makers(state: State) -> dict[str, Any]:
    """Return what decides the maps besides tables: whether the models' tokenizers are on this machine, and how
    methods read their spans.
    """
    spans = span_maps(state)
    models = {span_map.model for _, span_map in spans} | ({THETA_B} if _is_measured(state) else set())
    chosen = chosen_methods(state.config)
    return {f"tokenizer of {model}": _is_here(state, model) for model in sorted(models)} | {
        f"spans by {name}": [chosen[name].method.code_version, chosen[name].options.model_dump(mode="json"), each.adds]
        for names, each in spans
        for name in names
    }


def _is_measured(state: State) -> bool:
    return {CAM, LONG} <= {*state.asset("report").reads}


def _is_here(state: State, model: str) -> bool:
    """Return whether a model is on this machine."""
    return model_folder(state.config, state.config.origin(model), local_only=True) is not None


def _shard(state: State, evidence: MakeMaps, shard: str, makers: Mapping[str, Any], data: DataFiles) -> Shard:
    """Return a shard's files, after writing those that are missing or damaged.

    Args:
        makers: from `_makers`.
    """
    mapped = dict.fromkeys([RAW, CAM, LONG, SHORT, *(each.table for _, each in span_maps(state))])
    made_from = [asset for asset in mapped if asset in state.asset("report").reads]
    stamps = state.store.stamps((asset, shard) for asset in made_from)
    versions = {asset: stamp.fingerprint for (asset, _), stamp in stamps.items() if stamp is not None}
    raw = stamps[RAW, shard]
    assert raw is not None and raw.rows is not None
    found = shard_files(shard, raw.rows, {**versions, **makers})
    if not data.keep(found.openings, *found.pages):
        _write_shard(state.store.read(RAW, shard), evidence, found, data)
    return found


def _write_shard(table: pl.DataFrame, evidence: MakeMaps, found: Shard, data: DataFiles) -> None:
    if not data.keep(found.openings):
        data.write(found.openings, openings(table["instruction"]))
    # All maps of a large shard would not fit into memory, and each call reads the shard's tables.
    for first in range(0, len(found.pages), TOGETHER):
        missing = [
            page for page in range(first, min(first + TOGETHER, len(found.pages))) if not data.keep(found.pages[page])
        ]
        slices = {page: table.slice(page * PAGE_ROWS, PAGE_ROWS).select(_TEXTS) for page in missing}
        samples = {page: [Sample(**row) for row in part.iter_rows(named=True)] for page, part in slices.items()}
        maps = evidence([sample for page in missing for sample in samples[page]])
        for page in missing:
            data.write(found.pages[page], [sample_content(sample, maps) for sample in samples[page]])
