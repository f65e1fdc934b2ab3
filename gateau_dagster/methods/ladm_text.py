"""Score plain texts by LADM or LongFilter, choose the best per domain: `python -m gateau_dagster.methods.ladm_text`.

It is for pre-training data, which has no instruction and no response.
"""

from __future__ import annotations

import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import polars as pl

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import SourceFile, local_places, resolve_files
from gateau_dagster.data.text_corpus import CorpusText, ScoredText, TextFields, read_texts, records_of
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, contextual_dependency_score
from gateau_dagster.scoring.response_perplexity import information_gain, short_context_nlls, token_nlls
from gateau_dagster.scoring.sample_stream import rejected
from gateau_dagster.selection.token_budget import choose_by_domain
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.local import check_apart
from gateau_dagster.storage.remote import is_remote

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel
    from gateau_dagster.scoring.span_attention import Document

_SECONDS_BETWEEN_LINES = 15.0
_ENDINGS = (".parquet", ".jsonl")
_SCHEMA = pl.Schema(
    {
        "id": pl.String,
        "domain": pl.String,
        "tokens": pl.Int64,
        "spans": pl.Int32,
        "score": pl.Float64,
        "chosen": pl.Boolean,
    }
)
_PLAN = FocusPlan()
# The options that each score reads alone.
_READS = {
    "ladm": (*FocusPlan.__dataclass_fields__, "without_deviation", "without_length"),
    "information_gain": ("short_tokens", "step"),
}
_INPUT_HELP = "jsonl, json or parquet, also .gz and .zst: file, folder, glob, s3:// or hf:// address. May be repeated."


TextScore: TypeAlias = tuple[str, int | None, float | None]
"""A text's name, its number of spans (None by information gain), and its score (None if it is too short for one)."""


@dataclass(kw_only=True)
class TextScoring(ABC):
    """One pass over the files. `report` receives the bytes read and the texts done so far."""

    files: Sequence[SourceFile]
    fields: TextFields
    report: Callable[[int, int], None]
    rejects: list[Reject] = field(default_factory=list)
    _waiting: dict[str, tuple[CorpusText, int]] = field(default_factory=dict)  # with the token count of the whole text
    _read: int = 0

    def run(self, model: ModelConfig, scoring: ScoringConfig) -> list[ScoredText]:
        """Return all texts that could be scored, and add the others to `rejects`.

        A text longer than `scoring.max_length` tokens is scored by its beginning. Raises GateauError if the model or a
        file cannot be used.
        """
        from gateau_dagster.models.loading import effective_max_length, load_model

        loaded = load_model(model, dtype=scoring.dtype, device=scoring.device, folder=Path())
        longest = effective_max_length(loaded, model, scoring)
        scored: list[ScoredText] = []
        for done, outcome in enumerate(self.scores(loaded, self._documents(loaded, longest)), start=1):
            if isinstance(outcome, Reject):
                del self._waiting[outcome.sample_id]
                self.rejects.append(outcome)
            else:
                scored.append(self._scored(*outcome))
            self.report(self._read, done)
        return scored

    @abstractmethod
    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield one outcome per document, in order."""

    def _documents(self, loaded: LoadedModel, longest: int) -> Iterator[Document]:
        from gateau_dagster.scoring.span_attention import Document, text_ids

        for text in read_texts(self.files, self.fields, self._count):
            if isinstance(text, Reject):
                self.rejects.append(text)
                continue
            try:
                ids = text_ids(loaded.tokenizer, text.text)
            except UnscorableSampleError as error:
                self.rejects.append(Reject(sample_id=text.name, reason=str(error)))
                continue
            self._waiting[text.name] = (text, len(ids))
            yield Document(name=text.name, ids=ids[:longest])

    def _count(self, size: int) -> None:
        self._read += size

    def _scored(self, name: str, spans: int | None, score: float | None) -> ScoredText:
        text, tokens = self._waiting.pop(name)
        return ScoredText(
            name=text.name,
            domain=text.domain,
            tokens=tokens,
            spans=spans,
            score=score,
            file=text.file,
            record=text.record,
            digest=text.digest,
        )


@dataclass(kw_only=True)
class LadmTexts(TextScoring):
    """Score a text by how it attends to itself."""

    plan: FocusPlan
    weights: FocusWeights

    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield the score that follows from each document's attention between spans."""
        from gateau_dagster.models.loaded import ForwardWork
        from gateau_dagster.scoring.span_attention import measure_documents

        for found in measure_documents(loaded, documents, plan=self.plan, work=ForwardWork()):
            if isinstance(found, Reject):
                yield found
            else:
                score = contextual_dependency_score(found.sums, self.plan, found.tokens, self.weights)
                yield found.name, found.spans, score


@dataclass(kw_only=True)
class GainTexts(TextScoring):
    """Score a text by LongFilter (Deng et al. 2025): the mean over its tokens of p_long log(p_long / p_short).

    p_long is given all tokens before, p_short at least the last `short` of them and at most `step - 1` more. The first
    `short` tokens add 0, because both contexts are the same. A text without more tokens has no score.
    """

    short: int
    step: int

    def scores(self, loaded: LoadedModel, documents: Iterator[Document]) -> Iterator[TextScore | Reject]:
        """Yield the information gain of each document, whose tokens are read 1 + (short + step) / step times."""
        for document in documents:
            try:
                yield document.name, None, self._gain(loaded, document.ids)
            except UnscorableSampleError as error:
                yield rejected(document.name, error)

    def _gain(self, loaded: LoadedModel, ids: tuple[int, ...]) -> float | None:
        if len(ids) <= self.short:
            return None
        nlls = token_nlls(loaded, ids), short_context_nlls(loaded, ids, short=self.short, step=self.step)
        gain = float(information_gain(*(each[self.short - 1 :] for each in nlls)).sum()) / (len(ids) - 1)
        if not math.isfinite(gain):
            raise UnscorableSampleError(f"the information gain is {gain}: try dtype bfloat16 or float32")
        return gain


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--model", required=True, help="A causal language model: folder or Hugging Face hub name.")
@click.option("--input", "inputs", required=True, multiple=True, metavar="FILE", help=_INPUT_HELP)
@click.option("--out", required=True, metavar="FILE", help="The scores, as .parquet or .jsonl.")
@click.option("--text-field", default="text", help="Field of the text; dots reach inside: 'meta.text'.")
@click.option("--domain-field", help="Field of the domain, such as 'meta.pile_set_name'.  [default: the file's name]")
@click.option("--id-field", help="Field of a unique id.  [default: file and line]")
@click.option(
    "--token-budget", type=click.IntRange(min=1), help="Choose the best texts of every domain, of so many tokens."
)
@click.option("--chosen", metavar="FILE", help="With --token-budget: the chosen records as they are, .jsonl.")
@click.option(
    "--score",
    default="ladm",
    type=click.Choice(list(_READS)),
    help="information_gain: LongFilter, how much likelier tokens are given all text than given the last few.",
)
@click.option(
    "--short-tokens", default=4096, type=click.IntRange(min=1), help="information_gain: tokens of the short context."
)
@click.option(
    "--step",
    default=1024,
    type=click.IntRange(min=1),
    help="information_gain: tokens that share the short context's beginning; a larger step is cheaper.",
)
@click.option("--max-tokens", default=32_768, type=click.IntRange(min=16), help="A longer text is scored by its begin.")
@click.option("--rope-theta", type=float, help="Replaces the base of the model's rotary embedding.")
@click.option("--dtype", default="bfloat16", type=click.Choice(["bfloat16", "float16", "float32"]))
@click.option("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
@click.option("--variant", default=_PLAN.variant, type=click.Choice(["paper", "program"]), help="Whose equations.")
@click.option("--span-length", default=_PLAN.span_length, type=click.IntRange(min=1), help="l: tokens of a span.")
@click.option("--first-spans", default=_PLAN.first_spans, type=click.IntRange(min=0), help="m: first spans left out.")
@click.option(
    "--local-spans", default=_PLAN.local_spans, type=click.IntRange(min=0), help="n: local spans left out; paper."
)
@click.option("--earlier-stride", default=_PLAN.earlier_stride, type=click.IntRange(min=1), help="d of Eq. 4.")
@click.option("--later-stride", default=_PLAN.later_stride, type=click.IntRange(min=1), help="d of Eq. 5.")
@click.option(
    "--first-scored", default=_PLAN.first_scored, type=click.IntRange(min=1), help="n_0: first span scored; paper."
)
@click.option("--without-deviation", is_flag=True, help="The paper's ablation 'w/o std'.")
@click.option("--without-length", is_flag=True, help="The paper's ablation 'w/o length'.")
def main(inputs: tuple[str, ...], out: str, chosen: str | None, **options: Any) -> None:
    """Score plain texts by how strongly, how unevenly and how far back they attend to themselves (LADM).

    With --score information_gain, by how much the text before the last few thousand tokens explains (LongFilter).

    \b
    FILE of --out has a row for each text: id, domain, tokens, spans, score and chosen. The score is empty where a text
    has no scored span: with the defaults, below 2,176 tokens, 2,305 with --variant program; by information gain,
    which has no spans, where it has at most --short-tokens tokens. Beside it,
    NAME.rejected.jsonl says what could not be scored and why. Files appear whole at the end, and replace older ones in
    one step. Nothing is kept of a run that was interrupted: give a large corpus in parts.

    With --token-budget the best texts of every domain are chosen: as large a share of each as the budget allows, the
    same share of the scored texts in all, so that domains keep their proportions. Tokens are those of the whole text.

    \b
    python -m gateau_dagster.methods.ladm_text --model TinyLlama/TinyLlama_v1.1 --rope-theta 500000 \\
        --input 'pile/*.jsonl.zst' --domain-field meta.pile_set_name --out scores.parquet \\
        --token-budget 1000000000 --chosen best.jsonl
    """
    try:
        _run(inputs, out, chosen, options)
    except (GateauError, OSError) as error:
        shown = error.with_code() if isinstance(error, GateauError) else str(error)
        raise click.ClickException(shown) from error


def _run(inputs: tuple[str, ...], out: str, chosen: str | None, options: dict[str, Any]) -> None:
    _check(out, chosen, options)
    files = resolve_files(list(inputs), Path())
    rejects_file = _rejected_file(out)
    used = [("the model (--model)", Path(options["model"]))]
    used += [("an input (--input)", Path(file.address)) for file in files if not is_remote(file.address)]
    for name in filter(None, (out, str(rejects_file), chosen)):
        places = local_places(inputs, Path(), Path(name))
        check_apart(Path(name), [*used, *(("what --input names", place) for place in places)])
    reporter = _Reporter(sum(file.size for file in files))
    scored, rejects = _scored(files, options, reporter)
    reporter.end()
    budget = options["token_budget"]
    names = choose_by_domain(scored, budget) if budget is not None else set[str]()
    rows = [(t.name, t.domain, t.tokens, t.spans, t.score, None if budget is None else t.name in names) for t in scored]
    # Write first what took the model's hours: the chosen records are read from the input again, which may be gone.
    table = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    _replace(Path(out), table.write_parquet if out.endswith(".parquet") else table.write_ndjson)
    _write_lines(
        rejects_file,
        ({"id": one.sample_id, "reason": one.reason} for one in sorted(rejects, key=lambda each: each.sample_id)),
    )
    if chosen is not None and names:
        best = records_of(files, _fields(options), [text for text in scored if text.name in names])
        _write_lines(Path(chosen), (value | {f"{options['score']}_score": text.score} for text, value in best))
    _say(scored, rejects, names, budget, rejects_file)
    if budget is not None and not names:
        first = any(text.score is not None for text in scored)
        why = "not even the first text, the best of its domain, fits: raise it" if first else "no text has a score"
        raise GateauError(
            "methods.command",
            f"--token-budget {budget}: nothing is chosen, since {why}. The scores are in {out}: raise the budget, "
            "or read why texts have no score",
        )


def _rejected_file(out: str) -> Path:
    return Path(out).with_suffix(".rejected.jsonl")


def _plan(options: dict[str, Any]) -> FocusPlan:
    return FocusPlan(**{name: options[name] for name in FocusPlan.__dataclass_fields__})


def _scored(
    files: Sequence[SourceFile], options: dict[str, Any], reporter: _Reporter
) -> tuple[list[ScoredText], list[Reject]]:
    read: dict[str, Any] = {"files": files, "fields": _fields(options), "report": reporter}
    if options["score"] == "information_gain":
        scoring = GainTexts(**read, short=options["short_tokens"], step=options["step"])
    else:
        weights = FocusWeights(
            deviation=not options["without_deviation"],
            interval=not options["without_length"],
            position=not options["without_length"],
        )
        scoring = LadmTexts(**read, plan=_plan(options), weights=weights)
    scored = scoring.run(
        ModelConfig(path=options["model"], rope_theta=options["rope_theta"]),
        ScoringConfig(max_length=options["max_tokens"], dtype=options["dtype"], device=options["device"]),
    )
    return scored, scoring.rejects


def _fields(options: dict[str, Any]) -> TextFields:
    return TextFields(text=options["text_field"], domain=options["domain_field"], name=options["id_field"])


def _check(out: str, chosen: str | None, options: dict[str, Any]) -> None:
    """Check before the model runs for errors that would otherwise occur after it."""
    if Path(out).suffix not in _ENDINGS:
        raise GateauError("methods.command", f"--out {out}: end the name in .parquet or .jsonl")
    if chosen is not None and Path(chosen).suffix != ".jsonl":
        raise GateauError("methods.command", f"--chosen {chosen}: end the name in .jsonl")
    if chosen is not None and options["token_budget"] is None:
        raise GateauError("methods.command", "--chosen needs --token-budget: add it")
    if chosen is not None and Path(chosen).resolve() in {Path(out).resolve(), _rejected_file(out).resolve()}:
        raise GateauError("methods.command", f"--chosen {chosen}: --out {out} writes this file: give another name")
    theta = options["rope_theta"]
    if theta is not None and not (math.isfinite(theta) and theta > 0):
        raise GateauError(
            "methods.command", f"--rope-theta {theta:g}: the base of a rotary embedding is a number above 0"
        )
    given = click.get_current_context().get_parameter_source
    for score, name in ((score, name) for score, names in _READS.items() for name in names):
        if score != options["score"] and given(name) == click.core.ParameterSource.COMMANDLINE:
            raise GateauError(
                "methods.command", f"--{name.replace('_', '-')} is an option of --score {score}: remove it"
            )
    if options["score"] == "information_gain":
        if options["max_tokens"] <= options["short_tokens"]:
            raise GateauError(
                "methods.command",
                f"--max-tokens {options['max_tokens']}: no text can be scored below {options['short_tokens'] + 1} "
                "tokens: raise it, or lower --short-tokens",
            )
    else:
        _check_spans(options)
    _check_places(out, chosen)


def _check_spans(options: dict[str, Any]) -> None:
    program = options["variant"] == "program"
    for name in ("local_spans", "first_scored"):
        if program and options[name] != getattr(_PLAN, name):
            raise GateauError(
                "methods.command",
                f"--{name.replace('_', '-')}: the authors' program does not have this option: remove it",
            )
    if not program and options["first_scored"] <= options["first_spans"] + options["local_spans"]:
        raise GateauError(
            "methods.command",
            "--first-scored must be above --first-spans + --local-spans: an earlier span sees no other",
        )
    if options["max_tokens"] < (fewest := _plan(options).fewest_tokens):
        raise GateauError(
            "methods.command",
            f"--max-tokens {options['max_tokens']}: no text can be scored below {fewest} tokens: raise it, or "
            f"lower --span-length or {'--earlier-stride' if program else '--first-scored'}",
        )


def _check_places(out: str, chosen: str | None) -> None:
    for name in filter(None, (out, chosen, str(_rejected_file(out)))):
        if Path(name).is_dir():
            raise GateauError("methods.command", f"{name} is a folder: name a file in it")
    for folder in {Path(name).absolute().parent for name in (out, chosen) if name is not None}:
        if not folder.is_dir():
            raise GateauError("methods.command", f"the folder {folder} does not exist: create it first")


class _Reporter:
    """Print progress to standard error: a line every 15 seconds, or in a terminal one line that is updated."""

    def __init__(self, total: int) -> None:
        self._total, self._said, self._started = max(1, total), time.monotonic(), time.monotonic()
        self._live = sys.stderr.isatty()

    def __call__(self, read: int, done: int) -> None:
        elapsed = time.monotonic() - self._started
        if time.monotonic() - self._said < (0.2 if self._live else _SECONDS_BETWEEN_LINES):
            return
        self._said = time.monotonic()
        line = f"{done} texts scored, {100 * min(1.0, read / self._total):.0f} % of the input read, {elapsed:.0f} s"
        click.echo(f"\r{line}" if self._live else line, err=True, nl=not self._live)

    def end(self) -> None:
        """End the updated line, so that the next output begins on a new one."""
        if self._live:
            click.echo(err=True)


def _say(scored: list[ScoredText], rejects: list[Reject], names: set[str], budget: int | None, rejected: Path) -> None:
    known = sum(text.score is not None for text in scored)
    short = len(scored) - known
    click.echo(f"{known} texts scored, {short} too short for a score, {len(rejects)} rejected (see {rejected})")
    if names:
        tokens = sum(text.tokens for text in scored if text.name in names)
        domains = len({text.domain for text in scored if text.name in names})
        click.echo(f"{len(names)} chosen from {domains} domains: {tokens} of {budget} tokens")


def _write_lines(path: Path, values: Iterator[dict[str, Any]]) -> None:
    def fill(place: Path) -> None:
        with place.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(value, default=str) + "\n" for value in values)

    _replace(path, fill)


def _replace(path: Path, fill: Callable[[Path], None]) -> None:
    Files(str(path.absolute().parent)).write_by(path.name, fill)


if __name__ == "__main__":
    main()
