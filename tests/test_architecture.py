"""Check the layers of imports, the size of files, and what the code location and the commands load."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from house import (
    COMPUTED,
    HEARTS,
    circles,
    closure,
    edges,
    import_graph,
    imported,
    layer_of,
    main,
    modules,
    parts_of,
    relative_imports,
    upward_arrows,
)

from tests.kit.project import ROOT, command_environment, make_project
from tests.kit.prose import FORMS, NO_SUBJECT, forbidden, texts

CORE = "gateau_dagster"
# From the ground up: each imports only what stands before it. A new package or module of the core needs its place.
LAYERS = (
    *("readable", "errors", "registry", "progress", "costs", "tables", "plotting", "small_charts"),
    *("config", "storage", "data", "models", "scoring", "selection", "methods", "comparison", "plots"),
    *("training", "execution", "pipeline", "explanation"),
    *("resources", "assets", "component", "definitions", "cli", "features", "api", "gateau_dagster"),
)
MODULES = modules(ROOT, [CORE])
FILES = [*MODULES.values()]
COMPOSITION_ROOTS = {"gateau_dagster.component", "gateau_dagster.definitions"}
# They load every module of a package: the one they are given, the assets.
REGISTRIES = {"gateau_dagster.registry", "gateau_dagster.assets.steps.definition"}
HEAVY = {"torch", "transformers", "deepspeed", "ray"}
SLOW = HEAVY | {"s3fs", "aiobotocore", "sklearn", "scipy", "matplotlib", "datasets", "accelerate"}
OF_EXTRAS = {"ray", "psycopg2", "dagster_postgres", "openai", "jieba", "wonderwords", "lm_eval"}
# A file holds one concept, whole: these bounds catch accidents, they draw no borders.
MOST_LINES, MOST_FUNCTION_LINES = 900, 120
# Modules that the hearts of the house pull in: see scripts/house.py.
MOST_REACHED = dict(zip(HEARTS, (76, 44), strict=True))


def name_of(file: Path) -> str:
    """Its path at the top level, not below the links to it."""
    return file.resolve().relative_to(ROOT).as_posix()


def top_level(file: Path, *, everywhere: bool) -> set[str]:
    return {name.split(".")[0] for name in imported(file, everywhere=everywhere)}


def test_every_module_has_its_place_among_the_layers() -> None:
    assert {layer_of(module, CORE) for module in MODULES} == {*LAYERS}
    assert len(LAYERS) == len({*LAYERS})
    assert len(FILES) > 100


def test_no_import_points_upwards() -> None:
    assert upward_arrows(import_graph(MODULES), LAYERS, CORE) == []


def test_no_imports_go_round_in_a_circle() -> None:
    assert circles(import_graph(MODULES)) == []


def test_the_kernel_knows_no_feature() -> None:
    assert edges(import_graph(MODULES)) == []


def test_the_hearts_of_the_house_pull_in_no_more_than_they_do() -> None:
    """The bounds fall with what leaves the kernel; none may rise."""
    graph = import_graph(MODULES)
    reached = {heart: len(closure(graph, heart)) for heart in HEARTS}
    assert {heart: count for heart, count in reached.items() if count > MOST_REACHED[heart]} == {}


def test_the_measures_of_the_house_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    graph = import_graph(MODULES)
    assert main(["--edges"]) == 0
    assert capsys.readouterr().out.splitlines() == edges(graph)
    assert main([]) == 0
    shown = dict(re.split(r" {2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["imports of features by the kernel"] == str(len(edges(graph)))
    for heart in HEARTS:
        measure = shown[f"closure of {heart.removeprefix('gateau_dagster.')}"]
        assert measure.startswith(f"{len(closure(graph, heart))} modules, ")


def test_the_lines_of_a_file_are_told_apart() -> None:
    source = '''"""About it."""

import os  # a comment behind code is none


# Why.
def f(x):
    """Return it.

    In two parts.
    """
    text = """
    no docstring"""
    return [x, text]
'''
    assert parts_of(source) == {"lines": 14, "code": 4, "comments": 1, "docstrings": 5, "functions": 1}


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(file))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_docstring_is_a_fragment() -> None:
    headless = re.compile(r'"""(Of|By|Those|Where|See)\b')
    more = re.compile(r'"""(What|Whether|How|That|Which)\b')  # a test's docstring may name what it looks at
    files = [
        *FILES,
        *(file for folder in ("benchmarks", "examples", "scripts") for file in (ROOT / folder).rglob("*.py")),
    ]
    texts = {name_of(file): file.read_text(encoding="utf-8") for file in files}
    tests = {name_of(file): file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    assert [name for name, text in texts.items() if headless.search(text) or more.search(text)] == []
    assert [name for name, text in tests.items() if headless.search(text)] == []


CODE_FORMS = (*FORMS, NO_SUBJECT, r"\b(?:Return|Yield) what\b")


def test_texts_of_the_code_have_no_habit_that_the_style_replaces() -> None:
    folders = ("benchmarks", "examples", "scripts")
    files = [*FILES, *(file for folder in folders for file in (ROOT / folder).rglob("*.py"))]
    shown = {name_of(file): forbidden(texts(file.read_text(encoding="utf-8")), *CODE_FORMS) for file in files}
    assert {name: forms for name, forms in shown.items() if forms} == {}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("A training is killed.", "A training run is killed."),
        ("It needs a longer training.", "Training takes longer."),
        ("two trainings", "two training runs"),
        ("a process of its own", "a separate process"),
        ("with further methods", "It looks further back."),
        ("one table a benchmark", "one table per benchmark"),
        ("16 bytes a parameter", "how many tokens a model reads"),
        ("many prompts a pass", "two samples and a token"),
        ("Raises:\n    GateauError: one does.", "Raises:\n    GateauError: one of them does."),
        ("Return what it reads.", "Return the tables that it reads."),
        ("Raises:\n    ValueError: it is blank.", "Raises:\n    ValueError: the name is blank."),
    ],
)
def test_a_forbidden_form_is_found(wrong: str, right: str) -> None:
    assert len(forbidden(wrong, *CODE_FORMS)) == 1 and forbidden(right, *CODE_FORMS) == []
    commented = "def f():\n    return 'of its own' + x  # {0}\n"
    assert len(forbidden(texts('"""' + wrong + '"""\n' + commented.format("a training")), *CODE_FORMS)) == 3


def written(folder: Path, sources: dict[str, str]) -> dict[str, Path]:
    """A small house: `low/` below `high/` in the package `house`, with some files replaced."""
    plain = {"low/__init__": "", "low/one": "", "low/two": "", "high/__init__": "", "high/three": ""}
    for name, source in (plain | sources).items():
        file = folder / "house" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return modules(folder, ["house"])


def house_arrows(files: dict[str, Path]) -> list[str]:
    return upward_arrows(import_graph(files), ("low", "high"), "house")


@pytest.mark.parametrize(
    "source",
    [
        "import house.high.three",
        "import os, house.high.three as three",
        "from house.high import three",
        "from house.high.three import (\n    something,\n)",
        "def f():\n    import house.high.three",
        "class C:\n    async def f(self):\n        return [lambda: __import__('house.high.three')]",
        "import importlib\nthree = importlib.import_module('house.high.three')",
        "from importlib import import_module\ndef f():\n    return import_module('house.high.three').x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.high.three import T",
        "try:\n    import nothing\nexcept ImportError:\n    from house.high.three import x",
    ],
)
def test_an_upward_arrow_is_found_in_whatever_form(source: str, tmp_path: Path) -> None:
    files = written(tmp_path, {"low/one": source})
    assert house_arrows(files) == ["house.low.one -> house.high.three"]
    assert house_arrows(written(tmp_path, {"low/one": "", "high/three": "from house.low import one"})) == []


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"low/one": "from house.low import two", "low/two": "def f():\n    import house.low.one"}, ["one", "two"]),
        (
            {
                "low/one": "from house.low.two import x",
                "low/two": "import importlib\nimportlib.import_module('house.low.four')",
                "low/four": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import house.low.one",
                "low/five": "import house.low.one",
            },
            ["four", "one", "two"],
        ),
    ],
)
def test_a_circle_is_found(sources: dict[str, str], circle: list[str], tmp_path: Path) -> None:
    assert circles(import_graph(written(tmp_path, sources))) == [[f"house.low.{name}" for name in circle]]
    assert circles(import_graph(written(tmp_path, {**sources, "low/two": ""}))) == []


def test_imports_can_be_read_from_the_files() -> None:
    """Absolute names, none of them made at run time but by what loads a whole package."""
    assert [module for module in MODULES if relative_imports(MODULES[module])] == []
    assert {module for module in MODULES if COMPUTED in set(imported(MODULES[module]))} <= REGISTRIES


def test_the_core_knows_neither_dagster_nor_the_tests() -> None:
    above = {module for module in MODULES if layer_of(module, CORE) in {"assets", "resources"}} | COMPOSITION_ROOTS
    above |= {module for module in MODULES if re.fullmatch(rf"{CORE}\.features\.\w+\.assets(\.\w+)?", module)}
    for module, file in MODULES.items():
        found = top_level(file, everywhere=True)
        of_dagster = {name for name in found if name.startswith("dagster")}
        assert "tests" not in found and (module in above or not of_dagster), module


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    outer = [module for module in MODULES if layer_of(module, CORE) in {"assets", "resources"}]
    heavy = {module: top_level(MODULES[module], everywhere=False) & HEAVY for module in outer}
    assert len(outer) > 20 and {module: found for module, found in heavy.items() if found} == {}


def test_files_and_functions_stay_readable() -> None:
    long = {}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        lines = {name_of(file): len(text.splitlines()) / MOST_LINES}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                lines[f"{name_of(file)}: {node.name}"] = length / MOST_FUNCTION_LINES
        long |= {name: share for name, share in lines.items() if share >= 1}
    assert long == {}, "times too long"


def loaded_by(code: str, folder: Path) -> set[str]:
    """Return the top-level packages that are loaded after `code` has run in a process of its own."""
    code += "\nprint(*sorted({name.split('.')[0] for name, module in sys.modules.items() if module}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=command_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {*done.stdout.splitlines()[-1].split()}


def test_the_commands_load_without_dagster_and_s3(tmp_path: Path) -> None:
    loaded = loaded_by("import sys, gateau_dagster.cli.commands", tmp_path)
    assert "click" in loaded
    assert not loaded & {"dagster", *SLOW}


# Of a store that is up to date and of data that were read before, by their arguments.
DAILY = (
    "run",
    "plan",
    "status",
    "validate",
    "forecast",
    "show --top 3",
    "show s00003",
    "clean",
    "explain config.no_file",
    "--help",
)


def test_daily_commands_load_no_library_that_takes_seconds(tmp_path: Path, whole_run: Path) -> None:
    copytree(whole_run.parent, tmp_path / "project")
    run = "import sys\nfrom gateau_dagster.cli import main\nsys.argv = ['gateau', *{!r}.split()]\nmain()"
    found = {each: loaded_by(run.format(each), tmp_path / "project") for _ in range(2) for each in DAILY}
    assert {each: loaded & {"dagster", *SLOW} for each, loaded in found.items() if loaded & {"dagster", *SLOW}} == {}


def test_the_code_location_loads_without_the_heavy_libraries(tmp_path: Path) -> None:
    """The libraries of the extras need not be installed."""
    without = f"import sys\nsys.modules.update(dict.fromkeys({sorted(OF_EXTRAS)}))"
    loaded = loaded_by(f"{without}\nimport gateau_dagster.definitions, gateau_dagster.cli", tmp_path)
    assert "dagster" in loaded
    assert not loaded & {*SLOW, *OF_EXTRAS}


FIRST_BATCH = """
import gc, json, os, sys, traceback, types
from pathlib import Path
from gateau_dagster.cli import main
from gateau_dagster.models.forward import Passes

def at_the_first_batch(self, batch):
    stack = [(frame.filename, frame.name) for frame in traceback.extract_stack()[:-1]]
    blocks = [found.gi_code.co_filename for found in gc.get_objects() if type(found) is types.GeneratorType
              and found.gi_frame is not None and found.gi_frame.f_lasti > 0]
    Path("found.json").write_text(json.dumps([stack, blocks]))
    os._exit(0)

Passes._run_batch = at_the_first_batch
sys.argv = ["gateau", "run", "--until", "cam"]
main()
"""


@pytest.mark.long
def test_the_way_to_the_first_batch_is_the_documented_one(tmp_path: Path) -> None:
    make_project(tmp_path, samples=4, shards=1)
    command = [sys.executable, "-c", FIRST_BATCH]
    subprocess.run(command, cwd=tmp_path, env=command_environment(), capture_output=True, check=True)
    stack, blocks = json.loads((tmp_path / "found.json").read_text())
    ours = [(name_of(Path(file)), name) for file, name in stack if Path(file) in FILES]
    below = [name for _, name in ours].index("sample_table") + 1
    assert len(ours) - below <= 12, ours[below:]
    way = [*dict.fromkeys(file for file, _ in ours)]
    around = {name_of(Path(file)) for file in blocks if Path(file) in FILES} - {*way}
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, documented, surrounding, *_ = re.split(r"### From `gateau run`|Blocks of these files|Other ways:", text)
    assert re.findall(r"`([\w/]+\.py)`", documented) == way and len(way) <= 20
    assert {*re.findall(r"`([\w/]+\.py)`", surrounding)} == around
