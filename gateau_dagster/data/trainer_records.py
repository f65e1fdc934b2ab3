"""Turn chosen samples into the records that trainers read.

A sample of several exchanges keeps its turns and tool calls in the forms of turns; the other forms have the transcript
that was scored. In a selection with conversations each turn says by `loss` whether it is learned, as ms-swift and, by
`message_field_training`, axolotl read it. All have it because `datasets` reads JSON Lines by the fields of the first.
"""

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gateau_dagster.config.training import TrainedTurns
from gateau_dagster.data.sample import Sample, read_conversation
from gateau_dagster.errors import GateauError, UnscorableSampleError, gateau_command
from gateau_dagster.readable import nearest_name
from gateau_dagster.tables import CONVERSATION

Record = dict[str, Any]
Spans = Sequence[Mapping[str, Any]]
"""The column `evidence` of a sample; empty without that column."""
_TEXT = pa.string()
_TURNS = pa.list_(pa.struct({"role": _TEXT, "content": _TEXT}))
# Turns differ in their fields, and tool calls in their arguments. Trainers' templates print a null, so each turn is a
# JSON value, which the package datasets reads as it is.
_JSON_TURNS = pa.list_(pa.json_())
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"  # LLaMA-Factory allows one turn of results
_GAP = "\n\n"  # between pieces of evidence
_LEAST_CHUNK = 500  # characters of text without evidence, so that short evidence does not cut it to crumbs
TOGETHER = 64
"""Samples that are in memory at a time, and in a row group."""
TOOLS = "tools"
"""The column of a conversation's tools, as JSON text: TRL, axolotl, LLaMA-Factory and ms-swift read that."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of records.

    of_turns: whether it keeps the turns of a conversation. of_evidence: whether its records need evidence, so that
    samples without any are left out. columns: Arrow types by name. record: makes one of a sample, the turns that have
    loss (None if no selected sample has several exchanges), and the evidence.
    """

    of_turns: bool
    of_evidence: bool = False
    columns: Mapping[str, pa.DataType]
    record: Callable[[Sample, TrainedTurns | None, Spans], Record]


def _turns(sample: Sample, trained: TrainedTurns | None, no_tools: str = "[]") -> tuple[list[Record], Record]:
    """Return the turns of a sample, and its tools as a column if some sample has a conversation."""
    # LongAlign's form, as models.prompt.chat_frame shows it to a chat template
    messages: list[Record] = [
        {"role": "user", "content": sample.user_turn},
        {"role": "assistant", "content": sample.response},
    ]
    tools: list[Record] = []
    if sample.conversation:
        messages, tools = read_conversation(sample.conversation)
    if trained is None:
        return messages, {}
    for place, message in enumerate(messages, start=1):
        learned = message.pop("trained", True) and (trained == "all" or place == len(messages))
        message["loss"] = learned and message["role"] == "assistant"
    return messages, {TOOLS: json.dumps(tools, ensure_ascii=False) if tools else no_tools}


def _messages(sample: Sample, trained: TrainedTurns | None, _: Spans = ()) -> Record:
    messages, tools = _turns(sample, trained)
    return {"messages": messages, **tools}


def _prompt(sample: Sample, trained: TrainedTurns | None, _: Spans = ()) -> Record:
    messages, tools = _turns(sample, trained)
    return {"prompt": messages[:-1], "completion": messages[-1:], **tools}


_SPEAKERS = {"user": "human", "assistant": "gpt", "tool": "observation"}
_ALTERNATING = (("human", "observation"), ("gpt", "function_call"))  # LLaMA-Factory skips other conversations


def _sharegpt(sample: Sample, trained: TrainedTurns | None, _: Spans = ()) -> Record:
    messages, tools = _turns(sample, trained, no_tools="")  # LLaMA-Factory shows a model an empty list as tools
    said: list[Record] = []
    for message in messages:
        speaker, text = _SPEAKERS.get(message["role"], message["role"]), message["content"]
        if calls := message.get("tool_calls"):
            speaker = "function_call"
            functions = [call["function"] for call in calls]
            said_calls = [{name: each.get(name) for name in ("name", "arguments")} for each in functions]
            value = json.dumps(said_calls, ensure_ascii=False)
            text = f"{text}\n<tool_call>{value}</tool_call>" if text else value
        if speaker == "observation" and said and said[-1]["from"] == speaker:
            said[-1]["value"] += _BETWEEN_RESULTS + text
        else:
            said.append({"from": speaker, "value": text})
    speakers = [turn["from"] for turn in said]
    if speakers[0] == "system":
        del speakers[0]
    for place, speaker in enumerate(speakers):
        if speaker not in _ALTERNATING[place % 2]:
            before = f"follows {speakers[place - 1]}" if place else "comes first"
            raise UnscorableSampleError(f"the turn {speaker} {before}, and LLaMA-Factory skips such a conversation")
    return {"conversations": said, **tools}


def _preference(sample: Sample, _: TrainedTurns | None, spans: Spans) -> Record:
    """Return the response, the prompt with the whole context, and the one with nothing but the evidence."""
    pieces = [sample.context[span["start"] : span["end"]] for span in spans]
    # Segments that follow one another stay one text.
    gaps = ["" if one["end"] == other["start"] else _GAP for one, other in pairwise(spans)]
    evidence = "".join(piece + gap for piece, gap in zip(pieces, [*gaps, ""], strict=True))
    prompts = {"prompt": sample, "short_prompt": replace(sample, context=evidence)}
    turns = {name: [{"role": "user", "content": each.user_turn}] for name, each in prompts.items()}
    return {**turns, "chosen": [{"role": "assistant", "content": sample.response}]}


def _chunks(sample: Sample, _: TrainedTurns | None, spans: Spans) -> Record:
    """Return the context cut at its evidence, the text between in pieces of about the length of its longest span."""
    usual = max(_LEAST_CHUNK, *(span["end"] - span["start"] for span in spans))
    cut: list[tuple[int, int, bool]] = []
    place = 0
    for span in (*spans, {"start": len(sample.context), "end": len(sample.context)}):
        gap = span["start"] - place
        count = max(1, round(gap / usual)) if gap else 0
        ends = [place + gap * number // count for number in range(count + 1)] if gap else []
        cut += [(begin, end, False) for begin, end in pairwise(ends)] + [(span["start"], span["end"], True)]
        place = span["end"]
    chunks = [{"text": sample.context[begin:end], "grounding": is_evidence} for begin, end, is_evidence in cut[:-1]]
    return {"instruction": sample.instruction, "response": sample.response, "chunks": chunks}


def _of_fields(**columns: str) -> Form:
    return Form(
        of_turns=False,
        columns=dict.fromkeys(columns, _TEXT),
        record=lambda sample, *_: {name: getattr(sample, field) for name, field in columns.items()},
    )


FORMS: dict[str, Form] = {
    "messages": Form(of_turns=True, columns={"messages": _JSON_TURNS, TOOLS: _TEXT}, record=_messages),
    "prompt": Form(
        of_turns=True, columns={"prompt": _JSON_TURNS, "completion": _JSON_TURNS, TOOLS: _TEXT}, record=_prompt
    ),
    "sharegpt": Form(
        of_turns=True,
        columns={"conversations": pa.list_(pa.struct({"from": _TEXT, "value": _TEXT})), TOOLS: _TEXT},
        record=_sharegpt,
    ),
    "alpaca": _of_fields(instruction="instruction", input="context", output="response"),
    "fields": _of_fields(context="context", instruction="instruction", response="response"),
    "preference": Form(
        of_turns=False,
        of_evidence=True,
        columns={"prompt": _TURNS, "short_prompt": _TURNS, "chosen": _TURNS},
        record=_preference,
    ),
    "chunks": Form(
        of_turns=False,
        of_evidence=True,
        columns={
            "instruction": _TEXT,
            "response": _TEXT,
            "chunks": pa.list_(pa.struct({"text": _TEXT, "grounding": pa.bool_()})),
        },
        record=_chunks,
    ),
}
"""The forms of records by name."""
_ABOUT = {"sample_id": _TEXT, "source": _TEXT, "score": pa.float64(), "rank": pa.int32()}


def check_form(form: str, forms: Collection[str] = FORMS.keys()) -> None:
    """Raise GateauError if there is no such form."""
    if form not in forms:
        raise GateauError("export.format", f"there is no format {form!r}; {nearest_name(form, forms)}")


def check_evidence(form: str, columns: Collection[str]) -> None:
    """Raise GateauError if the form needs evidence, and the selection with these columns has none."""
    if form in FORMS and FORMS[form].of_evidence and "evidence" not in columns:
        raise GateauError(
            "export.no_evidence",
            f"format {form} needs the column evidence, which selected_subset lacks: set selection.evidence: true, and "
            f"run `{gateau_command('run')}`.",
        )


def check_lines(record: Record, schema: pa.Schema) -> None:
    """Raise GateauError if a turn of the record has fields that turns of other records lack, as tool calls do."""
    turns = [turn for field in schema if field.type == _JSON_TURNS for turn in record[field.name]]
    if more := sorted({name for turn in turns for name in turn} - {"role", "content", "loss"}):
        raise GateauError(
            "export.turn_fields",
            f"{record['sample_id']} has turns with {', '.join(more)}, which other turns lack. The package datasets "
            "cannot read that from JSON Lines: name a file that ends in .parquet.",
        )


def usable_evidence(row: Mapping[str, Any]) -> Spans:
    """Return the column `evidence` of a row without empty spans; empty without the column."""
    return [span for span in row.get("evidence") or () if span["start"] < span["end"]]


def trainer_record(row: Mapping[str, Any], record: Record) -> Record:
    """Return the record of a row of tables.SELECTED_SUBSET, with `sample_id`, `source`, `score` and `rank`."""
    return record | {name: row[name] for name in _ABOUT}


def trainer_schema(columns: Mapping[str, pa.DataType], *, conversations: bool) -> pa.Schema:
    """Return the Arrow schema of records. `conversations`: whether some samples have several exchanges."""
    if not conversations:
        columns = {name: _TURNS if kind == _JSON_TURNS else kind for name, kind in columns.items() if name != TOOLS}
    return pa.schema({**columns, **_ABOUT})


def trainer_table(records: list[Record], schema: pa.Schema) -> pa.Table:
    """Return records as an Arrow table."""
    columns = []
    for field in schema:
        if field.type == _JSON_TURNS:
            turns = [[json.dumps(turn, ensure_ascii=False) for turn in record[field.name]] for record in records]
            columns.append(pa.array(turns, pa.list_(_TEXT)).cast(field.type))
        else:
            columns.append(pa.array([record[field.name] for record in records], field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def write_parquet(records: Iterable[Record], schema: pa.Schema, path: Path) -> None:
    """Write records as Parquet, of which a row group at a time is in memory."""
    rest = iter(records)
    with pq.ParquetWriter(path, schema) as file:
        while some := [*islice(rest, TOGETHER)]:
            file.write_table(trainer_table(some, schema))


def trainer_records(selected: pl.DataFrame, form: str, trained: TrainedTurns = "all") -> Iterator[Record]:
    """Yield the records of chosen samples, best first; without samples that lack evidence, if the form needs it.

    Warns of each sample that the form cannot hold, and leaves it out.

    Args:
        selected: tables.SELECTED_SUBSET, with or without conversations.
        form: a key of FORMS.
        trained: turns that have loss.
    """
    check_evidence(form, selected.columns)
    turns = trained if CONVERSATION.name in selected.columns else None
    for row in selected.sort("rank").iter_rows(named=True):
        spans = usable_evidence(row)
        if FORMS[form].of_evidence and not spans:
            continue
        try:
            record = FORMS[form].record(Sample.of_row(row), turns, spans)
        except UnscorableSampleError as error:
            warnings.warn(f"Left out {row['sample_id']}: {error}", stacklevel=2)
            continue
        yield trainer_record(row, record)


def records_table(selected: pl.DataFrame, form: str, trained: TrainedTurns) -> pa.Table:
    """Return all `trainer_records` as one Arrow table."""
    schema = trainer_schema(FORMS[form].columns, conversations=CONVERSATION.name in selected.columns)
    return trainer_table([*trainer_records(selected, form, trained)], schema)
