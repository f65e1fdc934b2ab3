"""`gateau init`: write a configuration for the user's data and models, with the reason for each value beside it."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import yaml

from gateau_dagster.cli.display import as_line, console
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_config import learned_positions, rotary_positions
from gateau_dagster.models.model_facts import facts_of
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.outputs import named_files
from gateau_dagster.pipeline.project import USUAL_FILE, as_text, configuration_schema, parse_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import TokenRates, token_rates
from gateau_dagster.readable import nearest_name, plural
from gateau_dagster.storage.files import Files, replace_text
from gateau_dagster.storage.local import check_apart

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

    from gateau_dagster.models.model_facts import ModelFacts

GOALS = {
    "select": "choose samples; train nothing",
    "train": "choose samples, train the model on them, and evaluate it",
    "compare": "train on several selections (the method, a random one, all samples), and compare the models",
}
SCHEMA_FILE = ".gateau/gateau.schema.json"
IGNORE_FILE = ".gitignore"
_WRITTEN = (USUAL_FILE, SCHEMA_FILE, IGNORE_FILE)
_PER_SHARD, _MOST_SHARDS = 250, 256
_MOST_SOURCES = 20  # in a comment
_SEGMENT, _NEAR_SEGMENTS = 128, 4  # tokens of a segment, and the fewest segments that should be near
_LONGEST = 65_536  # proposed where neither data nor model says less
_IGNORED = ("/.gateau/", "/gateau_store/")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to the four questions of `gateau init`.

    data: path, glob or data-set name. model: the model with the long window. short: a second model of its family with
    a short window; None uses the first one twice. device: as scoring.device. goal: a key of GOALS.
    """

    data: str
    model: str
    short: str | None
    device: str
    goal: str


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A value of the configuration, and the reason for it."""

    value: int | str
    reason: str


def ask(data: str | None, model: str | None, short: str | None, device: str | None, goal: str | None) -> Answers:
    """Return the answers; ask in the terminal for those that no option gives.

    Raises:
        click.UsageError: data or model is missing, and there is no terminal to ask in.
        GateauError: the goal does not exist.
    """
    terminal = sys.stdin.isatty()
    if not terminal and (data is None or model is None):
        raise click.UsageError("Without a terminal, give --data and --model: see gateau init --help.")
    alone = model is None  # then the pair is a question, too
    if data is None:
        data = click.prompt("Long samples (a path, a glob such as data/*.jsonl, or a data set's name on the hub)")
    if model is None:
        model = click.prompt("Model with a long window (a folder, or a name on the hub)")
    if short is None and alone:
        short = (
            click.prompt("Model of the same family with a short window (Enter: use the first one twice)", "") or None
        )
    if terminal and device is None:
        device = click.prompt("Device that scores (auto, cpu, cuda)", "auto")
    if terminal and goal is None:
        for name, meaning in GOALS.items():
            click.echo(f"  {name:<8} {meaning}")
        goal = click.prompt("What to do", "select")
    goal = goal or "select"
    if goal not in GOALS:
        raise GateauError("init.goal", f"there is no goal {goal!r}; {nearest_name(goal, GOALS)}")
    return Answers(data=str(data), model=str(model), short=short, device=device or "auto", goal=goal)


def write_project(folder: Path, answers: Answers, *, force: bool) -> None:
    """Write gateau.yaml, its schema and .gitignore into `folder`, after a look at the data and the model.

    Raises:
        GateauError: there is a gateau.yaml already, the folder cannot be written, data or model cannot be read, or one
            of them is a file that is written.
    """
    out, file = console(), folder / USUAL_FILE
    if file.exists() and not force:
        raise GateauError("init.exists", f"{file} exists. Give --force to replace it, or another folder.")
    for name in (str(folder.absolute()), *filter(None, (answers.data, answers.model, answers.short))):
        as_text(Path(name))
    try:
        Files(str(folder.absolute())).check_writable()
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # such as in /proc
        raise GateauError(
            "storage.path", f"Cannot write {folder}: this file system takes no new files. Give another folder."
        ) from error
    text = proposed_text(folder, answers)
    config = parse_project(text, folder=folder)
    for name in _WRITTEN:
        check_apart(folder / name, named_files(config, folder / name))
    (folder / SCHEMA_FILE).parent.mkdir(exist_ok=True)
    replace_text(folder / SCHEMA_FILE, json.dumps(configuration_schema(), indent=1))
    _ignore(folder / IGNORE_FILE)
    replace_text(file, text)  # last: what fails before it can be tried again without --force
    for line in text.splitlines():
        out.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"[bold]Wrote {as_line(str(file))}[/bold]. Next:")
    if folder.resolve() != Path().resolve():
        out.print(f"  cd {shlex.quote(str(folder))}", markup=False)
    for command, meaning in (
        ("gateau validate", "what of the data can be used, and how a sample is read"),
        ("gateau plan", "what would run, and how long it takes"),
        ("gateau run" + (" --until selected_subset" if answers.goal == "select" else ""), "run it"),
        ("gateau export messages --out selected.parquet", "the chosen samples, for a trainer"),
    ):
        out.print(f"  {command:<46}{meaning}", markup=False, soft_wrap=True)


def proposed_text(folder: Path, answers: Answers) -> str:
    """Return the content of gateau.yaml; relative paths in `answers` start at the current folder.

    Prints how many records are rejected, and how many samples have no context.

    Raises:
        GateauError: the data cannot be read, or none of it can be used.
    """
    data, model, short = (
        _from(folder, each) if each else None for each in (answers.data, answers.model, answers.short)
    )
    sections = {
        "long_sft": {"path": data},
        "models": {"long": {"path": model}, **({"short": {"path": short}} if short else {})},
        "scoring": {"device": answers.device},
        "training": {"enabled": False},
        "selection": {"method": "length"},
    }
    state = state_of(config=parse_project(yaml.safe_dump(sections), folder=folder))
    with console().status("Reading the samples"):
        index = state.index
    for share, sentence in (
        (index.rejects.share, index.rejects.sentence("record")),
        (index.contexts.share, index.contexts.amount),
    ):
        if share:
            console().print(f"[yellow]![/yellow] {as_line(sentence)}")
    looked = _Look.at(state, short="short" if short else "long")
    length, window, segment = looked.max_length, looked.window, looked.segment_length
    paths = {"data": data, "model": model, "short": short or model}
    quoted = {name: yaml.safe_dump(path, width=10_000).removesuffix("...\n").strip() for name, path in paths.items()}
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_FILE}",
        "# Relative paths start at the folder of this file. All keys: gateau schema, and the documentation.",
        "storage: {root: ./gateau_store}  # or s3://bucket/prefix",
        "long_sft:",
        f"  path: {quoted['data']}",
        f"  # {plural(index.accepted.height, 'usable sample')}; about {_PER_SHARD} a shard, which is one partition",
        f"  shards: {min(_MOST_SHARDS, max(1, math.ceil(index.accepted.height / _PER_SHARD)))}",
        "models:",
        f"  # theta_A sees the last tokens of a prompt only: {window.reason}",
        f"  short: {{path: {quoted['short']}, context: window, window: {window.value}}}",
        "  # theta_B sees the whole prompt." + ("" if short else " The same model: no pair is needed."),
        f"  long: {{path: {quoted['model']}}}",
        "scoring:",
        f"  max_length: {length.value}  # {length.reason}",
        f"  segment_length: {segment.value}  # {segment.reason}",
        f"  template: {looked.template.value}  # {looked.template.reason}",
        f"  dtype: {looked.dtype.value}  # {looked.dtype.reason}",
        f"  device: {answers.device}",
        "# auto: as many far samples as the use needs (rule mix) if the forecast says that it pays, else random ones",
        "# evidence: the segments that each response depends on, in the table evidence and in selected_subset;",
        "# control: 30 more samples are read, to measure the ranking on this data; true: without them",
        *_ground_truth_lines(index.accepted["source"].unique().sort().to_list()),
        "selection: {rule: auto, fraction: 0.1, evidence: control}  # or count: 1000; or budget, in tokens",
        *_training_lines(answers, int(length.value), str(looked.dtype.value)),
    ]
    if answers.goal != "select":
        accepts = partial(_is_valid, folder, "\n".join(lines))
        lines += [line for feature in features() for line in feature.first_lines(state.config, accepts)]
    return "\n".join(lines) + "\n"


def _is_valid(folder: Path, text: str, line: str) -> bool:
    """Return whether a configuration with another line is valid."""
    try:
        parse_project(f"{text}\n{line}\n", folder=folder)
    except GateauError:
        return False
    return True


def _ground_truth_lines(sources: list[str]) -> Iterator[str]:
    """Yield a comment that offers `selection.ground_truth`, if there are several sources."""
    if 1 < len(sources) <= _MOST_SOURCES:
        names = yaml.safe_dump(sources, default_flow_style=True, width=10_000).strip()
        yield "# ground_truth: sources whose samples are known to need far text; the report then measures the ranking"
        yield f"#   sources here: {names}"


def _training_lines(answers: Answers, length: int, dtype: str) -> Iterator[str]:
    """Yield the sections after `selection`, by the goal."""
    if answers.goal == "select":
        yield "training: {enabled: false}"
        return
    yield "# short_chat: {path: data/sharegpt.json}  # short conversations to mix in, as the papers do"
    yield "training:"
    yield f"  max_length: {length}"
    if dtype != "bfloat16":
        yield f"  dtype: {dtype}"
    if answers.device != "cpu":
        import torch

        if (gpus := torch.cuda.device_count()) > 0:
            yield f"  processes: {gpus}  # the GPUs of this machine"
            yield "  deepspeed: zero3"
    if answers.goal == "compare":
        yield "variants:"
        yield "  methods: [gateau, random, length]"
        yield "  also: [full]"
        yield "  equal: tokens  # every selection has the same number of tokens"


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The values that data, model and machine suggest."""

    max_length: Proposal
    window: Proposal
    segment_length: Proposal
    template: Proposal
    dtype: Proposal

    @classmethod
    def at(cls, state: State, *, short: str) -> _Look:
        """Look at a state with `models.long`; `short`: the name of theta_A's model in it."""
        known = facts_of(state.config, "long")
        try:
            rates = token_rates(state, "long")
        except GateauError:  # the model's files are missing; `gateau validate` reports them
            rates = TokenRates()
        tokens = rates.sample_tokens(state.index.accepted, 2**40).prompts(opening=False)
        prompts = tokens.prompt
        usual, longest = int(np.median(prompts)), int(prompts.max())
        counted = "" if rates.samples else " (estimated: its tokenizer is not here)"
        length = _max_length(known.config, longest, known.missing, counted)
        family = known if short == "long" else facts_of(state.config, short)
        window = _window(min(usual, int(length.value)), _positions(family.config), counted)
        segment = max(16, min(_SEGMENT, int(window.value) // _NEAR_SEGMENTS))
        why = f"a quarter of the window at most, so that {_NEAR_SEGMENTS} segments are near"
        return cls(
            max_length=length,
            window=window,
            segment_length=Proposal(value=segment, reason="as in the paper" if segment == _SEGMENT else why),
            template=_template(known),
            dtype=_dtype(state.config, known.config),
        )


def _max_length(model: PreTrainedConfig | None, longest: int, missing: str, counted: str) -> Proposal:
    step = 1024 if longest > 4096 else 128
    wanted = math.ceil(longest / step) * step
    positions = _positions(model)
    if positions is not None and positions < wanted:
        return Proposal(
            value=positions,
            reason=f"tokens that the model reads; of longer prompts (the longest: about {longest:,}) the start is cut",
        )
    value = max(256, wanted if positions is not None else min(wanted, _LONGEST))
    why = f"the longest prompt has about {longest:,} tokens{counted}"
    return Proposal(value=value, reason=f"{why}; {missing}" if missing else why)


def _positions(model: PreTrainedConfig | None) -> int | None:
    """Return how many tokens a model reads; None if its configuration does not say."""
    if model is None:
        return None
    declared = getattr(model.get_text_config(decoder=True), "max_position_embeddings", None)
    return learned_positions(model) or rotary_positions(model) or declared


def _window(usual: int, own: int | None, counted: str) -> Proposal:
    """Propose theta_A's window: its own, or a quarter of a usual prompt (a power of two) where its own is larger."""
    quarter = max(32, 2 ** int(math.log2(max(32, usual / 4))))
    if own is not None and own <= usual / 2:
        return Proposal(value=own, reason=f"its own window; theta_B reads {usual:,} tokens of a usual prompt{counted}")
    return Proposal(
        value=quarter, reason=f"about a quarter of the {usual:,} tokens that theta_B reads of a usual prompt{counted}"
    )


def _template(model: ModelFacts) -> Proposal:
    tokenizer = model.tokenizer
    if tokenizer is None:
        return Proposal(value="gateau", reason="plain text; chat shows samples in the model's chat form, if it has one")
    if tokenizer.chat_template:
        return Proposal(
            value="chat", reason="the model's own chat form; gateau is plain text, which ranks equally well"
        )
    return Proposal(value="gateau", reason="plain text: the model has no chat template")


def _dtype(config: Config, model: PreTrainedConfig | None) -> Proposal:
    import torch

    from gateau_dagster.models.devices import resolve_device

    if config.scoring.device.startswith("cuda") and not torch.cuda.is_available():
        return Proposal(value="bfloat16", reason="usual on GPUs; this machine has none to ask")
    place = resolve_device(config.scoring.device)
    if place.type == "cuda":
        good = torch.cuda.is_bf16_supported()
        return Proposal(
            value="bfloat16" if good else "float16",
            reason=f"{torch.cuda.get_device_name(place)} computes in it" if good else "this GPU has no bfloat16",
        )
    kept = str(getattr(model, "dtype", None) or "").removeprefix("torch.")
    capable = torch.cpu.get_capabilities()
    if kept != "float32" and (capable.get("avx512_bf16") or capable.get("amx_bf16")):
        return Proposal(value="bfloat16", reason="this processor computes in it, faster than in float32")
    why = "the weights are float32" if kept == "float32" else "this processor has no bfloat16"
    return Proposal(value="float32", reason=why)


def _from(folder: Path, address: str) -> str:
    """Return an address as it reads from `folder`: a relative local path is rewritten, a name of the hub is not."""
    local = Path(address).expanduser()
    pattern = any(sign in address for sign in "*?[")
    if "://" in address or local.is_absolute() or not (pattern or local.exists()):
        return address
    return os.path.relpath(local, folder)


def _ignore(file: Path) -> None:
    """Add the scratch folder and the store to .gitignore."""
    known = file.read_bytes() if file.exists() else b""  # of any encoding: git reads bytes
    missing = [line for line in _IGNORED if line.encode() not in known.splitlines()]
    if missing:
        start = known if not known or known.endswith(b"\n") else known + b"\n"
        Files(str(file.parent)).write(file.name, start + ("\n".join(missing) + "\n").encode())
