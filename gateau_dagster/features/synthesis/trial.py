"""Write and check samples about some documents, and print their yield: `gateau validate --synthesis`."""

import json
from functools import partial
from pathlib import Path

import polars as pl

from gateau_dagster.cli.display import as_line, console
from gateau_dagster.cli.validate import text_ends
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.generation.answering import partly_read_answers
from gateau_dagster.features.synthesis.assets import tried
from gateau_dagster.features.synthesis.candidate_checks import figure_sentence
from gateau_dagster.features.synthesis.config import SECTION
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.progress import silent
from gateau_dagster.readable import plural, printable
from gateau_dagster.resources.lease import whole_store_lease
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.storage.files import Files

_TRIED_DOCUMENTS = 20


def print_synthesis(config: Config) -> None:
    """Print the yield of synthetic samples about some documents: accepted ones, and refused ones by reason.

    Meanwhile no run works on the store, so that nothing is asked twice.

    Raises:
        GateauError: `synthesis` is not configured, the budget does not suffice, a run has the store, or a server or
            model cannot be used.
    """
    options = SECTION.of(config)
    if options is None:
        raise GateauError("synthesis.missing", "--synthesis: tries the section synthesis: add it, or leave this out")
    out, state = console(), state_of(config=config)
    say = partial(out.print, style="dim")
    with whole_store_lease(config, "gateau validate", say), out.status("Writing and checking synthetic samples"):
        found, checked = tried(state, ModelsResource(), JudgeResource(), silent, _TRIED_DOCUMENTS)
    share = f"{found.accepted / max(1, checked.height):.0%}"
    out.print("[bold]synthesis[/bold]")
    out.print(f"  {found.accepted:,} of {plural(checked.height, 'candidate')} accepted ({share})")
    for kind, part in sorted(checked.partition_by("kind", as_dict=True).items()):
        out.print(f"  {kind[0]}: {int(part['accepted'].sum())} of {part.height} accepted")
    refused = checked.filter(~pl.col("accepted"))
    reasons = refused["reason"].value_counts().sort(["count", "reason"], descending=[True, False])
    for reason, count in reasons.iter_rows():
        out.print(f"  {count} x {reason}")
        example = refused.filter(reason=reason).row(0, named=True)
        figure = figure_sentence(reason, example.get(reason), options.checks)
        texts = {name: text_ends(example[name] or "") for name in ("question", "answer", "reply")}
        for name, said in {**texts, "figure": figure, "why": printable(example["detail"] or "")}.items():
            if said:
                out.print(f"    {name}: {said}", markup=False)
    if said := partly_read_answers(checked, at_least=True):
        out.print(f"  [yellow]![/yellow] {as_line(said)}")
    if refused.height:
        file = _keep_refused(config, refused)
        out.print(f"  All {plural(refused.height, 'refused candidate')}: {as_line(str(file))}")
        folder = state.store.files.address(options.generator.replies_folder)
        out.print(f"  All replies, as they came: {as_line(folder)}")


def _keep_refused(config: Config, refused: pl.DataFrame) -> Path:
    """Write the refused candidates as JSON lines into the scratch folder, and return the file."""
    folder, name = config.work_folder, "refused_candidates.jsonl"
    shown = refused.select(pl.exclude("accepted", "probability", "figures"))
    rows = ({key: value for key, value in row.items() if value is not None} for row in shown.iter_rows(named=True))
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    Files(str(folder)).write(name, text.encode(errors="replace"))
    return folder / name
