"""Use a project from Python: plan, run, read its tables, and look at samples in a notebook."""

from __future__ import annotations

import html
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.trainer_records import check_form, records_table
from gateau_dagster.errors import GateauError
from gateau_dagster.explore.one_sample import OneSample, one_sample
from gateau_dagster.pipeline.plan import ancestors
from gateau_dagster.pipeline.project import USUAL_FILE, configuration_name
from gateau_dagster.pipeline.selection_reads import CHOSEN, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.build import evidence_html
from gateau_dagster.report.evidence import Evidence
from gateau_dagster.report.evidence_card import evidence_card
from gateau_dagster.resources.project import checked_project
from gateau_dagster.storage.content import frame_digest

if TYPE_CHECKING:
    import datasets  # pyright: ignore[reportMissingImports]
    import pandas as pd  # pyright: ignore[reportMissingImports]


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
        page = evidence_html(evidence_card(self.evidence, "e"))
        return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:640px;border:0"></iframe>'


class Project:
    """A configuration and its store. Every call reads the store anew, so a run in another process is seen.

    Args:
        config: path of the YAML file, or `demo`; by default what GATEAU_CONFIG names, else ./gateau.yaml.

    Raises:
        GateauError: there is no configuration, or it is wrong; the message names each place.
    """

    def __init__(self, config: str | Path | None = None) -> None:
        self.config: Config = checked_project(config)
        self._name = configuration_name(config)

    def __repr__(self) -> str:
        return f"Project({self._name!r}, store={self.config.located_root!r})"

    def plan(self, until: str | None = None) -> pl.DataFrame:
        """Return what `run` would run: `asset`, `partition` (null for a global asset) and `why`; empty if all is there.

        Args:
            until: only what this asset needs.

        Raises:
            GateauError: the input or a model cannot be used, or there is no such asset.
        """
        rows = [
            (work.asset, part, why) for work in self._state.plan_until(until).work for part, why in work.reasons.items()
        ]
        return pl.DataFrame(rows, {"asset": pl.String, "partition": pl.String, "why": pl.String}, orient="row")

    def run(self, until: str | None = None) -> None:
        """Run what is missing or changed, in a process of its own, as `gateau run` does, and print its progress.

        An interrupt ends the run in order; what was computed is kept.

        Raises:
            GateauError: the run failed; the message is its last line.
        """
        command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", self._name]
        command += ["--until", until] if until else []
        last = ""
        # In a session of its own: a terminal's or a notebook's interrupt would reach it, too, and a second one ends a
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

    def table(self, asset: str) -> pl.DataFrame:
        """Return a table of the store by its asset key, such as `cam`; the rows of all its partitions.

        Raises:
            GateauError: there is no such asset, or it is not computed yet.
        """
        state = self._state
        ancestors(asset, state.pipeline.assets)  # it raises for an unknown asset
        return state.read(asset)

    def selected(self) -> pl.DataFrame:
        """Return the chosen samples, best first (`tables.SELECTED_SUBSET`)."""
        return self._state.read(CHOSEN).sort("rank")

    def scores(self) -> pl.DataFrame:
        """Return the table by whose order the samples are chosen, highest score first."""
        return self._state.read(ranking_asset(self.config)).sort("score", descending=True, nulls_last=True)

    def show(self, sample_id: str) -> OneSample:
        """Return what the store holds about a sample: texts, ranks, rejections and maps.

        Args:
            sample_id: its id, or the beginning of it.
        """
        return one_sample(self._state, sample_id)

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

    def to_pandas(self) -> pd.DataFrame:
        """Return `selected` as a pandas frame; needs the package pandas."""
        return self.selected().to_pandas()

    def to_dataset(self, form: str = "messages") -> datasets.Dataset:
        """Return the chosen samples as a Hugging Face data set; needs the package datasets.

        Args:
            form: as of `gateau export`.

        Raises:
            GateauError: there is no such form, or datasets is not installed.
        """
        check_form(form)
        try:
            from datasets import Dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise GateauError(
                "api.package", "to_dataset needs the package datasets: pip install 'gateau-dagster[datasets]'"
            ) from error
        selected, trained = self.selected(), self.config.trained_turns
        records = records_table(selected, form, trained)
        # Its own fingerprint pickles types of pyarrow.
        return Dataset(records, fingerprint=text_digest((frame_digest(selected), form, trained)))

    @property
    def _state(self) -> State:
        return State(config=self.config)


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
        samples: records in any of the input forms, such as `context`, `instruction`, `response`.
        window: tokens at the end of a prompt that theta_A sees.
        short_model: theta_A; by default the same model.
        scoring: further keys of the section `scoring`, such as max_length or dtype.

    Returns:
        One row per scored sample (`tables.COMBINED_SCORES`), highest score first.

    Raises:
        GateauError: a sample or the model cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="gateau-") as name:
        folder = Path(name)
        lines = (json.dumps(dict(sample), ensure_ascii=False) + "\n" for sample in samples)
        (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
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
        (folder / USUAL_FILE).write_text(yaml.safe_dump(content), encoding="utf-8")
        project = Project(folder / USUAL_FILE)
        project.run(until="combined_scores")
        return project.scores()


def _model(path: str | Path) -> str:
    """Return a local folder as an absolute path, and a name of the hub as it is."""
    return str(Path(path).absolute()) if Path(path).is_dir() else str(path)
