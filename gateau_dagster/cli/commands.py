"""The commands of `gateau`: their options, failures as a readable message, and what an error's code means."""

# Why imports are inside the commands: Dagster and transformers take seconds to import. `gateau --help`, `gateau
# explain` and a misspelt option should answer at once.

import difflib
import io
import json
import logging
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import click
import yaml

from gateau_dagster.config import Config
from gateau_dagster.errors import (
    ENVIRONMENT_VARIABLE,
    GateauError,
    UnforeseenError,
    redact_output,
    redacted,
)
from gateau_dagster.execution.interruption import INTERRUPTED
from gateau_dagster.readable import escaped_controls, indented_lines
from gateau_dagster.registry import distinct, feature_files, feature_parts

_CONFIG_HELP = (
    "YAML file, or demo for the embedded demo. Default: the file that GATEAU_CONFIG names, else ./gateau.yaml."
)
UNTIL_HELP = "Stop after this asset, for example selected_subset or perplexity/short."
_EPILOG = "Documentation: README.md and docs/. Exit status: 0 done, 1 failed (the reason is printed), 2 wrong usage."


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gateau-dagster", prog_name="gateau")
def cli() -> None:
    """Choose the long instruction samples that need their long context (GATEAU), as a Dagster pipeline.

    \b
    gateau init       write a configuration for your data and model
    gateau validate   what of the input can be used, and why the rest cannot
    gateau plan       what would run, why, and about how long it takes
    gateau run        run exactly what is missing or changed
    gateau forecast   whether training on the choice is likely to beat random samples
    gateau window     what another window of the short model would choose
    gateau show       how far to trust the choice; why a sample ranks where it does
    gateau export     the chosen samples as a file that a trainer reads
    gateau status     how each asset stands, and what is at work
    gateau open       the report, or the Dagster UI, in the browser
    gateau dev        the Dagster UI on this configuration
    gateau clean      remove what nothing needs: old scratch, remains of kills
    gateau explain    what an error's code means, and what to do
    gateau schema     the JSON schema of the configuration, for editors
    """


_current_option = click.option(
    "--require-current", is_flag=True, help="Fail if what is shown or written is out of date, instead of saying so."
)
config_option = click.option("--config", "config_file", type=click.Path(), envvar="GATEAU_CONFIG", help=_CONFIG_HELP)


@cli.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option("--data", help="Long samples: a path, a glob, an s3:// or hf:// address, or a data set's name.")
@click.option("--model", help="Model with a long window: a folder, or a name on the Hugging Face hub.")
@click.option("--short-model", "short", help="Model of its family with a short window. Default: the model, used twice.")
@click.option("--device", help="Device that scores: auto, cpu, cuda. Default: auto.")
@click.option("--goal", help="select, train or compare. Default: select.")
@click.option("--force", is_flag=True, help="Replace an existing gateau.yaml.")
def init(
    folder: Path,
    data: str | None,
    model: str | None,
    short: str | None,
    device: str | None,
    goal: str | None,
    force: bool,
) -> None:
    """Write gateau.yaml into FOLDER (default: this one) for your data and model.

    Asks for data, model, device and goal where no option gives them. Reads the data's lengths and the model's
    config.json, and writes the reason for each value beside it. Also writes .gitignore, and a schema for editors.
    """
    from gateau_dagster.cli.init import ask, write_project

    write_project(folder, ask(data, model, short, device, goal), force=force)


@cli.command()
def schema() -> None:
    """Print the JSON schema of the configuration: all keys with type, default and meaning.

    Editors check and complete a gateau.yaml that begins with `# yaml-language-server: $schema=FILE`.
    """
    from gateau_dagster.pipeline.project import configuration_schema

    click.echo(json.dumps(configuration_schema(), indent=2))


@cli.command()
@config_option
@click.argument("kind", metavar="FORMAT")
@click.option("--out", "file", type=click.Path(dir_okay=False), help="Default: selected.jsonl.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Shorten longer samples: cut the start of the context, or leave out the oldest turns. Without it, trainers "
    "cut the end or drop the sample.",
)
@_current_option
def export(config_file: str | None, kind: str, file: str | None, max_tokens: int | None, require_current: bool) -> None:
    """Write the chosen samples as a file that a trainer reads, best first.

    \b
    messages     {"messages": [{"role": "user", ...}, {"role": "assistant", ...}]}: TRL, axolotl, ms-swift
    prompt       {"prompt": [turns], "completion": [last turn]}: TRL, loss on the completion only
    sharegpt     {"conversations": [{"from": "human", ...}, {"from": "gpt", ...}]}: LLaMA-Factory
    alpaca       {"instruction", "input", "output"}: LLaMA-Factory, axolotl
    fields       {"context", "instruction", "response"}, as in the table selected_subset
    preference   {"prompt", "short_prompt", "chosen"}: the whole context, and the evidence only; LongPO, SoLoPO
    chunks       {"instruction", "response", "chunks": [{"text", "grounding"}]}: rewards for context
    tokenised    {"input_ids", "labels", "attention_mask"}: what training here learns; TRL, axolotl

    A sample of several exchanges has all its turns in the first three, and a column tools. Each record also has
    sample_id, source, score and rank. The file's ending decides: .jsonl or .parquet. The command prints the line with
    which a trainer reads the file. It refuses to write over an input, a model, the store or the configuration, by links
    too, and to add a file to a folder that is read as input.
    """
    from gateau_dagster.cli.export import export_selection
    from gateau_dagster.config.values import output_path

    try:
        out = output_path("selected.jsonl" if file is None else file)
    except GateauError as error:
        raise error.reworded(f"--out: {error}") from error
    export_selection(loaded(config_file), kind, out, max_tokens=max_tokens, require_current=require_current)


@cli.command()
@config_option
@click.option("--until", metavar="ASSET", help=UNTIL_HELP)
def run(config_file: str | None, until: str | None) -> None:
    """Run, through Dagster, exactly what is missing or changed.

    Nothing changed: does nothing, in seconds. Interrupted or killed: run it again, it goes on where it was. Ctrl-C
    ends it within seconds and keeps what was computed; a second one ends it at once.
    """
    from gateau_dagster.cli.run import run_pipeline

    config = loaded(config_file)
    run_pipeline(config, os.environ[ENVIRONMENT_VARIABLE], until)


def _known_gpu(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    from gateau_dagster.pipeline.work_forecast import PEAKS

    if name is not None and name.lower() not in PEAKS:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(PEAKS)}.", context, option)
    return None if name is None else name.lower()


@cli.command()
@config_option
@click.option("--until", metavar="ASSET", help="Plan only what this asset needs.")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 100_000),
    help="Estimate the scoring time for N workers instead of the configured number. Each has a device (a GPU) like "
    "the one here and takes whole shards. Training, answers and judging do not run in workers.",
)
@click.option(
    "--on",
    "gpu",
    metavar="GPU",
    callback=_known_gpu,
    help="Estimate times for another device: a GPU by name, such as l4, a100, h100 or b200. They follow from its "
    "data sheet and from measured shares of a GPU's peak.",
)
@click.option(
    "--price",
    metavar="MONEY",
    type=click.FloatRange(0),
    help="Price of one device for an hour, in any currency; adds the cost of each time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object, for programs.")
def plan(
    config_file: str | None,
    until: str | None,
    workers: int | None,
    gpu: str | None,
    price: float | None,
    as_json: bool,
) -> None:
    """Print what `gateau run` would run, why, and an estimate of tokens, FLOPs and time.

    `--on h100 --price 3 --workers 8` tells before anything is rented how long eight GPUs need, and what they cost.
    Without `--on` the times are for this machine's device: run the first shards, and they rest on what these took.
    """
    from gateau_dagster.cli.plan import print_plan
    from gateau_dagster.pipeline.work_forecast import AssumedDevices

    assumed = AssumedDevices(workers=workers, name=gpu, price=price)
    print_plan(loaded(config_file), until, as_json=as_json, assumed=assumed)


@cli.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object, for programs.")
def forecast(config_file: str | None, as_json: bool) -> None:
    """Print whether training on the choice is likely to beat as many random samples; train nothing.

    It reads the scores in the store and chooses as configured. Make them for 500 samples of your own first:
    `gateau init --data FILE --model MODEL`, then `gateau run --until selected_subset`. The verdict is one of: likely
    pays; level, train on clean random samples; do not select. After an experiment it also prints each forecast beside
    its outcome.
    """
    from gateau_dagster.cli.forecast import print_forecast

    print_forecast(loaded(config_file), as_json=as_json)


@cli.command()
@config_option
@click.argument("windows", nargs=-1, type=click.IntRange(min=1))
@click.option("--out", "file", metavar="FILE", type=click.Path(), help="Draw the table, too: a .svg or .png file.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object, for programs.")
def window(config_file: str | None, windows: tuple[int, ...], file: str | None, as_json: bool) -> None:
    """Print what other WINDOWS of theta_A (tokens) would choose; no model runs.

    Default: a quarter to four times the present one. For each: the samples with far text, those whose response depends
    on it, and how much the chosen samples have in common with the present choice. The choice is an estimate, which the
    present window's row lets you judge: theta_A's probability at another window takes a pass of theta_A.
    """
    from gateau_dagster.cli.window import print_windows

    out = None if file is None else Path(file)
    if out is not None and out.suffix not in {".svg", ".png"}:
        raise click.UsageError(f"--out: {out} must end in .svg or .png.")
    print_windows(loaded(config_file), windows, out, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class FeatureTrial:
    """A trial of a feature, one of TRIALS in its module `commands`: what `gateau validate --option` does instead."""

    option: str
    help: str
    run: Callable[[Config], None]


@cli.command()
@config_option
def validate(config_file: str | None, **tried: bool) -> None:
    """Check the configuration and the input, and print what would be rejected."""
    from gateau_dagster.cli.validate import print_validation

    chosen = [_TRIALS[name] for name, given in tried.items() if given]
    if len(chosen) > 1:
        raise click.UsageError(f"Give one of {', '.join(f'--{each.option}' for each in chosen)}.")
    run = chosen[0].run if chosen else print_validation
    run(loaded(config_file))


@cli.command()
@config_option
@click.argument("sample", required=False)
@click.option("--method", metavar="NAME", help="Show rank and figures of this method; default: selection.method.")
@click.option("--top", metavar="N", type=click.IntRange(min=1), help="List the N best samples instead of one.")
@_current_option
def show(
    config_file: str | None, sample: str | None, method: str | None, top: int | None, require_current: bool
) -> None:
    """Print how far to trust the choice; or one sample: its ranks, what gave its response, its texts.

    SAMPLE is its id, or how that begins.
    """
    from gateau_dagster.cli.show import print_sample, print_top, print_trust

    if top is None and sample is None:
        if method is not None:
            raise click.UsageError("--method needs SAMPLE or --top N: gateau show --top 10 --method hmg.")
        print_trust(loaded(config_file), require_current=require_current)
    elif top is not None and sample is None:
        print_top(loaded(config_file), top, method, require_current=require_current)
    elif sample is not None and top is None:
        print_sample(loaded(config_file), sample, method, require_current=require_current)
    else:
        raise click.UsageError("Give SAMPLE or --top N, not both: gateau show s00003, or gateau show --top 10.")


@cli.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON object, for programs.")
def status(config_file: str | None, as_json: bool) -> None:
    """Print how each asset stands (current, stale, missing, failed), its rows, rejects, size and last run."""
    from gateau_dagster.cli.status import print_status

    print_status(loaded(config_file), as_json=as_json)


@cli.command("open")
@config_option
@click.option("--port", type=click.IntRange(1, 65_535), default=3000, show_default=True, help="Port of the Dagster UI.")
@click.argument("what", default="report", metavar="[report|explore|ui]")
def open_page(config_file: str | None, port: int, what: str) -> None:
    """Open the report, the viewer of all samples (explore), or the Dagster UI that runs here, in the browser."""
    from gateau_dagster.cli.dev import open_in_browser

    open_in_browser(loaded(config_file), what, port)


@cli.command(context_settings={"ignore_unknown_options": True})
@config_option
@click.option("--port", type=click.IntRange(1, 65_535), help="Default: 3000, or a free one if that is taken.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: from everywhere.")
@click.argument("dagster_options", nargs=-1, type=click.UNPROCESSED)
def dev(config_file: str | None, port: int | None, host: str, dagster_options: tuple[str, ...]) -> None:
    """Serve the Dagster UI and its daemon on this configuration until Ctrl-C; other options go to `dagster dev`.

    Prints one line with the address once the UI answers. The log is the file dev.log in .gateau, beside the
    configuration.
    """
    from gateau_dagster.cli.dev import start_ui

    start_ui(loaded(config_file), host, port, list(dagster_options))


@cli.command()
@config_option
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as one JSON object, and do not ask.")
def clean(config_file: str | None, yes: bool, as_json: bool) -> None:
    """List what nothing needs in the store and in .gateau, with sizes, and remove it after asking.

    These are remains of broken writes and downloads, scratch of training, models of variants that are gone, and rows
    that no run continues. No table is removed. Refused while a run is at work, also on another machine. Without a
    terminal it only lists, unless --yes is given.
    """
    from gateau_dagster.cli.status import clean_up

    clean_up(loaded(config_file), yes=yes, as_json=as_json)


@cache
def error_codes() -> dict[str, dict[str, str]]:
    """Return `cause` and `cure` by code, in alphabetical order: those of the kernel and of all features."""
    files = [Path(__file__).with_name("error_codes.yaml"), *feature_files("error_codes.yaml")]
    entries = (entry for file in files for entry in yaml.safe_load(file.read_text(encoding="utf-8")).items())
    return dict(sorted(distinct(entries, "error code").items()))


@cli.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Print the cause and the cure of an error. CODE is in brackets behind its message; without it, list all codes."""
    known = error_codes()
    if code is None:
        for name, entry in known.items():
            click.echo(f"{name:<{max(map(len, known))}}  {entry['cause'].partition('. ')[0].rstrip('.')}")
        return
    name = code.strip("[]")
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3)
        meant = f"; did you mean {', '.join(near)}?" if near else "."
        raise GateauError("explain.code", f"there is no error code {name!r}{meant} `gateau explain` lists all")
    for part in (name, f"Cause: {known[name]['cause']}", f"Cure:  {known[name]['cure']}"):
        click.echo(textwrap.fill(part, subsequent_indent=" " * 7))


def loaded(config_file: str | None) -> Config:
    """Return the configuration, and name it in the environment.

    Raises:
        GateauError: there is no configuration, or it is wrong.
    """
    from gateau_dagster.storage.failures import check_address_space

    check_address_space()
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise GateauError(
            "machine.folder_gone", "the current folder does not exist any more. Change to another one (cd)."
        ) from error
    from gateau_dagster.pipeline.project import configuration_name
    from gateau_dagster.resources.project import checked_project

    config = checked_project(config_file)
    # For messages, and for every process that this one starts.
    os.environ[ENVIRONMENT_VARIABLE] = configuration_name(config_file)
    return config


@dataclass(frozen=True, kw_only=True)
class FeatureCommand:
    """A command that a feature adds, one of COMMANDS in its module `commands`.

    after: the command that stands before it in the overview. summary: its line there.
    """

    command: click.Command
    after: str
    summary: str


def _add(added: FeatureCommand) -> None:
    """Add a command, with its line in the overview that `gateau --help` begins with."""
    cli.add_command(added.command)
    line = f"gateau {added.command.name:<10} {added.summary}"
    place = re.search(rf"^( *)gateau {added.after} .*\n", cli.help or "", re.MULTILINE)
    assert place is not None, f"there is no command {added.after}"
    cli.help = f"{place.string[: place.end()]}{place[1]}{line}\n{place.string[place.end() :]}"


def command_line() -> None:
    """Run the command of `sys.argv`; a GateauError becomes its message and exit status 1, an interrupt 130."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers imports DeepSpeed, which prints on standard output that there is no GPU.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to" not in record.getMessage())
    redact_output()
    try:
        cli(standalone_mode=False, prog_name="gateau")
    except UnforeseenError as error:
        _fail(_defect(error), 1)
    except GateauError as error:
        _refuse(error)
    except click.ClickException as error:
        usage = io.StringIO()
        error.show(usage)
        click.echo(escaped_controls(redacted(usage.getvalue()), lines=True), err=True, nl=False)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail(INTERRUPTED, 130)
    except BrokenPipeError:
        # The reader has closed the pipe, as in `gateau plan | head`; closing the streams at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from gateau_dagster.storage.failures import explained_by_system

        place = getattr(error, "filename", None)
        known = explained_by_system(error, f"use {place}" if place else "go on")
        _refuse(known) if isinstance(known, GateauError) else _fail(_defect(error), 1)


def _defect(error: Exception) -> str:
    """Return the message for an unexpected failure; write its traceback to a file that only this user can read."""
    trace = "".join(traceback.format_exception(error))
    kind = type(error).__name__
    if isinstance(error, UnforeseenError):
        trace, kind = error.trace, error.kind
    trace = redacted(trace)
    log = Path(".gateau") / "error.log"
    try:
        log.parent.mkdir(exist_ok=True)
        log.unlink(missing_ok=True)  # the old file may have been readable for others
        new = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(new, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"gateau {version('gateau-dagster')}: {redacted(' '.join(sys.argv[1:]))}\n{trace}")
        where = f"The details are in {log.absolute()}; please report them."
    except OSError as unwritable:
        where = f"The details, which could not be written to {log.absolute()} ({unwritable.strerror}):\n{trace}"
    what = (redacted(str(error)).strip() or "no message").splitlines()[0]
    return f"Error: unexpected {kind}: {what}\nThis is a defect of GATEAU, not of your input. {where}"


def _refuse(error: GateauError) -> NoReturn:
    # A program that asks for JSON may read standard output only.
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": {"code": error.code, "message": str(error)}}))
    _fail(indented_lines(f"Error: {error.with_code()}"), 1)


def _fail(message: str, status: int) -> NoReturn:
    click.secho(escaped_controls(message, lines=True), fg="red", err=True)
    sys.exit(status)


_COMMANDS = [command for added in feature_parts("commands", "COMMANDS", tuple) for command in added]
distinct([*cli.commands.items(), *((str(added.command.name), added.command) for added in _COMMANDS)], "command")
for _command in _COMMANDS:
    _add(_command)
_TRIALS = {  # by the names that click gives to the options
    trial.option.replace("-", "_"): trial for added in feature_parts("commands", "TRIALS", tuple) for trial in added
}
validate.params += [click.Option([f"--{each.option}"], is_flag=True, help=each.help) for each in _TRIALS.values()]
