"""Use a project from Python: plan, run, read its tables, and look at samples in a notebook."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from gateau_dagster.cli.export import TOKENISED, tokenised_table
from gateau_dagster.config import Config
from gateau_dagster.data.catalogue import scan
from gateau_dagster.data.index import converter
from gateau_dagster.data.python_records import plain_value, python_records, record_name
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.data.trainer_records import FORMS, check_form, records_table
from gateau_dagster.errors import GateauError
from gateau_dagster.explanation.card import framed_evidence
from gateau_dagster.explanation.evidence import Evidence
from gateau_dagster.explanation.one_sample import OneSample, one_sample
from gateau_dagster.pipeline.checks import checked_plan, out_of_date
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import ancestors
from gateau_dagster.pipeline.project import USUAL_FILE, configuration_name
from gateau_dagster.pipeline.recipes import LENGTHS
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from gateau_dagster.readable import plural
from gateau_dagster.resources.project import checked_project
from gateau_dagster.storage.content import frame_digest

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]
    import pandas as pd  # pyright: ignore[reportMissingImports]
    from matplotlib.figure import Figure


_NAMED = 5  # records in a message


@dataclass(frozen=True, kw_only=True)
class SampleEvidence:
    """The evidence map of a sample; a notebook shows it as the report does.

    Attributes:
        sample_id: of the sample.
        evidence: segments with their gains, and response tokens with their probabilities.
    """

    sample_id: str
    evidence: Evidence

    def _repr_html_(self) -> str:
        return framed_evidence(self.evidence)


class OutOfDateWarning(UserWarning):
    """A table is older than the data or the configuration, or it is not known whether it is."""


@dataclass(frozen=True, kw_only=True)
class Plots:
    """Plots of a project's choice, each a matplotlib figure; a notebook shows it. For warnings see `Project.table`."""

    project: Project

    def ranking(self) -> Figure:
        """Return the scores by rank, with the selected samples and the gap at the cut."""
        from gateau_dagster.plots.score_plots import ranking_curve

        scores = self.project.scores()
        return ranking_curve(scores, selected=self._selected(scores))

    def lengths(self) -> Figure:
        """Return the lengths of contexts and responses in tokens, of selected samples against all.

        Raises:
            GateauError: no model has counted the tokens.
        """
        from gateau_dagster.plots.score_plots import text_lengths

        lengths = self.project.table(LENGTHS).select("sample_id", "context_tokens", "response_tokens")
        return text_lengths(lengths, selected=self._selected(lengths))

    def dependency(self) -> Figure:
        """Return the share of each `dependency`, of selected samples against all.

        Raises:
            GateauError: `selection.evidence` has made no table.
        """
        from gateau_dagster.plots.score_plots import dependency_shares

        depends = self.project.table(EVIDENCE)
        return dependency_shares(depends, selected=self._selected(depends))

    def _selected(self, table: pl.DataFrame) -> pl.Series:
        return table["sample_id"].is_in(self.project.selected()["sample_id"].to_list())


class Project:
    """A configuration and its store. Every call reads both anew, so an edit or a run in another process is seen.

    Args:
        config: path of the YAML file, or `demo`; by default what GATEAU_CONFIG names now, else ./gateau.yaml.

    Raises:
        GateauError: there is no configuration, or it is wrong; the message names each place.
    """

    def __init__(self, config: str | Path | None = None) -> None:
        self._name = configuration_name(config)
        self._store = checked_project(config).located_root

    @property
    def config(self) -> Config:
        """Return the configuration as it is in the file now.

        Raises:
            GateauError: the file cannot be read any more, or is wrong.
        """
        return checked_project(self._name)

    def __repr__(self) -> str:
        return f"Project({self._name!r}, store={self._store!r})"

    @property
    def plot(self) -> Plots:
        """Return the plots of the choice: `plot.ranking()`, `plot.lengths()` and `plot.dependency()`."""
        return Plots(project=self)

    def plan(self, until: str | None = None) -> pl.DataFrame:
        """Return the plan of `run`: `asset`, `partition` (null for a global asset) and `why`; empty if all is there.

        Args:
            until: only what this asset needs.

        Raises:
            GateauError: the input or a model cannot be used, or there is no such asset.
        """
        rows = [
            (work.asset, part, why)
            for work in checked_plan(self._state, until).work
            for part, why in work.reasons.items()
        ]
        return pl.DataFrame(rows, {"asset": pl.String, "partition": pl.String, "why": pl.String}, orient="row")

    def run(self, until: str | None = None) -> None:
        """Run what is missing or changed, in a separate process, as `gateau run` does, and print its progress.

        An interrupt ends the run in order; what was computed is kept.

        Raises:
            GateauError: the run failed; the message is its last line.
        """
        command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", self._name]
        command += ["--until", until] if until else []
        last = ""
        # In a separate session: a terminal's or a notebook's interrupt would reach it, too, and a second one ends a
        # run at once.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    sys.stdout.write(line)
                    last = line.strip() or last
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                sys.stdout.write(process.communicate()[0])
                raise
        if process.returncode:
            raise GateauError("api.run_failed", last.removeprefix("Error: ") or "the run failed without a message")

    def table(self, asset: str, *, require_current: bool = False) -> pl.DataFrame:
        """Return a table of the store by its asset key, such as `cam`; the rows of all its partitions.

        Warns by OutOfDateWarning if it should be made again.

        Args:
            asset: its key.
            require_current: whether a table that is out of date is an error.

        Raises:
            GateauError: there is no such asset, it is not computed yet, or it is out of date and must not be.
        """
        state = self._state
        ancestors(asset, state.pipeline.assets)  # it raises for an unknown asset
        return _current(state, asset, require_current)

    def selected(self, *, require_current: bool = False) -> pl.DataFrame:
        """Return the chosen samples, best first (`tables.SELECTED_SUBSET`). For warnings and errors see `table`."""
        return _current(self._state, CHOSEN, require_current).sort("rank")

    def scores(self, *, require_current: bool = False) -> pl.DataFrame:
        """Return the table by whose order the samples are chosen, highest score first; see `table`.

        Each sample's `source` and `instruction` follow its id. `response_tokens` are added if a model has counted them.
        """
        state = self._state
        scores = _current(state, ranking_asset(state.config), require_current)
        texts = state.read("raw_long_sft", ["sample_id", "source", "instruction"])
        found = texts.join(scores, on="sample_id")
        if "response_tokens" not in found.columns and LENGTHS in state.pipeline.required:
            found = found.join(state.read(LENGTHS, ["sample_id", "response_tokens"]), on="sample_id", how="left")
        return found.sort("score", descending=True, nulls_last=True)

    def show(self, sample_id: str) -> OneSample:
        """Return the store's data about a sample: texts, ranks, rejections and maps. A notebook shows a table.

        Warns by OutOfDateWarning if the selection should be made again.

        Args:
            sample_id: its id, or the beginning of it.
        """
        state = self._state
        found = one_sample(state, sample_id)
        _say_if_out_of_date(state, CHOSEN, require_current=False, frames=3)
        return found

    def evidence(self, sample_id: str) -> SampleEvidence:
        """Return a sample's evidence map.

        Raises:
            GateauError: there is no such sample, or it has no map.
        """
        found = self.show(sample_id)
        name = found.sample.sample_id
        if name not in found.maps.maps:
            raise GateauError("api.no_evidence", f"{name} has no evidence map. {found.maps.missing}".strip())
        return SampleEvidence(sample_id=name, evidence=found.maps.maps[name])

    def to_pandas(self, *, require_current: bool = False) -> pd.DataFrame:
        """Return `selected` as a pandas frame; needs the package pandas."""
        return _current(self._state, CHOSEN, require_current).sort("rank").to_pandas()

    def to_dataset(self, form: str = "messages", *, require_current: bool = False) -> datasets.Dataset:
        """Return the chosen samples as a Hugging Face data set; needs the package datasets.

        Args:
            form: as of `gateau export`.
            require_current: see `table`.

        Raises:
            GateauError: there is no such form, or datasets is not installed.
        """
        check_form(form, [*FORMS, TOKENISED])
        try:
            from datasets import Dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise GateauError(
                "api.package", "to_dataset needs the package datasets: pip install 'gateau-dagster[datasets]'"
            ) from error
        state = self._state
        selected, trained = _current(state, CHOSEN, require_current).sort("rank"), state.config.trained_turns
        made_from = [frame_digest(selected), form, trained]
        if form == TOKENISED:
            training, model = state.config.training, state.config.origin(state.config.training.model)
            records = tokenised_table(state.config, selected)
            made_from += [state.model_digests[model], state.config.scoring.template, training.truncation]
            made_from.append(str(training.max_length))
        else:
            records = records_table(selected, form, trained)
        # Its own fingerprint pickles types of pyarrow.
        return Dataset(records, fingerprint=text_digest(made_from))

    @property
    def _state(self) -> State:
        return state_of(config=self.config)


def open(config: str | Path | None = None) -> Project:
    """Return the project of a configuration; see `Project`."""
    return Project(config)


def score(
    model: str | Path,
    samples: Iterable[Mapping[str, Any]],
    *,
    window: int,
    short_model: str | Path | None = None,
    **scoring: Any,
) -> pl.DataFrame:
    """Score samples once, without a project; nothing is kept.

    Args:
        model: theta_B, a folder or a name on the hub, that sees each prompt whole.
        samples: records in any of the input forms, such as `context`, `instruction`, `response`. Values may be those of
            NumPy, pandas, torch or Arrow; NaN, NaT and NA are missing.
        window: tokens at the end of a prompt that theta_A sees.
        short_model: theta_A; by default the same model.
        scoring: other keys of the section `scoring`, such as max_length or dtype.

    Returns:
        One row per scored sample (`tables.COMBINED_SCORES`), highest score first.

    Raises:
        GateauError: a record cannot be read or used, which names it before a model is loaded; or the model cannot be
            used. A record that only a model rejects, such as a response that is too long, is a warning.
    """
    with tempfile.TemporaryDirectory(prefix="gateau-") as name:
        folder = Path(name)
        with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in python_records(samples))
        models = {
            "short": {"path": _model(short_model or model), "context": "window", "window": window},
            "long": {"path": _model(model)},
        }
        content = {
            "long_sft": {"path": "samples.jsonl", "shards": 1},
            "models": models,
            "scoring": scoring,
            "training": {"enabled": False},
        }
        (folder / USUAL_FILE).write_text(yaml.safe_dump(plain_value(content, "score")), encoding="utf-8")
        project = Project(folder / USUAL_FILE)
        _check_records(project.config)
        project.run(until="combined_scores")
        state = project._state
        for asset in state.pipeline.ancestors(["combined_scores"]):
            for sample_id, reason in state.read_rejected(asset).select("sample_id", "reason").iter_rows():
                warnings.warn(f"{sample_id} has no score: {asset} rejected it: {reason}", stacklevel=2)
        return project.scores()


def _check_records(config: Config) -> None:
    """Raise GateauError for records that cannot be used, before any model is loaded."""
    rejected = scan(resolve_files(config.long_sft.path, config.folder), converter(config.long_sft), silent).rejected
    if rejected.is_empty():
        return
    named = []
    for sample_id, location, reason in rejected.select("sample_id", "location", "reason").head(_NAMED).iter_rows():
        number = int(location.rpartition(":")[2])
        named.append(f"  {record_name(number, None if sample_id == location else sample_id)}: {reason}")
    more = f"  and {rejected.height - _NAMED:,} more" if rejected.height > _NAMED else ""
    raise GateauError(
        "api.records",
        "\n".join(filter(None, [f"{plural(rejected.height, 'record')} cannot be used:", *named, more]))
        + "\nCorrect them, or leave them out.",
    )


def _current(state: State, asset: str, require_current: bool) -> pl.DataFrame:
    table = state.read(asset)
    _say_if_out_of_date(state, asset, require_current=require_current, frames=4)
    return table


def _say_if_out_of_date(state: State, asset: str, *, require_current: bool, frames: int) -> None:
    """Warn or raise. `frames`: from here to the code that uses this module, whose line the warning names."""
    sentence = out_of_date(state, asset)
    if sentence and require_current:
        raise GateauError("storage.out_of_date", sentence)
    if sentence:
        warnings.warn(sentence, OutOfDateWarning, stacklevel=frames)


def _model(path: str | Path) -> str:
    """Return a local folder as an absolute path, and a name of the hub as it is."""
    return str(Path(path).absolute()) if Path(path).is_dir() else str(path)
