"""Write the viewer to a store: `explore.html`, and the files that it loads in `explore/`.

The samples in full are several per page, so that opening one does not load them all. A long context is split into its
segments, and its unimportant parts are replaced by their length.
"""

# Why scripts and not JSON: a page that is opened from a disk may not fetch files, but may load scripts.
#
# Why names with a digest: a page that is open while the next one is written must not find data of another run. The new
# files are written beside the old ones. Then the page is replaced in one step, and only then are the old files removed.
# A shard whose inputs did not change keeps its files, so an edit rewrites few of them.

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any, TypeAlias

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateau_dagster.config.selection import DEPENDENCIES
from gateau_dagster.data.sample import Sample
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.explanation.evidence import EvidenceToken
from gateau_dagster.explanation.excerpts import pieces, shortened
from gateau_dagster.explanation.maps import LONG, SHORT, DependedSpan, EvidenceMaps, SpanStrip, span_maps
from gateau_dagster.explanation.one_sample import Ranking, disputed, rankings
from gateau_dagster.features.report.feature import EXPLORER_CODE_VERSION, EXPLORER_FILE
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.pipeline.selection_reads import EVIDENCE
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.readable import number, plural, printable
from gateau_dagster.scoring.pair_tables import CAM, THETA_B
from gateau_dagster.selection.wording import chosen_by, ranked_by
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import beside, content_version, loaded_files, write_document
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.stamp import fingerprint

PAGE_ROWS = 50
"""Samples per page."""
OPENING = 160
"""Characters of an instruction shown in the list."""
LONGEST = 20_000
"""Contexts with at most this many characters are shown whole."""
SEGMENTS = 24
"""In a longer context, the most segments that are shown besides its ends."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The files of a shard of `rows` samples: the beginnings of their instructions, and the pages, in order."""

    rows: int
    openings: str
    pages: Sequence[str]
    page_rows: int = PAGE_ROWS


def shard_files(shard: str, rows: int, versions: Mapping[str, Any]) -> Shard:
    """Return the names of a shard's files; they change if any of its inputs changed.

    Args:
        shard: its partition key.
        versions: of each table that its pages are made from, and of everything else that affects them.
    """
    key = fingerprint({"code": EXPLORER_CODE_VERSION, **versions})[:16]
    count = -(-rows // PAGE_ROWS)
    pages = [f"samples-{shard}-{number:0{len(str(count))}d}-{key}.js" for number in range(count)]
    return Shard(rows=rows, openings=f"openings-{shard}-{key}.js", pages=pages)


def openings(instructions: pl.Series) -> list[str]:
    """Return the beginning of each instruction, on one line."""
    return [" ".join(printable(text[: 2 * OPENING]).split())[:OPENING] for text in instructions]


def sample_content(sample: Sample, told: EvidenceMaps) -> dict[str, Any]:
    """Return a sample for the page: its texts, its evidence map if there is one, and the maps of methods."""
    evidence, depends = told.maps.get(sample.sample_id), told.depends.get(sample.sample_id)
    found: dict[str, Any] = {
        "instruction": shortened(sample.instruction, LONGEST // 2),
        "response": shortened(sample.response, LONGEST // 2),
        "context": [
            (printable(part.text), -1 if part.segment is None else part.segment, part.seen, part.left_out)
            for part in pieces(sample.context, evidence, longest=LONGEST, most=SEGMENTS)
        ],
        "characters": len(sample.context),
        "why_not": told.missing,
        "strips": [_strip(strip) for strip in told.strips.get(sample.sample_id, ())],
    }
    if depends is not None:
        found |= {"depends": depends.words, "spans": None if depends.spans is None else [*map(_span, depends.spans)]}
    if evidence is None:
        return found
    shown = {piece[1] for piece in found["context"]}
    return found | {
        "unseen": evidence.unseen,
        "tokens": [_token(token) for token in evidence.tokens],
        "segments": [
            (segment.index, None if segment.perplexity is None else round(segment.gain, 4), segment.near, segment.named)
            for segment in evidence.segments
            if segment.index in shown
        ],
        "segment_count": len(evidence.segments),
    }


def _token(token: EvidenceToken) -> tuple[Any, ...]:
    given = (token.short, token.none, token.near, token.far, token.full, token.gain)
    rounded = (None if value is None else round(value, 4) for value in given)
    return printable(token.text), *rounded, -1 if token.segment is None else token.segment, token.named


def _span(span: DependedSpan) -> tuple[Any, ...]:
    return span.start + 1, span.end, round(span.gain, 4), span.tokens, span.beginning


def _strip(strip: SpanStrip) -> tuple[Any, ...]:
    bars = [(bar.left, bar.width, bar.level, bar.text) for bar in strip.bars if bar.level]
    most = [(float(f"{added:.4g}"), text) for added, text in strip.most]
    return ", ".join(strip.methods), strip.adds, bars, most, float(f"{strip.elsewhere:.4g}")


FOLDER = "explore"


def as_json(content: Any) -> str:
    """Return JSON that can be put in a script, inside a page or on its own, and ends neither."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def as_script(name: str, content: Any) -> bytes:
    """Return the file that passes `content` to the page when it is loaded under this name."""
    return f"explorer.take({as_json(name)},{as_json(content)});\n".encode()


def named_by_content(kind: str, content: Any) -> str:
    """Return a file's name, which changes with its content, so that a page never finds newer data than its own."""
    return f"{kind}-{hashlib.sha256(as_json(content).encode()).hexdigest()[:16]}.js"


class DataFiles:
    """The data files of a page that is being built. The previous page keeps its files until the new one replaces it."""

    def __init__(self, files: Files, written: Mapping[str, str] | None = None) -> None:
        """Read what is there; a damaged file, or one of unknown content, counts as missing.

        Args:
            written: the versions of the files that the previous page loads, from its stamp.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        self._files = files
        self._there = beside(files, FOLDER)
        self._whole = {name: version for name, version in self._there.items() if (written or {}).get(name) == version}
        self._used: dict[str, str] = {}

    def keep(self, *names: str) -> bool:
        """Return whether all of these files are there and intact; those that are now belong to this page."""
        addresses = [f"{FOLDER}/{name}" for name in names]
        self._used |= {each: self._whole[each] for each in addresses if each in self._whole}
        return all(each in self._whole for each in addresses)

    def write(self, name: str, content: Any) -> None:
        """Write a file, in one step.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        data = as_script(name, content)
        self._files.write(f"{FOLDER}/{name}", data)
        self._whole[f"{FOLDER}/{name}"] = self._used[f"{FOLDER}/{name}"] = content_version(data)

    def put(self, kind: str, content: Any) -> str:
        """Write a file that is named by its content, unless it exists; return its name."""
        name = named_by_content(kind, content)
        if not self.keep(name):
            self.write(name, content)
        return name

    def versions(self) -> dict[str, str]:
        """Return the version of each file of this page, for the page's stamp.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        present = self._used if self._files.is_local else beside(self._files, FOLDER)
        return {name: present[name] for name in sorted(self._used)}

    def remove_others(self) -> None:
        """Remove the files that no page refers to any more; call it when the new page is in place."""
        for name in sorted({*self._there} - {*self._used}):
            self._files.remove(name)


# In this order: each script uses those before it.
_SCRIPTS = (
    "loading.js",
    "elements.js",
    "columns.js",
    "order.js",
    "evidence.js",
    "strips.js",
    "sample.js",
    "list.js",
    "start.js",
)


def build_page(inputs: ReportInputs, index: str) -> str:
    """Return the viewer as HTML. Only its own script and the files that it loads run; nothing is fetched from
    elsewhere.

    Args:
        index: name of the index file.
    """
    environment = Environment(
        loader=PackageLoader("gateau_dagster.features.report.viewer", package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    script, style = f'"use strict";\n(() => {{{_joined(*_SCRIPTS)}}})();\n', _joined("style.css")
    return environment.get_template("explore.html.j2").render(
        manifest=Markup(as_json({"index": index})),
        summary=_summary(inputs),
        longest=number(LONGEST),
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def _summary(inputs: ReportInputs) -> str:
    chosen = number(inputs.selected_subset.height)
    made = inputs.generated_at.strftime("%Y-%m-%d %H:%M %Z").strip()
    return (
        f"{plural(inputs.given, 'sample')}, {chosen} selected. {ranked_by(inputs.config.selection)}; "
        f"{chosen_by(inputs.config.selection, inputs.rule, far=inputs.far_chosen)}. Made {made}."
    )


def _joined(*names: str) -> str:
    folder = files("gateau_dagster.features.report.viewer")
    return "\n".join(["", *(folder.joinpath(name).read_text(encoding="utf-8") for name in names)])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


DIGITS = 6
"""Significant digits of a score."""

Put: TypeAlias = Callable[[str, Any], str]


def index_content(inputs: ReportInputs, found: Sequence[Ranking], shards: Sequence[Shard], put: Put) -> dict[str, Any]:
    """Return the index of a page.

    Args:
        inputs: of the report; the rows of `inputs.raw` are those of the shards, in order.
        shards: with the files that hold the samples' texts.
        put: writes a file of this kind and content, and returns its name.
    """
    samples = inputs.raw.lazy().select("sample_id", "source").collect()
    ids = samples["sample_id"].to_list()
    assert sum(shard.rows for shard in shards) == len(ids)
    rows = samples.select("sample_id").with_row_index("row")
    lengths = rows.join(_lengths(inputs), on="sample_id", how="left").sort("row")
    sources = samples["source"].unique().sort().to_list()
    spread = disputed(ids, found)
    far = samples["source"].is_in(list(inputs.config.selection.ground_truth)).fill_null(False)
    return {
        "ids": ids,
        "sources": [printable(source) for source in sources],
        "source": samples["source"].replace_strict(sources, range(len(sources))).to_list(),
        "unit": inputs.length_unit,
        "context": lengths["context"].to_list(),
        "response": lengths["response"].to_list(),
        "selected": _rows_of(rows, inputs.selected_subset["sample_id"].to_list()),
        "reserved": _rows_of(rows, inputs.reserved),
        "far": far.arg_true().to_list(),
        "depends": _depends(rows, inputs.dependencies),
        "unseen": rows.join(inputs.unseen, on="sample_id").sort("row").select("row", "unseen").rows(),
        "rankings": [_ranking(ranking, rows, put) for ranking in found],
        "disputed": None if spread is None else put("disputed", spread.round(4).to_list()),
        "rejected": put("rejected", _rejected(rows, inputs.rejected)),
        "shards": [{"rows": shard.rows, "openings": shard.openings, "pages": list(shard.pages)} for shard in shards],
        "page_rows": shards[0].page_rows if shards else 0,
    }


def _lengths(inputs: ReportInputs) -> pl.DataFrame:
    """Return `sample_id`, `context`, `response` in `inputs.length_unit`, for the samples with known lengths."""
    counted = inputs.combined_scores if inputs.by_gateau else inputs.lengths
    if counted is not None:
        return counted.select("sample_id", context="context_tokens", response="response_tokens")
    sizes = {part: pl.col(part).str.len_bytes().cast(pl.Int64) for part in ("context", "response")}
    return inputs.raw.lazy().select("sample_id", **sizes).collect()


def _rows_of(rows: pl.DataFrame, ids: Sequence[str]) -> list[int]:
    wanted = pl.DataFrame({"sample_id": ids}, schema={"sample_id": pl.String()})
    return rows.join(wanted, on="sample_id", how="semi").sort("row")["row"].to_list()


def _depends(rows: pl.DataFrame, dependencies: pl.DataFrame | None) -> dict[str, list[int]]:
    """Return the rows of each dependency that some sample has."""
    if dependencies is None:
        return {}
    found = {name: dependencies.filter(dependency=name)["sample_id"].to_list() for name in DEPENDENCIES}
    return {name: _rows_of(rows, ids) for name, ids in found.items() if ids}


def _ranking(ranking: Ranking, rows: pl.DataFrame, put: Put) -> dict[str, Any]:
    table = rows.join(ranking.table, on="sample_id", how="left").sort("row")
    columns = {"rank": table["rank"].fill_null(0).to_list(), "score": table["score"].round_sig_figs(DIGITS).to_list()}
    if ranking.summands is not None:
        columns |= {name: table[name].round_sig_figs(DIGITS).to_list() for name in ("first", "second")}
    return {
        "summands": None if ranking.summands is None else asdict(ranking.summands),
        "name": ranking.name,
        "title": ranking.title,
        "scored": ranking.table.height,
        "file": put("ranking", columns),
    }


def _rejected(rows: pl.DataFrame, rejected: Mapping[str, pl.DataFrame]) -> list[tuple[int, str, str]]:
    """Return row, asset and reason of samples that are in the data and were rejected later."""
    found = []
    for asset, table in rejected.items():
        known = rows.join(table, on="sample_id").sort("row").select("row", "reason")
        found += [(row, asset, printable(reason)) for row, reason in known.iter_rows()]
    return found


RAW = "raw_long_sft"
TOGETHER = 10
"""Pages whose maps are built together."""
UNMEASURED = "There is no evidence map: cam and perplexity/long, which it is made from, are not asked for."

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
    makers, measured = _makers(state), _is_measured(state)

    def evidence(samples: Sequence[Sample]) -> EvidenceMaps:
        maps = inputs.evidence(samples)
        return maps if measured else replace(maps, missing=UNMEASURED)

    for done, shard in enumerate(state.shards, start=1):
        shards.append(_shard(state, evidence, shard, makers, data))
        progress(done, len(state.shards), "shards")
    found = rankings(inputs.config, inputs.combined_scores, method_scores)
    index = data.put("index", index_content(inputs, found, shards, data.put))
    page = build_page(inputs, index)
    write_document(state.store, EXPLORER_FILE, page, replace(stamp, files=data.versions()))
    data.remove_others()


def _makers(state: State) -> dict[str, Any]:
    """Return the settings of the maps besides tables: whether the models' tokenizers are on this machine, and how
    methods read their spans.
    """
    spans = span_maps(state)
    models = {span_map.model for _, span_map in spans} | ({THETA_B} if _is_measured(state) else set())
    chosen = chosen_methods(state.config)
    folders = {name: local_facts(state.config, name).folder for name in sorted(models)}
    return {f"tokenizer of {name}": folder is not None for name, folder in folders.items()} | {
        f"spans by {name}": [chosen[name].version, chosen[name].options.model_dump(mode="json"), each.adds]
        for names, each in spans
        for name in names
    }


def _is_measured(state: State) -> bool:
    return {CAM, LONG} <= {*state.asset("report").reads}


def _shard(state: State, evidence: MakeMaps, shard: str, makers: Mapping[str, Any], data: DataFiles) -> Shard:
    """Return a shard's files, after writing those that are missing or damaged. `makers`: from `_makers`."""
    mapped = dict.fromkeys([RAW, CAM, LONG, SHORT, EVIDENCE, *(each.table for _, each in span_maps(state))])
    made_from = [asset for asset in mapped if asset in state.asset("report").reads]
    stamps = state.store.stamps((asset, shard) for asset in made_from)
    versions = {asset: stamp.fingerprint for (asset, _), stamp in stamps.items() if stamp is not None}
    raw = stamps[RAW, shard]
    assert raw is not None and raw.rows is not None
    found = shard_files(shard, raw.rows, {**versions, **makers})
    if data.keep(found.openings, *found.pages):
        return found
    table = state.store.read(RAW, shard)
    if not data.keep(found.openings):
        data.write(found.openings, openings(table["instruction"]))
    # All maps of a large shard would not fit into memory, and each call reads the shard's tables.
    for first in range(0, len(found.pages), TOGETHER):
        missing = [
            page for page in range(first, min(first + TOGETHER, len(found.pages))) if not data.keep(found.pages[page])
        ]
        slices = {page: table.slice(page * PAGE_ROWS, PAGE_ROWS) for page in missing}
        samples = {page: [*samples_of(part)] for page, part in slices.items()}
        maps = evidence([sample for page in missing for sample in samples[page]])
        for page in missing:
            data.write(found.pages[page], [sample_content(sample, maps) for sample in samples[page]])
    return found
