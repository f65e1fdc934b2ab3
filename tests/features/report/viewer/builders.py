"""A viewer of made-up samples on a disk, and what is in its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.maps import EvidenceMaps
from gateau_dagster.explanation.one_sample import rankings
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.features.report.viewer.publish import (
    PAGE_ROWS,
    DataFiles,
    build_page,
    index_content,
    openings,
    sample_content,
    shard_files,
)
from gateau_dagster.storage.files import Files


def method_scores(inputs: ReportInputs, *names: str) -> dict[str, pl.DataFrame]:
    """Random ones; of the first sample there is none."""
    ids = inputs.raw.lazy().select("sample_id").collect()["sample_id"]
    drawn = np.random.default_rng(1)
    values = {name: pl.Series([None, *drawn.random(ids.len() - 1)], dtype=pl.Float64) for name in names}
    return {name: pl.DataFrame({"sample_id": ids, "score": each}) for name, each in values.items()}


def write_viewer(
    folder: Path,
    inputs: ReportInputs,
    scores: Mapping[str, pl.DataFrame] | None = None,
    told: EvidenceMaps | None = None,
    shards: int = 3,
) -> Path:
    """Its page."""
    raw = pl.DataFrame(inputs.raw.lazy().collect())
    data, found = DataFiles(Files(str(folder))), []
    for number, part in enumerate(raw.iter_slices(-(-raw.height // shards))):
        found.append(shard_files(str(number), part.height, {}))
        data.write(found[-1].openings, openings(part["instruction"]))
        for name, rows in zip(found[-1].pages, part.iter_slices(PAGE_ROWS), strict=True):
            samples = [Sample(**row) for row in rows.drop("digest").iter_rows(named=True)]
            data.write(name, [sample_content(one, told or EvidenceMaps()) for one in samples])
    orders = rankings(inputs.config, inputs.combined_scores, scores or {})
    index = data.put("index", index_content(inputs, orders, found, data.put))
    page = folder / "explore.html"
    page.write_text(build_page(inputs, index), encoding="utf-8")
    return page


def content_of(script: Path) -> Any:
    """What a data file hands over."""
    text = script.read_text(encoding="utf-8")
    name = json.dumps(script.name)
    assert text.startswith(f"explorer.take({name},") and text.endswith(");\n")
    return json.loads(text[len(f"explorer.take({name},") : -len(");\n")])


def index_of(page: Path) -> dict[str, Any]:
    """The index that a page loads."""
    manifest = page.read_text(encoding="utf-8").split('id="manifest">')[1].split("</script>")[0]
    return content_of(page.parent / "explore" / json.loads(manifest)["index"])
