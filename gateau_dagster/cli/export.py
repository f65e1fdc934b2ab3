"""`gateau export`: the chosen samples as a file that a trainer reads."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

from gateau_dagster import tables
from gateau_dagster.cli.display import as_line, console, say_if_out_of_date
from gateau_dagster.config import Config
from gateau_dagster.config.training import TrainedTurns
from gateau_dagster.data.sample import Sample, read_conversation
from gateau_dagster.data.secret_scan import Finding, named_findings, secrets_of_rows
from gateau_dagster.data.trainer_records import (
    FORMS,
    TOGETHER,
    TOOLS,
    Form,
    Record,
    Spans,
    check_evidence,
    check_form,
    check_lines,
    trainer_record,
    trainer_schema,
    trainer_table,
    usable_evidence,
    write_parquet,
)
from gateau_dagster.errors import GateauError, UnscorableSampleError, gateau_command
from gateau_dagster.pipeline.feature import features, prepare_inputs
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.outputs import check_output
from gateau_dagster.pipeline.project import configuration_name
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.readable import plural
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.local import replace_local

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_KINDS = {".jsonl": "json", ".parquet": "parquet"}
TOKENISED = "tokenised"
_TOKENS = {name: pa.list_(pa.int32()) for name in ("input_ids", "labels")} | {"attention_mask": pa.list_(pa.int8())}
_Make = Callable[[Sample, Spans], tuple[Record, bool]]
"""Make the record of a sample, and tell whether it was shortened."""


def export_selection(
    config: Config, form: str, file: Path, *, max_tokens: int | None = None, require_current: bool = False
) -> None:
    """Write `selected_subset` in a form of FORMS, or tokenised; the file is replaced in one step.

    Warns if the selection is not the one that the configuration describes now, or if it has secrets. Few samples are in
    memory at a time.

    Args:
        config: of the project.
        form: a key of FORMS, or TOKENISED.
        file: its ending decides how it is written.
        max_tokens: shorten longer samples as training does, and leave out those that cannot be shortened enough.
        require_current: whether to write nothing if the selection is out of date.

    Raises:
        GateauError: there is no such form or ending, the project uses the file, nothing is selected yet, no sample fits
            the form, the file cannot hold the turns or cannot be written, or the configuration has no model that
            counts the tokens.
    """
    check_form(form, [*FORMS, TOKENISED])
    if file.suffix not in _KINDS:
        raise GateauError(
            "export.ending", f"{file} must end in {' or '.join(_KINDS)}, which decides how it is written."
        )
    check_output(config, file, configuration_name())
    out, state = console(), state_of(config=config)
    with TemporaryDirectory() as scratch:
        selected = pq.ParquetFile(state.store.fetched(CHOSEN, Path(scratch)))
        say_if_out_of_date(out, state, [CHOSEN], require_current=require_current)
        check_evidence(form, selected.schema_arrow.names)
        tokenised = form == TOKENISED
        columns = _TOKENS if tokenised else FORMS[form].columns
        trained = config.trained_turns if tables.CONVERSATION.name in selected.schema_arrow.names else None
        schema = trainer_schema(columns, conversations=trained is not None)
        make = _tokenised(config, max_tokens) if tokenised else _fitted(config, FORMS[form], trained, max_tokens)
        counts: Counter[str] = Counter()
        needs_evidence = not tokenised and FORMS[form].of_evidence
        records = _records(selected, make, counts, needs_evidence=needs_evidence)
        with readable_failures(f"write {file}"):
            replace_local(file, lambda path: _write(records, schema, path, file.suffix))
        secrets = _unaccepted_secrets(config, selected)
    if counts["without_evidence"]:
        out.print(f"Left out {plural(counts['without_evidence'], 'sample')} without evidence.")
    if counts["shortened"]:
        out.print(f"Shortened {plural(counts['shortened'], 'sample')} to fit the tokens that are allowed.")
    if secrets:
        cure = "Remove each from the data, and replace it where it is in use: gateau publish refuses them."
        out.print(f"[yellow]![/yellow] The selection has {as_line(named_findings(secrets))}. {cure}", soft_wrap=True)
    if counts["spelled"] and not tokenised:
        spelled = plural(counts["spelled"], "written sample")
        out.print(
            f"[yellow]![/yellow] {spelled} spell{'s' * (counts['spelled'] == 1)} control tokens, which a trainer may "
            f"read as control tokens. `{gateau_command(f'export {TOKENISED}')}` reads them as text.",
            soft_wrap=True,
        )
    out.print(f"[green]Wrote[/green] {plural(counts['written'], 'sample')} to [bold]{as_line(str(file))}[/bold]")
    for trainer, line in _trainers(form, file, trained):
        out.print(f"  {trainer}: {as_line(line)}", soft_wrap=True)


def _rows(selected: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    return (row for batch in selected.iter_batches(TOGETHER) for row in batch.to_pylist())


def _unaccepted_secrets(config: Config, selected: pq.ParquetFile) -> list[Finding]:
    accepted = frozenset().union(*(feature.no_secrets(config) for feature in features()))
    with console().status("Looking for secrets"):
        return [each for each in secrets_of_rows(_rows(selected), CHOSEN) if each.secret_hash not in accepted]


def _records(selected: pq.ParquetFile, make: _Make, counts: Counter[str], *, needs_evidence: bool) -> Iterator[Record]:
    """Yield the record of each sample, best first as in the table; print which are left out, and count the others."""
    out = console()
    for row in track(_rows(selected), "Exporting samples", selected.metadata.num_rows, console=out, transient=True):
        spans = usable_evidence(row)
        if needs_evidence and not spans:
            counts.update(without_evidence=1)
            continue
        try:
            sample = Sample.of_row(row)
            record, shortened = make(sample, spans)
        except UnscorableSampleError as error:
            out.print(f"[yellow]![/yellow] Left out {as_line(row['sample_id'])}: {as_line(str(error))}")
            continue
        counts.update(written=1, shortened=int(shortened), spelled=int(bool(sample.control_tokens)))
        yield trainer_record(row, record)
    if not counts["written"]:
        lacking = f", {counts['without_evidence']} of them for lack of evidence" if needs_evidence else ""
        raise GateauError(
            "export.empty",
            f"No file is written. The selection has {plural(selected.metadata.num_rows, 'sample')}, and all are left "
            f"out{lacking}.",
        )


def _write(records: Iterable[Record], schema: pa.Schema, path: Path, suffix: str) -> None:
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            for record in records:
                check_lines(record, schema)
                file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    else:
        write_parquet(records, schema, path)


def tokenised_table(config: Config, selected: pl.DataFrame) -> pa.Table:
    """Return the tokens and labels of chosen samples, as `gateau export tokenised` writes them.

    Warns of each sample that training leaves out.
    """
    make, records = _tokenised(config, None), []
    for row in selected.iter_rows(named=True):
        try:
            records.append(trainer_record(row, make(Sample.of_row(row), ())[0]))
        except UnscorableSampleError as error:
            warnings.warn(f"Left out {row['sample_id']}: {error}", stacklevel=3)
    return trainer_table(records, trainer_schema(_TOKENS, conversations=True))


def _tokenised(config: Config, max_tokens: int | None) -> _Make:
    """Return a function that makes the tokens and labels of the asset `training_mix`."""
    from gateau_dagster.training.encode import encode_long

    tokenizer = _tokenizer(config, config.training.model)

    def make(sample: Sample, _: Spans) -> tuple[Record, bool]:
        encoded = encode_long(
            tokenizer,
            sample,
            template=config.scoring.template,
            max_length=max_tokens or config.training.max_length,
            truncation=config.training.truncation,
            trained_turns=config.trained_turns,
        )
        tokens = {"input_ids": encoded.input_ids.tolist(), "labels": encoded.labels.tolist()}
        return {**tokens, "attention_mask": [1] * len(encoded.input_ids)}, encoded.truncated_tokens > 0

    return make


def _fitted(config: Config, form: Form, trained: TrainedTurns | None, max_tokens: int | None) -> _Make:
    """Return a function that makes the records of a form, of at most `max_tokens` tokens of models.long."""
    from gateau_dagster.models.prompt import fitted_context, fitted_turns

    if max_tokens is None:
        return lambda sample, spans: (form.record(sample, trained, spans), False)
    if form.of_evidence:
        raise GateauError(
            "export.whole", "--max-tokens does not apply to this format: its places are of whole contexts."
        )
    tokenizer, most = _tokenizer(config, "long"), max_tokens

    def make(sample: Sample, spans: Spans) -> tuple[Record, bool]:
        if form.of_turns and sample.conversation:
            if not tokenizer.chat_template:
                raise GateauError(
                    "models.chat_template",
                    "--max-tokens counts a conversation's tokens by the chat template of models.long, which has none. "
                    "Leave the option out, or export fields, whose context is a transcript.",
                )
            messages, tools = read_conversation(sample.conversation)
            kept, shortened = fitted_turns(tokenizer, messages, tools, max_tokens=most)
            fitted = replace(sample, conversation=json.dumps({"messages": kept, "tools": tools}))
        else:
            fitted = replace(sample, context=fitted_context(tokenizer, sample, max_tokens=most))
            shortened = fitted.context != sample.context
        return form.record(fitted, trained, spans), bool(shortened)

    return make


def _tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    from gateau_dagster.models.loading import load_tokenizer

    if model not in config.models:
        raise GateauError("export.model", f"Tokens are those of models.{model}, which is not configured.")
    prepare_inputs(config, "models")
    return load_tokenizer(config.located_model(config.origin(model)), folder=config.folder)


def _trainers(form: str, file: Path, trained: TrainedTurns | None) -> Iterator[tuple[str, str]]:
    """Yield the trainers that read a form, and how each is told about the file.

    trained: the turns that have loss; None if no sample has several exchanges.
    """
    kind = _KINDS[file.suffix]
    trl = f'load_dataset("{kind}", data_files="{file}", split="train")'
    axolotl = f"path: {file}, ds_type: {kind}"
    info: dict[str, Any] = {"file_name": file.name}
    tools = {TOOLS: TOOLS} if trained else {}
    if form == "messages":
        # TRL ignores `loss`, and would learn the earlier answers, too.
        only = f"{gateau_command('export prompt')}, whose loss counts the last turn only"
        yield "TRL", only if trained == "last" else f"{trl}, with assistant_only_loss=True"
        fields = "type: chat_template, field_messages: messages, roles_to_train: [assistant]"
        yield "axolotl", f"- {{{axolotl}, {fields}{', message_field_training: loss' if trained else ''}}}"
        yield "ms-swift", f"--dataset {file}"
    elif form == "prompt":
        yield "TRL", trl
    elif form == "sharegpt":
        entry = info | {"formatting": "sharegpt", "columns": {"messages": "conversations", **tools}}
        yield "LLaMA-Factory, dataset_info.json", json.dumps({"gateau": entry})
    elif form == "alpaca":
        yield "LLaMA-Factory, dataset_info.json", json.dumps({"gateau": info})
        yield "axolotl", f"- {{{axolotl}, type: alpaca}}"
    elif form == TOKENISED:
        yield "TRL", trl
        yield "axolotl", f"- {{{axolotl}, type: }}"
