"""Methods by name: found as files, checked with their options before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster import methods
from gateau_dagster.errors import GateauError
from gateau_dagster.methods import registry
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables
from gateau_dagster.pipeline.project import parse_project
from tests.methods.configured import configured

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


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two methods of one file more, which share a table."""
    (tmp_path / "added_methods.py").write_text(ADDED)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
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


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("{method: magic}", "gateau.yaml:4: selection.method: there is no method 'magic'; there are gateau, "),
        ("{compare: [hmg, magic]}", "gateau.yaml:4: selection.compare: there is no method 'magic'"),
        ("{options: {magic: {}}}", "gateau.yaml:4: selection.options: there is no method 'magic'"),
        ("{options: {hmg: {presets: paper}}}", "selection.options.hmg.presets: unknown key"),
        ("{options: {hmg: {preset: loud}}}", "selection.options.hmg.preset: Input should be 'paper', 'official'"),
        ("{compare: [gateau_unextended]}", "selection.options.gateau_unextended.short: gateau_unextended needs"),
    ],
)
def test_mistakes_are_named_with_their_place(selection: str, message: str) -> None:
    text = f"long_sft: {{path: a}}\nmodels: {{short: {{path: a/b}}, long: {{path: c/d}}}}\n\nselection: {selection}\n"
    with pytest.raises(GateauError) as caught:
        parse_project(text, folder=Path())
    assert message in str(caught.value)


def test_a_file_more_is_a_method_more(added: None) -> None:
    config = configured(compare=["added_one"])
    assert list(sample_tables(config)) == ["added/long"]
    assert registry.all_methods()["added_two"].per_sample


def test_methods_share_a_table_unless_they_want_it_differently(added: None) -> None:
    assert len(sample_tables(configured(compare=["added_one", "added_two"]))) == 1
    two_models = {"added_one": {"model": "short"}}
    assert len(sample_tables(configured(compare=["added_one", "added_two"], options=two_models))) == 2
    with pytest.raises(ValueError, match="two methods want added/long with different settings"):
        configured(compare=["added_one", "added_two"], options={"added_one": {"seed": 1}})


def test_a_table_needs_its_model(added: None) -> None:
    with pytest.raises(ValueError, match=r"options\.added_one\.model: 'third' is none of models"):
        configured(compare=["added_one"], options={"added_one": {"model": "third"}})
    with pytest.raises(ValueError, match="models: lacks third, which added/third is computed with"):
        configured(compare=["added_two"], options={"added_two": {"model": "third"}})
