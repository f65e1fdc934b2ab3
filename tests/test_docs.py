"""The documentation: generated pages are current, links work, blocks run, and sentences are short."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import polars as pl
import pytest
import reference
import yaml
from pydantic import TypeAdapter

from gateau_dagster.cli.commands import cli
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import check_project, configuration_schema, load_project, parse_project
from tests.kit.project import ROOT, command_environment, make_project
from tests.kit.prose import FORMS, forbidden

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
# Beside the pages of the site.
OTHERS = [
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("README.md"))),
]
WRITTEN_BY_SCRIPTS = {"docs/evidence/real_text_methods.md", "docs/architectures.md", "docs/chat_templates.md"}
MOST_WORDS = 30
MOST_WORDS_OF_A_CELL = 25
# Phrases that plain technical English replaces.
HABITS = [
    r"(made|computed|built) anew",
    r"stands? (in|there) ",
    r"(is|are) told\b",
    r"(is|are) (got|had|none)\b",
    r"that is to say",
    r"all the same[,.]",
    r"\bat hand\b",
    r"for want of",
    r"\bmend(s|ed)?\b",
    r"\b(method|benchmark|length|table|sample) more\b",
    r"what (is cut off|is asked|it lacks)",
    r"\b(HMPp|FG|far gain)\b",  # the long-model gain, the far-segment gain
]
# Says why the block below it is not run.
NOT_RUN = re.compile(r"<!-- not run: .{8,} -->\n+$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(pages: list[str]) -> Iterator[Block]:
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            before = text[: found.start()]
            body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
            yield Block(page, before.count("\n") + 1, found[2], body, NOT_RUN.search(before) is None)


READ_FIRST = [*PAGES, "README.md"]
BLOCKS = [*blocks(READ_FIRST)]


def prose(text: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence outside of code, shortened to words, with the text it is from."""
    text = re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "code", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( {4}.*\n)+", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\b(Eqs?|Fig|et al|vs|Sec)\.", r"\1", text)
    for part in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) |\n#+ |\n?\|", text):
        for sentence in re.split(r"(?<=[.!?])[\"*)]*\s+", " ".join(part.split())):
            yield sentence, part


def words(sentence: str) -> int:
    return len(re.findall(r"[^\s–—=+×<>/&]*\w[^\s–—=+×<>/&]*", sentence))


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_sentences_are_short(page: str) -> None:
    text = (ROOT / page).read_text()
    if page in WRITTEN_BY_SCRIPTS:  # their tables quote messages
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    found = [sentence for sentence, _ in prose(text) if words(sentence) > MOST_WORDS]
    assert not found, f"{len(found)} of more than {MOST_WORDS} words: {found[:3]}"


@pytest.mark.parametrize("page", [page for page in READ_FIRST if page not in WRITTEN_BY_SCRIPTS])
def test_cells_of_tables_are_short(page: str) -> None:
    rows = re.findall(r"^\|(.*)\|$", re.sub(r"`[^`\n]+`", "code", (ROOT / page).read_text()), re.MULTILINE)
    assert [cell for row in rows for cell in row.split(" | ") if words(cell) > MOST_WORDS_OF_A_CELL] == []


@pytest.mark.parametrize("page", [page for page in [*PAGES, *OTHERS] if page not in WRITTEN_BY_SCRIPTS])
def test_no_habit_that_the_style_replaces(page: str) -> None:
    text = " ".join(sentence for sentence, _ in prose((ROOT / page).read_text()))
    assert forbidden(text, *FORMS, *HABITS) == []


def test_the_splitter_finds_a_long_sentence_and_leaves_code_and_cells_alone() -> None:
    long = " ".join(["word"] * 31)
    assert [words(sentence) for sentence, _ in prose(f"Short one. {long}. `{long}` ends.")] == [2, 31, 2]
    assert max(words(sentence) for sentence, _ in prose(f"```text\n{long}\n```\n\n| {long[:49]} | {long[:49]} |")) == 10


def test_the_generated_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_every_key_is_described() -> None:
    assert [key.place for key in reference.all_keys() if not reference.described(key)] == []


@pytest.mark.parametrize("key", [key for key in reference.all_keys() if not key.inner], ids=lambda key: key.place)
def test_the_example_of_a_key_has_its_type(key: reference.Key) -> None:
    (value,) = yaml.safe_load(reference.example_line(key)).values()
    kind: Any = Annotated[key.field.annotation, *key.field.metadata] if key.field.metadata else key.field.annotation
    found: Any = TypeAdapter(kind, config=key.section.model_config).validate_python(value)
    assert found == value or [*found] == value


def test_the_schema_has_the_options_of_methods_and_benchmarks() -> None:
    schema = configuration_schema()
    assert "lengths" in schema["$defs"]["NeedleOptions"]["properties"]
    assert "span_length" in schema["$defs"]["LadmOptions"]["properties"]
    places = [key.place for key in reference.all_keys()]
    assert len(places) == len({*places}) and "evaluation.needle.lengths" in places


def test_every_command_option_and_column_is_described() -> None:
    for name, command in cli.commands.items():
        assert command.help, name
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert [each.name for each in options if not each.help] == [], name
    for family in reference.families().values():
        assert [each.name for asset in family for each in asset.columns if not each.description] == []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"(?:: |- )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(f"docs/{page}" for page in listed) == PAGES


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="zensical is not installed: make setup")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert (tmp_path / "build/site/how-to/data/index.html").is_file()


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_links_lead_to_files(page: str) -> None:
    text = re.sub(r"^( *)```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []
    if page in PAGES:
        assert [link for link in local if not ((ROOT / page).parent / link).resolve().is_relative_to(DOCS)] == []


def test_every_block_has_a_language() -> None:
    assert [str(block) for block in BLOCKS if not block.language] == []


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "yaml" and each.runs], ids=str)
def test_a_yaml_block_is_a_configuration(block: Block, tmp_path: Path) -> None:
    """A block without all sections is one beside the data and a pair."""
    base = {
        "long_sft": {"path": "long.jsonl"},
        "models": {"short": {"path": "a/s", "context": "window"}, "long": {"path": "a/l"}},
    }
    given = yaml.safe_load(block.text)
    models = {"models": {**base["models"], **given["models"]}} if "models" in given and "long_sft" not in given else {}
    text = block.text if "long_sft" in given else yaml.safe_dump({**base, **given, **models})
    shown = [each.text for each in blocks([block.page, "CONTRIBUTING.md"]) if each.language == "python"]
    for plugin in map(Path, given.get("selection", {}).get("plugins", [])):
        (tmp_path / plugin).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / plugin).write_text(next(text for text in shown if f'name = "{plugin.stem}"' in text))
    check_project(parse_project(text, folder=tmp_path))


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of every command line, without its comment."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = re.sub(r"(^|\s)#.*", "", line).split()
        if found:
            yield found


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "bash"], ids=str)
def test_a_shell_block_calls_what_exists(block: Block) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands(block):
        if line[0] == "gateau":
            command = cli.commands[line[1]]
            parent = click.Context(cli, **cli.context_settings)  # the command keeps its help options
            command.make_context(line[1], [word.strip("'\"") for word in line[2:]], parent=parent)
        elif line[0] == "make":
            assert line[1] in targets, line
        elif line[0] == "python" and line[1].endswith(".py"):
            assert (ROOT / line[1]).is_file() or not block.runs, line
        else:
            assert not block.runs or line[0] in {"cp", "cat", "export", "ls", "mkdir"}, f"{line}: why is it not run?"


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "python"], ids=str)
def test_a_python_block_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished project, as the pages assume."""
    folder = tmp_path_factory.mktemp("pages")
    make_project(folder, training=True, storage={"root": "gateau_store"})
    run_in(folder, "gateau run --until selected_subset")
    return folder


def run_in(folder: Path, command: str) -> None:
    environment = {**command_environment(), "GATEAU_CONFIG": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.parametrize(
    "page", sorted({block.page for block in BLOCKS if block.language in {"bash", "python"} and block.runs})
)
def test_the_commands_of_a_page_run(page: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(finished, folder, symlinks=True)
    for block in (each for each in BLOCKS if each.page == page and each.runs):
        if block.language == "python":
            run_in(folder, f"python - <<'END'\n{block.text}\nEND")
        elif block.language == "bash" and not any(line[0] == "make" for line in commands(block)):
            run_in(folder, block.text)


def test_other_libraries_read_every_table(whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the page's queries, and read each table of a finished store whole."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: make setup")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make setup")
    monkeypatch.chdir(tmp_path)
    Path("gateau_store").symlink_to(whole_run.parent / "store")
    (page,) = (each for each in BLOCKS if each.page == "docs/how-to/store.md" and each.language == "python")
    found: dict[str, Any] = {}
    exec(page.text, found)
    assert [len(found["best"]), len(found["by_source"]), found["segments"].num_rows] == [8, 2, 36]
    assert datasets.load_dataset("gateau_store/cam", split="train").num_rows == 36, "no file without rows"
    state = state_of(config=load_project(whole_run))
    tables = [asset for asset in state.pipeline.assets if asset.columns and asset.key in state.pipeline.required]
    assert len(tables) > 8
    for asset in tables:
        files = f"gateau_store/{asset.key}{'/*' if asset.partitions else ''}.parquet"
        rows = state.read(asset.key)
        assert pl.read_parquet(files).equals(rows), asset.key
        assert len(duckdb.sql(f"FROM '{files}'")) == rows.height
        kept = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
        assert (kept.num_rows, kept.column_names) == (rows.height, rows.columns)


@pytest.mark.long
def test_scores_from_a_file_choose_the_samples(tmp_path: Path) -> None:
    """The page's configuration, on a file of scores."""
    make_project(tmp_path, samples=6, shards=1)
    page = (each.text for each in BLOCKS if each.page == "docs/how-to/own-method.md")
    config = next(text for text in page if "method: {scores" in text).replace("data/long*.jsonl", "long.jsonl")
    (tmp_path / "gateau.yaml").write_text(config.replace("scores.parquet}", "scores.parquet}, count: 2"))
    scores = {"sample_id": ["s00004", "s00001", "s00002"], "score": [1, 3, 2]}
    pl.DataFrame(scores).write_parquet(tmp_path / "my_scores.parquet")
    run_in(tmp_path, "gateau run --until selected_subset")
    chosen = pl.read_parquet(tmp_path / "gateau_store" / "selected_subset.parquet").sort("rank")
    assert chosen["sample_id"].to_list() == ["s00001", "s00002"]
