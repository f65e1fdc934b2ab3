"""Methods by name: found as files of the package and outside of it, checked with their options before anything runs."""

import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import methods
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables
from gateau_dagster.pipeline.project import parse_project
from tests.kit.contributing import block
from tests.kit.error_codes import refused
from tests.methods.configured import configured, method_of

LETTERS = Path(__file__).with_name("letters.py")
ADDED = """
from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method
from gateau_dagster.scoring.sample_table import SampleTable

class Options(Section):
    model: str = "long"
    seed: int = 0

class Base(Method):
    title, source, per_sample = "t", "s", True
    options: Options
    def tables(self):
        model, columns = self.options.model, (tables.SAMPLE_ID, tables.DIGEST)
        return [SampleTable(asset="added/" + model, model=model, columns=columns, description="",
                            settings={"seed": self.options.seed}, score=lambda *_: iter(()))]
    def reads(self):
        return {}
    def score(self, tables):
        return None

class One(Base):
    name = "added_one"

class Two(Base):
    name = "added_two"
    def check(self):
        pass
"""
RAW = pl.DataFrame(
    {
        "sample_id": ["a", "b", "c"],
        "context": ["the cat sat on the mat", "nothing", "one two"],
        "response": ["the mat and the cat", "words words", "one two three four"],
    }
)


@pytest.fixture
def added(tmp_path: Path) -> dict[str, Any]:
    """A selection that knows two methods of one plug-in, which share a table."""
    (tmp_path / "added.py").write_text(ADDED)
    return {"plugins": [str(tmp_path / "added.py")]}


@pytest.fixture
def afresh() -> Iterator[None]:
    """The methods are looked for anew, then and after."""
    all_methods.cache_clear()
    yield
    all_methods.cache_clear()


def test_every_method_says_what_it_is() -> None:
    found = all_methods()
    assert next(iter(found)) == "gateau"
    assert {"hmg", "cam", "gateau_unnormalised", "gateau_unextended", "gateau_in_context"} <= set(found)
    for name, method in found.items():
        assert issubclass(method, Method) and method.name == name
        assert method.title.endswith(".") and method.source


def test_methods_are_chosen_once_with_their_options() -> None:
    config = configured(method="hmg", compare=["cam", "hmg", "gateau"], options={"hmg": {"preset": "paper"}})
    chosen = chosen_methods(config)
    assert list(chosen) == ["hmg", "cam", "gateau"]
    assert chosen["hmg"].asset == "method_scores/hmg"
    assert chosen["hmg"].reads() == {"combined_scores": ["sample_id", "hmp_paper"]}
    assert chosen["cam"].reads() == {"combined_scores": ["sample_id", "cas_robust"]}


def test_methods_share_a_table_unless_they_want_it_differently(added: dict[str, Any]) -> None:
    assert list(sample_tables(configured(compare=["added_one"], **added))) == ["added/long"]
    assert len(sample_tables(configured(compare=["added_one", "added_two"], **added))) == 1
    two_models = {"added_one": {"model": "short"}}
    assert len(sample_tables(configured(compare=["added_one", "added_two"], options=two_models, **added))) == 2
    with refused("methods.same_table", match="added/long"):
        configured(compare=["added_one", "added_two"], options={"added_one": {"seed": 1}}, **added)


def test_a_table_needs_its_model(added: dict[str, Any]) -> None:
    with refused("models.missing", match=r"options\.added_one\.model"):
        configured(compare=["added_one"], options={"added_one": {"model": "third"}}, **added)
    with refused("models.missing", match="third, .*added/third"):
        configured(compare=["added_two"], options={"added_two": {"model": "third"}}, **added)


@pytest.mark.parametrize("inside", [True, False])
def test_the_example_of_the_documentation_is_a_method(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, afresh: None
) -> None:
    """As a file of the package and outside of it, against plain loops."""
    (tmp_path / "copying.py").write_text(block("Adding a method"))
    if inside:
        monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])

    def scores(longest: int) -> dict[str, float | None]:
        plugins = [] if inside else [str(tmp_path / "copying.py")]
        method = method_of("copying", options={"longest": longest}, plugins=plugins)
        assert (method.version == "1") == inside
        found = method.scores({asset: RAW.select(columns) for asset, columns in method.reads().items()})
        return dict(found.iter_rows())

    for sample_id, context, response in RAW.iter_rows():
        words = set(response.split())
        expected = len([word for word in words if word in context.split()]) / len(words)
        assert scores(5)[sample_id] == pytest.approx(expected)
    assert scores(3) == {"a": None, "b": 0.0, "c": None}


def with_letters(folder: Path, more: str = "", **options: Any) -> Config:
    """A configuration of this folder that compares the plug-in's method, after more was written to its file."""
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "letters.py").write_text(LETTERS.read_text() + more)
    selection = f"{{plugins: [own/letters.py], compare: [letters, ifd], options: {{letters: {options}}}}}"
    text = f"long_sft: {{path: a}}\nmodels: {{short: {{path: a/b}}, long: {{path: c/d}}}}\n\nselection: {selection}\n"
    return parse_project(text, folder=folder)


def versions(config: Config) -> tuple[list[str], list[str]]:
    """Test the code versions of the methods' scores and of the tables."""
    scores = [method.version for method in chosen_methods(config).values()]
    return scores, [table.code_version for table in sample_tables(config).values()]


def test_an_edited_plugin_is_a_new_version_of_its_own_alone(tmp_path: Path) -> None:
    first = with_letters(tmp_path)
    (gateau, letters, ifd), (own, alone) = versions(first)
    assert (gateau, ifd, alone) == ("1", "1", "2") and letters == own != "1"
    second = with_letters(tmp_path, "\n# edited")
    edited = letters.replace(letters[2:], versions(second)[0][1][2:])
    assert edited != letters
    assert versions(second) == (["1", edited, "1"], [edited, "2"])
    assert versions(first)[0][1] == letters, "what a run began with"
    assert versions(with_letters(tmp_path)) == versions(first)


def test_a_plugin_travels_with_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another process or machine, which has neither its file nor its module."""
    config = with_letters(tmp_path)
    known, sent = versions(config), pickle.dumps(config)
    (tmp_path / "own" / "letters.py").unlink()
    name = type(chosen_methods(config)["letters"]).__module__
    monkeypatch.delitem(sys.modules, name)
    received = pickle.loads(sent)
    assert name not in sys.modules
    assert versions(received) == known and received == config
    assert received.model_dump() == config.model_dump()


def test_without_plugins_a_configuration_is_dumped_as_before(tmp_path: Path) -> None:
    assert "plugins" not in configured().model_dump()["selection"]
    assert with_letters(tmp_path).model_dump()["selection"]["plugins"] == ["own/letters.py"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("import nothing_there", ":LAST: ModuleNotFoundError: No module named 'nothing_there': correct the file"),
        ("def f(:", ":LAST: SyntaxError: invalid syntax: correct the file"),
        ("raise SystemExit(3)", ":LAST: SystemExit: 3: correct the file"),
        ("\0", ": SyntaxError: source code string cannot contain null bytes: correct the file"),
        (
            "class More(Method):\n    name = 'more'",
            ": class More lacks title, source, per_sample, reads, score: define",
        ),
        ("class More(Letters):\n    options: int", "TypeError: More.options: int is no subclass of Section"),
        ("class Ifd(Letters):\n    name = 'ifd'", r"the name 'ifd' is that of a Method in .*methods/ifd\.py: choose"),
        (
            "class More(Letters):\n    title = 'More.'",
            "the name 'letters' is that of a Method in .*own/letters.py: choose",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(GateauError) as caught:
        with_letters(tmp_path, more)
    said, last = str(caught.value), LETTERS.read_text().count("\n") + 1
    assert f"gateau.yaml:4: selection.plugins: {tmp_path}/own/letters.py:" in said
    assert re.search(message.replace("LAST", str(last)), said)


def test_a_plugin_that_is_missing_or_holds_no_method_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("from gateau_dagster.methods.method import Method\n")
    for name, reason in {
        "none.py": r"none\.py: holds no Method: define a subclass of Method with a name there",
        "gone.py": r"gone\.py cannot be read .No such file or directory.: name an existing Python file",
        ".": r"cannot be read .Is a directory.",
    }.items():
        with pytest.raises(GateauError, match=rf"^selection\.plugins: {tmp_path}.*{reason}"):
            configured(plugins=[str(tmp_path / name)])
    with pytest.raises(ValueError, match=r"selection\.plugins\.0\s.* begins with ~nobody-here, an unknown user"):
        configured(plugins=["~nobody-here/own.py"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, afresh: None) -> Path:
    """An installed package that names a module in the group of entry points; what a test writes to it."""
    information = tmp_path / "own_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[gateau_dagster.methods]\nown = own_package_of_methods\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_package_of_methods", raising=False)
    return tmp_path / "own_package_of_methods.py"


def test_methods_of_an_installed_package_are_found(package: Path) -> None:
    package.write_text(LETTERS.read_text())
    config = configured(compare=["letters"])
    assert [*sample_tables(config)] == ["letters/long"]
    (_, letters), (own,) = versions(config)
    assert letters == own and len(own) > len("1.")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import nothing_there",
            "ModuleNotFoundError: No module named 'nothing_there': correct or uninstall own-package",
        ),
        ("", "holds no Method"),
    ],
)
def test_an_installed_package_that_cannot_be_used_is_named(package: Path, source: str, reason: str) -> None:
    package.write_text(source)
    with pytest.raises(GateauError, match=f"^entry point own = own_package_of_methods of own-package: {reason}"):
        configured()
