"""What users, files and servers put into a text moves no cursor, rings no bell and makes no line of its own."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateau_dagster.assets.runs import refresh
from gateau_dagster.cli.display import RunDisplay, console
from gateau_dagster.errors import GateauError, UnforeseenError, redact_output
from gateau_dagster.progress import ProgressBoard
from gateau_dagster.readable import UNSAFE, escaped_controls
from tests.cli.command import Command
from tests.kit.project import sample, write_samples

PROJECT = {"long_sft": {"path": "long.jsonl", "shards": 2}, "selection": {"method": "length"}}
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\r\nFAKE\x7f"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without models."""
    write_samples(tmp_path / "long.jsonl", [sample(number) for number in range(8)])
    file = tmp_path / "gateau.yaml"
    file.write_text(yaml.safe_dump(PROJECT))
    return file


def assert_harmless(*streams: str) -> None:
    for text in streams:
        assert not UNSAFE.search(text), ascii(text)
        assert not [line for line in text.splitlines() if line.startswith("FAKE")], ascii(text)


@given(st.text())
def test_escaped_text_is_harmless_and_says_what_it_was(text: str) -> None:
    line = escaped_controls(text)
    assert not UNSAFE.search(line) and "\n" not in line
    assert escaped_controls(text, lines=True).count("\n") == text.count("\n")
    if "\\" not in text and all(ord(letter) < 256 for letter in text):
        assert line.encode("latin-1").decode("unicode_escape") == text


ARGUMENTS = {
    "an option": ["plan", f"--{HOSTILE}"],
    "a command": [HOSTILE],
    "no file": ["plan", "--config", HOSTILE],
    "an asset": ["plan", "--until", HOSTILE],
    "a number": ["plan", "--workers", HOSTILE],
    "a sample": ["show", HOSTILE],
    "a method": ["show", "s1", "--method", HOSTILE],
    "a page": ["open", HOSTILE],
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("GATEAU_CONFIG", str(project))
    status, out, err = command(*arguments)
    assert status in {1, 2}
    assert_harmless(out, err)


SETTINGS = {
    "a section": lambda text: {text: {}},
    "a key": lambda text: {"long_sft": {"path": "long.jsonl", text: 1}},
    "a path": lambda text: {"long_sft": {"path": f"{text}.jsonl"}},
    "a pattern": lambda text: {"long_sft": {"path": f"{text}*.jsonl"}},
    "an address": lambda text: {"long_sft": {"path": f"http://{text}"}},
    "paths": lambda text: {"long_sft": {"path": ["long.jsonl", text]}},
    "a count": lambda text: {"long_sft": {"path": "long.jsonl", "shards": text}},
    "a choice": lambda text: {"long_sft": {"path": "long.jsonl", "verify": text}},
    "short samples": lambda text: {"short_chat": {"path": text}},
    "a root": lambda text: {"storage": {"root": f"gopher://{text}"}},
    "a folder": lambda text: {"storage": {"root": f"{text}/x"}},
    "a method": lambda text: {"selection": {"method": text}},
    "compared methods": lambda text: {"selection": {"compare": [text]}},
    "a source": lambda text: {"selection": {"method": "length", "ground_truth": [text]}},
    "a model": lambda text: {"models": {"short": {"path": text}, "long": {"path": text}}},
    "a model's name": lambda text: {
        "models": {"short": {"path": "short"}, "long": {"path": "long"}, text: {"path": "short"}}
    },
    "a benchmark": lambda text: {"evaluation": {"benchmarks": [text]}},
    "a variant": lambda text: {"experiment": {"variants": {text: {"selection": {"method": "random"}}}}},
    "a schedule": lambda text: {"execution": {"schedule": text}},
    "a pool": lambda text: {"execution": {"pool": text}},
}


@pytest.mark.parametrize("place", SETTINGS)
def test_settings(command: Command, project: Path, place: str) -> None:
    project.write_text(yaml.safe_dump({**PROJECT, **SETTINGS[place](HOSTILE)}))
    for name in ("validate", "plan"):
        _, out, err = command(name, "--config", str(project))
        assert_harmless(out, err)


RECORDS = {
    "an id": lambda text: {**sample(1), "id": text},
    "a source": lambda text: {**sample(1), "source": text},
    "texts": lambda text: {"context": text, "instruction": text, "response": text},
    "a field": lambda text: {text: text},
    "a role": lambda text: {"messages": [{"role": text, "content": "a"}, {"role": "assistant", "content": "b"}]},
    "a turn's field": lambda text: {"messages": [{text: "user", "content": "a"}]},
    "a turn": lambda text: {"conversations": [{"from": "human", "value": text}, text]},
    "an id without a response": lambda text: {**sample(1), "id": text, "response": ""},
    "nonsense": lambda text: text,
}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_records_and_names_of_files(command: Command, project: Path, data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from([HOSTILE, "x\nFAKE", "\x1b[1m", "\u2067id", "\x85", "[bold]\x1b[/bold]", "\x9d\\["])
    )
    places = data.draw(st.lists(st.sampled_from(sorted(RECORDS)), min_size=1, max_size=5))
    folder = project.parent / "data"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    records = [json.dumps(RECORDS[place](text)) for place in places]
    name = text.replace("/", "_") if data.draw(st.booleans()) else "b"
    (folder / f"{name}.jsonl").write_text("\n".join([*records, f"{{{text}"]))
    (folder / f"{name}.parquet").write_bytes(b"PAR1 nothing")
    write_samples(folder / "ok.jsonl", [sample(number) for number in range(8)])
    write_samples(folder / "again.jsonl", [{**sample(2), "id": text}])
    chat = {"path": f"data/{'[!x]' * len(name)}.jsonl"} if data.draw(st.booleans()) else None
    long = {"path": "data/*", "shards": 2}
    project.write_text(yaml.safe_dump({**PROJECT, "long_sft": long, "short_chat": chat}))
    for command_name in ("validate", "plan"):
        _, out, err = command(command_name, "--config", str(project))
        assert_harmless(out, err)


@pytest.mark.parametrize(
    "error",
    [GateauError("data.missing", HOSTILE), UnforeseenError(HOSTILE, kind="Error", trace=HOSTILE), OSError(HOSTILE)],
)
def test_failures_of_a_run(command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(refresh, "run_refresh", fail)
    status, out, err = command("run", "--config", str(project))
    assert status == 1 and "owned" in err
    assert_harmless(out, err)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """In a log; in a terminal Rich's own controls are beside them."""
    monkeypatch.setattr("gateau_dagster.cli.display._SECONDS_BETWEEN_LINES", 0.0)
    shown = RunDisplay(console(), tmp_path)
    with ProgressBoard(tmp_path / "run1").step(f"answers/[red]{HOSTILE}") as report:
        report(1, 10, f"[red]{HOSTILE}", f"[link=x]{HOSTILE}")
        shown.look()
    shown.look()
    out, err = capfd.readouterr()
    assert out.count("[red]") > 2 and "[link=x]" in out
    assert_harmless(out, err)


@pytest.mark.parametrize("as_argument", [False, True])
def test_log_records(capfd: pytest.CaptureFixture[str], as_argument: bool) -> None:
    """Escape the records of any library in any handler; the handler of last resort prints a traceback."""
    redact_output()
    text, stream = HOSTILE.replace("\n", ""), io.StringIO()
    log = logging.getLogger("a library")
    log.addHandler(handler := logging.StreamHandler(stream))
    try:
        log.warning(*(["%s", text] if as_argument else [text.replace("%", "")]))
    finally:
        log.removeHandler(handler)
    assert logging.lastResort is not None
    try:
        raise ValueError(text)
    except ValueError:
        record = log.makeRecord("a", logging.ERROR, "f", 1, text, (), sys.exc_info())
        shown = logging.lastResort.format(record)
    assert "owned" in stream.getvalue() and "Traceback" in shown
    assert_harmless(stream.getvalue(), shown)


@pytest.mark.long
def test_a_run_and_what_shows_its_results(command: Command, project: Path) -> None:
    name, texts = f"[red]{HOSTILE}", {"context": HOSTILE * 3, "instruction": HOSTILE, "response": HOSTILE}
    records = [
        {**sample(1), "id": name, "source": name, **texts},
        *({**sample(n), "source": name} for n in range(2, 8)),
    ]
    write_samples(project.parent / "long.jsonl", records)
    for arguments in (["run"], ["show", name], ["show", "--top", "8"], ["status"], ["status", "--json"], ["plan"]):
        status, out, err = command(*arguments, "--config", str(project))
        assert status == 0, err
        assert_harmless(out, err)
